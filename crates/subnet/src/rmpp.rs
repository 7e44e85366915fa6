//! The reliable multi-packet protocol (IBA 13.6), its sending half: tables longer than a datagram.
//!
//! What follows a lost segment is not sent again: who asked asks again. Transfers that nobody acknowledges give way to new ones.

use crate::Mad;
use crate::bytes::{be32, be64, header, put};
use std::collections::VecDeque;

const VERSION_AT: usize = 24;
const TYPE_AT: usize = 25;
const FLAGS_AT: usize = 26;
const SEGMENT_AT: usize = 28;
/// In data the payload's length, in acknowledges the last segment that may be sent.
const LENGTH_AT: usize = 32;
const DATA_AT: usize = 56;
const SEGMENT_DATA: usize = 256 - DATA_AT;
/// Of the class's own header, which counts as payload.
const CLASS_HEADER: usize = 20;

const ACTIVE: u8 = 1;
const FIRST: u8 = 2;
const LAST: u8 = 4;
/// RRespTime that says nothing.
const NO_TIME: u8 = 0x1f << 3;

const DATA: u8 = 1;
const ACKNOWLEDGE: u8 = 2;

/// Transfers at once.
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
        let mut flags = NO_TIME | ACTIVE;
        let mut length = 0;
        if first {
            flags |= FIRST;
            length = self.data.len() + self.segments() as usize * CLASS_HEADER;
        }
        if last {
            flags |= LAST;
            length = part.len() + CLASS_HEADER;
        }
        let mut mad = self.head;
        put(&mut mad, VERSION_AT, &[1, DATA, flags, 0]);
        put(&mut mad, SEGMENT_AT, &number.to_be_bytes());
        put(&mut mad, LENGTH_AT, &(length as u32).to_be_bytes());
        put(&mut mad, DATA_AT, part);
        mad
    }
}

/// Whether a datagram is about a transfer, not a request.
pub(crate) fn is_about_transfer(mad: &Mad) -> bool {
    mad[FLAGS_AT] & ACTIVE != 0 && mad[TYPE_AT] != DATA
}

impl Transfers {
    /// Begins to send `data` to `port` behind the headers of `head`; gives what is sent now.
    pub(crate) fn begin(&mut self, port: u16, head: Mad, data: Vec<u8>) -> Vec<Mad> {
        let transaction = be64(&head, header::TRANSACTION);
        self.end(port, transaction);
        let transfer = Transfer { port, transaction, head, data, sent: 1 };
        let first = transfer.segment(1);
        if transfer.segments() > 1 {
            if self.0.len() == MOST {
                self.0.pop_front();
            }
            self.0.push_back(transfer);
        }
        vec![first]
    }

    /// What port `port` says of a transfer; gives what is sent then.
    pub(crate) fn hear(&mut self, port: u16, mad: &Mad) -> Vec<Mad> {
        let transaction = be64(mad, header::TRANSACTION);
        let known =
            |transfer: &&mut Transfer| transfer.port == port && transfer.transaction == transaction;
        let Some(transfer) = self.0.iter_mut().find(known) else { return Vec::new() };
        let (acknowledged, window) = (be32(mad, SEGMENT_AT), be32(mad, LENGTH_AT));
        let total = transfer.segments();
        if mad[TYPE_AT] != ACKNOWLEDGE || acknowledged >= total || acknowledged > transfer.sent {
            // Stopped, aborted, done, or of something that was not sent.
            self.end(port, transaction);
            return Vec::new();
        }
        let until = window.min(total);
        let next: Vec<Mad> =
            (transfer.sent + 1..=until).map(|number| transfer.segment(number)).collect();
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
        put(&mut head, header::TRANSACTION, &transaction.to_be_bytes());
        head
    }

    fn acknowledge(transaction: u64, segment: u32, window: u32) -> Mad {
        let mut mad = head(transaction);
        put(&mut mad, VERSION_AT, &[1, ACKNOWLEDGE, ACTIVE, 0]);
        put(&mut mad, SEGMENT_AT, &segment.to_be_bytes());
        put(&mut mad, LENGTH_AT, &window.to_be_bytes());
        mad
    }

    #[test]
    fn what_fits_is_one_segment() {
        let mut transfers = Transfers::default();
        let sent = transfers.begin(7, head(1), vec![5; SEGMENT_DATA]);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0][FLAGS_AT] & 7, ACTIVE | FIRST | LAST);
        assert_eq!(be32(&sent[0], LENGTH_AT) as usize, SEGMENT_DATA + CLASS_HEADER);
        assert!(transfers.0.is_empty());
    }

    #[test]
    fn segments_follow_the_window() {
        let mut transfers = Transfers::default();
        let data: Vec<u8> = (0..SEGMENT_DATA * 3 + 10).map(|at| at as u8).collect();
        let first = transfers.begin(7, head(1), data.clone());
        assert_eq!(first[0][FLAGS_AT] & 7, ACTIVE | FIRST);
        assert_eq!(be32(&first[0], LENGTH_AT) as usize, data.len() + 4 * CLASS_HEADER);
        assert!(transfers.hear(8, &acknowledge(1, 1, 9)).is_empty(), "another port's");
        let next = transfers.hear(7, &acknowledge(1, 1, 3));
        let numbers: Vec<u32> = next.iter().map(|mad| be32(mad, SEGMENT_AT)).collect();
        assert_eq!(numbers, [2, 3]);
        let last = transfers.hear(7, &acknowledge(1, 3, u32::MAX));
        assert_eq!(last[0][FLAGS_AT] & 7, ACTIVE | LAST);
        assert_eq!(be32(&last[0], LENGTH_AT) as usize, 10 + CLASS_HEADER);
        assert_eq!(last[0][DATA_AT..DATA_AT + 10], data[SEGMENT_DATA * 3..]);
        assert!(transfers.hear(7, &acknowledge(1, 4, 9)).is_empty());
        assert!(transfers.0.is_empty());
    }

    #[test]
    fn transfers_that_nobody_ends_are_bounded() {
        let mut transfers = Transfers::default();
        for transaction in 0..MOST as u64 * 2 {
            transfers.begin(7, head(transaction), vec![0; 1000]);
        }
        assert_eq!(transfers.0.len(), MOST);
        let mut wild = acknowledge(MOST as u64, 4_000_000_000, 0);
        assert!(transfers.hear(7, &wild).is_empty());
        wild[TYPE_AT] = 77;
        assert!(transfers.hear(7, &wild).is_empty());
    }
}
