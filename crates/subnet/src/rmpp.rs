//! The reliable multi-packet protocol (IBA 13.6), its sending half: tables longer than a datagram.
//!
//! The receiver acknowledges a segment and opens a window behind it. Where no acknowledge comes in
//! time, what was sent of the window is sent again; after some repeats without progress the
//! transfer is aborted. A table that fits one segment is like any other answer:
//! who asked asks again. There is no clock here: callers say what time it is and come back at
//! [`Transfers::next_deadline`].

use crate::Mad;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use wire::field::{be64, put};
use wire::mad::rmpp::{Header, TOO_MANY_RETRIES, flag, kind};
use wire::mad::{field, sa};

const SEGMENT_DATA: usize = sa::field::DATA.end - sa::field::DATA.start;
/// Length of the class's own header, which counts as payload.
const CLASS_HEADER: usize = sa::field::WHOLE.end - sa::field::WHOLE.start;

/// How long an acknowledge may take.
const RESPONSE_TIME: Duration = Duration::from_secs(1);
/// Repeats without progress.
const RETRIES: u32 = 5;
/// Transfers at once, to one port and in all. The oldest gives way.
const MOST_TO_ONE: usize = 16;
const MOST: usize = 32;

/// A transfer under way.
struct Transfer {
    port: u16,
    transaction: u64,
    /// Common, RMPP and class header.
    head: Mad,
    data: Vec<u8>,
    /// Segments sent.
    sent: u32,
    /// Those of them that the receiver has.
    acknowledged: u32,
    /// Repeats since then.
    repeats: u32,
    deadline: Instant,
}

/// Transfers under way, the oldest first.
#[derive(Default)]
pub(crate) struct Transfers(VecDeque<Transfer>);

impl Transfer {
    fn segments(&self) -> u32 {
        self.data.len().div_ceil(SEGMENT_DATA).max(1) as u32
    }

    /// Segment `number`, from 1.
    fn segment(&self, number: u32) -> Mad {
        let from = (number as usize - 1) * SEGMENT_DATA;
        let part = self.data.get(from..).unwrap_or_default();
        let part = &part[..part.len().min(SEGMENT_DATA)];
        let (first, last) = (number == 1, number == self.segments());
        let mut flags = flag::ACTIVE;
        let mut length = 0;
        if first {
            flags |= flag::FIRST;
            length = self.data.len() + self.segments() as usize * CLASS_HEADER;
        }
        if last {
            flags |= flag::LAST;
            length = part.len() + CLASS_HEADER;
        }
        let length = length as u32;
        let header = Header { kind: kind::DATA, flags, status: 0, segment: number, length };
        let mut mad = self.head;
        header.emit(&mut mad);
        put(&mut mad, sa::field::DATA, part);
        mad
    }

    /// What is sent when no acknowledge came: what the receiver may lack, or in the end that there
    /// is no more to come.
    fn repeat(&mut self, now: Instant) -> Vec<Mad> {
        if self.is_given_up() {
            let status = TOO_MANY_RETRIES;
            let flags = flag::ACTIVE;
            let header = Header { kind: kind::ABORT, flags, status, segment: 0, length: 0 };
            let mut mad = self.head;
            header.emit(&mut mad);
            return vec![mad];
        }
        self.repeats += 1;
        self.deadline = now + RESPONSE_TIME;
        (self.acknowledged + 1..=self.sent).map(|number| self.segment(number)).collect()
    }

    fn is_given_up(&self) -> bool {
        self.repeats == RETRIES
    }
}

impl Transfers {
    /// Begins to send `data` to `port` behind the headers of `head`; gives what is sent now.
    pub(crate) fn begin(&mut self, port: u16, head: Mad, data: Vec<u8>, now: Instant) -> Vec<Mad> {
        let transaction = be64(&head, field::TRANSACTION_ID);
        self.end(port, transaction);
        let (sent, acknowledged, repeats) = (1, 0, 0);
        let deadline = now + RESPONSE_TIME;
        let transfer =
            Transfer { port, transaction, head, data, sent, acknowledged, repeats, deadline };
        let first = transfer.segment(1);
        if transfer.segments() > 1 {
            self.make_room(port);
            self.0.push_back(transfer);
        }
        vec![first]
    }

    /// Makes room for one more to `port`.
    fn make_room(&mut self, port: u16) {
        let mut theirs = self.0.iter().enumerate().filter(|(_, transfer)| transfer.port == port);
        let oldest = theirs.next().map(|(at, _)| at);
        if 1 + theirs.count() >= MOST_TO_ONE
            && let Some(at) = oldest
        {
            self.0.remove(at);
        } else if self.0.len() >= MOST {
            self.0.pop_front();
        }
    }

    /// When [`Transfers::on_timeout`] is wanted.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().map(|transfer| transfer.deadline).min()
    }

    /// What is sent now because no acknowledge came, and to which port.
    pub(crate) fn on_timeout(&mut self, now: Instant) -> Vec<(u16, Mad)> {
        let mut sent = Vec::new();
        self.0.retain_mut(|transfer| {
            if transfer.deadline > now {
                return true;
            }
            let ends = transfer.is_given_up();
            let port = transfer.port;
            sent.extend(transfer.repeat(now).into_iter().map(|mad| (port, mad)));
            !ends
        });
        sent
    }

    /// What port `port` says of a transfer, which `transaction` names; gives what is sent then.
    pub(crate) fn hear(
        &mut self,
        port: u16,
        transaction: u64,
        said: &Header,
        now: Instant,
    ) -> Vec<Mad> {
        let known =
            |transfer: &&mut Transfer| transfer.port == port && transfer.transaction == transaction;
        let Some(transfer) = self.0.iter_mut().find(known) else { return Vec::new() };
        let (acknowledged, window) = (said.segment, said.length);
        let total = transfer.segments();
        if said.kind != kind::ACKNOWLEDGE || acknowledged >= total || acknowledged > transfer.sent {
            // Stopped, aborted, done, or of something that was not sent.
            self.end(port, transaction);
            return Vec::new();
        }
        if acknowledged < transfer.acknowledged {
            // It was overtaken by a later one.
            return Vec::new();
        }
        let until = window.min(total);
        let next: Vec<Mad> =
            (transfer.sent + 1..=until).map(|number| transfer.segment(number)).collect();
        if acknowledged > transfer.acknowledged || !next.is_empty() {
            transfer.repeats = 0;
            transfer.deadline = now + RESPONSE_TIME;
        }
        transfer.acknowledged = acknowledged;
        transfer.sent = transfer.sent.max(until);
        next
    }

    fn end(&mut self, port: u16, transaction: u64) {
        self.0.retain(|transfer| transfer.port != port || transfer.transaction != transaction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(transaction: u64) -> Mad {
        let mut head = [0; 256];
        put(&mut head, field::TRANSACTION_ID, &transaction.to_be_bytes());
        head
    }

    fn header(mad: &Mad) -> Header {
        Header::parse(mad).unwrap()
    }

    fn acknowledge(segment: u32, window: u32) -> Header {
        let (kind, flags) = (kind::ACKNOWLEDGE, flag::ACTIVE);
        Header { kind, flags, status: 0, segment, length: window }
    }

    fn number(mad: &Mad) -> u32 {
        header(mad).segment
    }

    #[test]
    fn what_fits_is_one_segment() {
        let mut transfers = Transfers::default();
        let sent = transfers.begin(7, head(1), vec![5; SEGMENT_DATA], Instant::now());
        assert_eq!(sent.len(), 1);
        assert_eq!(header(&sent[0]).flags, flag::ACTIVE | flag::FIRST | flag::LAST);
        assert_eq!(header(&sent[0]).length as usize, SEGMENT_DATA + CLASS_HEADER);
        assert!(transfers.0.is_empty());
    }

    #[test]
    fn segments_follow_the_window() {
        let now = Instant::now();
        let mut transfers = Transfers::default();
        let data: Vec<u8> = (0..SEGMENT_DATA * 3 + 10).map(|at| at as u8).collect();
        let first = transfers.begin(7, head(1), data.clone(), now);
        assert_eq!(header(&first[0]).flags, flag::ACTIVE | flag::FIRST);
        assert_eq!(header(&first[0]).length as usize, data.len() + 4 * CLASS_HEADER);
        assert!(transfers.hear(8, 1, &acknowledge(1, 9), now).is_empty(), "another port's");
        let next = transfers.hear(7, 1, &acknowledge(1, 3), now);
        let numbers: Vec<u32> = next.iter().map(number).collect();
        assert_eq!(numbers, [2, 3]);
        let last = transfers.hear(7, 1, &acknowledge(3, u32::MAX), now);
        assert_eq!(header(&last[0]).flags, flag::ACTIVE | flag::LAST);
        assert_eq!(header(&last[0]).length as usize, 10 + CLASS_HEADER);
        assert_eq!(last[0][sa::field::DATA][..10], data[SEGMENT_DATA * 3..]);
        assert!(transfers.hear(7, 1, &acknowledge(4, 9), now).is_empty());
        assert!(transfers.0.is_empty());
    }

    #[test]
    fn transfers_that_nobody_ends_are_bounded() {
        let now = Instant::now();
        let mut transfers = Transfers::default();
        for transaction in 0..MOST as u64 * 2 {
            transfers.begin(7, head(transaction), vec![0; 1000], now);
        }
        assert_eq!(transfers.0.len(), MOST_TO_ONE);
        assert_eq!(transfers.0[0].transaction, (MOST * 2 - MOST_TO_ONE) as u64, "the oldest went");
        for port in 8..8 + MOST as u16 * 2 {
            transfers.begin(port, head(1), vec![0; 1000], now);
        }
        assert_eq!(transfers.0.len(), MOST);
        let port = 8 + MOST as u16;
        let mut wild = acknowledge(4_000_000_000, 0);
        assert!(transfers.hear(port, 1, &wild, now).is_empty());
        assert_eq!(transfers.0.len(), MOST - 1);
        wild.kind = 77;
        assert!(transfers.hear(port + 1, 1, &wild, now).is_empty());
        assert_eq!(transfers.0.len(), MOST - 2);
        let mut left = now;
        while let Some(at) = transfers.next_deadline() {
            left = at;
            transfers.on_timeout(at);
        }
        assert_eq!(left, now + (RETRIES + 1) * RESPONSE_TIME);
    }

    #[test]
    fn without_an_acknowledge_it_is_repeated_and_then_given_up() {
        let begin = Instant::now();
        let mut transfers = Transfers::default();
        transfers.begin(7, head(1), vec![0; SEGMENT_DATA * 5], begin);
        transfers.hear(7, 1, &acknowledge(1, 4), begin);
        for step in 1..=RETRIES {
            let due = begin + step * RESPONSE_TIME;
            assert!(transfers.on_timeout(due - Duration::from_nanos(1)).is_empty());
            assert_eq!(transfers.next_deadline(), Some(due));
            let again = transfers.on_timeout(due);
            let numbers: Vec<u32> = again.iter().map(|(_, mad)| number(mad)).collect();
            assert_eq!(numbers, [2, 3, 4], "from behind the acknowledged one to the window's end");
        }
        let last = transfers.on_timeout(transfers.next_deadline().unwrap());
        let [(7, abort)] = last[..] else { panic!("{} datagrams", last.len()) };
        let said = header(&abort);
        assert_eq!((said.kind, said.status), (kind::ABORT, TOO_MANY_RETRIES));
        assert_eq!(be64(&abort, field::TRANSACTION_ID), 1);
        assert_eq!(transfers.next_deadline(), None);
    }

    #[test]
    fn progress_renews_patience_and_what_is_late_changes_nothing() {
        let begin = Instant::now();
        let mut transfers = Transfers::default();
        transfers.begin(7, head(1), vec![0; SEGMENT_DATA * 9], begin);
        transfers.hear(7, 1, &acknowledge(1, 4), begin);
        let later = begin + RESPONSE_TIME;
        assert_eq!(transfers.on_timeout(later).len(), 3);
        assert!(transfers.hear(7, 1, &acknowledge(3, 4), later).is_empty());
        let late = later + RESPONSE_TIME / 2;
        assert!(transfers.hear(7, 1, &acknowledge(1, 4), late).is_empty());
        assert!(transfers.hear(7, 1, &acknowledge(3, 4), late).is_empty());
        assert_eq!(transfers.next_deadline(), Some(later + RESPONSE_TIME));
        for _ in 0..RETRIES {
            let again = transfers.on_timeout(transfers.next_deadline().unwrap());
            assert_eq!((again.len(), number(&again[0].1)), (1, 4));
        }
    }

    /// A receiver as Linux has it (`mad_rmpp.c`): acknowledges at the window's end, at the last
    /// segment and whenever it gets again what it has.
    struct Receiver {
        got: Vec<Vec<u8>>,
        window: u32,
        /// Those that came ahead of a lost one.
        ahead: std::collections::BTreeMap<u32, Mad>,
        whole: bool,
    }

    impl Receiver {
        fn hear(&mut self, mad: &Mad) -> Option<Header> {
            let had = self.got.len() as u32;
            let segment = number(mad);
            if segment > self.window {
                return None;
            }
            if segment > had {
                self.ahead.insert(segment, *mad);
            }
            while let Some(mad) = self.ahead.remove(&(self.got.len() as u32 + 1)) {
                let said = header(&mad);
                self.whole = said.flags & flag::LAST != 0;
                let len = if self.whole { said.length as usize - CLASS_HEADER } else { 200 };
                self.got.push(mad[sa::field::DATA][..len].to_vec());
            }
            let got = self.got.len() as u32;
            if segment > had && got < self.window && !self.whole {
                return None;
            }
            if got == self.window {
                self.window += 4;
            }
            Some(acknowledge(got, self.window))
        }
    }

    #[test]
    fn a_table_arrives_whole_whatever_is_lost_on_the_way() {
        let data: Vec<u8> = (0..SEGMENT_DATA * 40 + 7).map(|at| (at / 3) as u8).collect();
        for seed in 1..=200_u64 {
            let mut state = seed;
            // One in eight is lost, of segments and acknowledges.
            let mut is_lost = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                (state >> 40) % 8 == 0
            };
            let mut now = Instant::now();
            let mut transfers = Transfers::default();
            let mut receiver =
                Receiver { got: Vec::new(), window: 1, ahead: Default::default(), whole: false };
            let mut wire: VecDeque<Mad> = transfers.begin(7, head(1), data.clone(), now).into();
            loop {
                while let Some(mad) = wire.pop_front() {
                    assert_eq!(header(&mad).kind, kind::DATA, "seed {seed}: given up");
                    if is_lost() {
                        continue;
                    }
                    if let Some(answer) = receiver.hear(&mad)
                        && !is_lost()
                    {
                        wire.extend(transfers.hear(7, 1, &answer, now));
                    }
                }
                let Some(at) = transfers.next_deadline() else { break };
                now = at;
                wire.extend(transfers.on_timeout(now).into_iter().map(|(_, mad)| mad));
            }
            assert_eq!(receiver.got.concat(), data, "seed {seed}");
        }
    }
}
