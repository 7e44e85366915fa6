//! The rings that other processes write and this one reads, in turns of progress.

use super::in_ring::InRing;
use super::record::{Ends, HEAD_LEN, LONG, MAX_RECORD_LEN, RING_MTU, SAME_ENDS, packet_at, parse};
use crate::adapter::directory::Reader;
use shm::{Record, RingReader};
use transport::executor::InTransit as _;
use transport::{Routing, Rx};
use wire::{BTH_LEN, Opcode, SHORT_PACKET, Short};

/// Takes a packet; `false`: not now.
pub(crate) type Each<'a> = dyn FnMut(&Rx<'_>) -> bool + 'a;

/// Packets that one turn takes.
pub(crate) const PACKETS_A_TURN: usize = 256;
/// Bytes of payload after which a turn takes no more.
const BYTES_A_TURN: usize = 256 << 10;

/// What is known of a ring's writer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It writes this ring.
    Writes,
    /// It has announced a ring that could not be opened, if it is not this one.
    MayHaveEnded,
    /// It has ended with this one, and another is read.
    HasEnded,
}

/// The ring from one other process.
pub(crate) struct RingFrom {
    slot: u16,
    directory: Reader,
    reader: RingReader,
    /// Of the latest record that had any.
    ends: Option<Ends>,
    standing: Standing,
}

impl RingFrom {
    /// The ring of the device with this directory, at `slot`.
    pub(crate) fn new(slot: u16, directory: Reader, reader: RingReader) -> RingFrom {
        RingFrom { slot, directory, reader, ends: None, standing: Standing::Writes }
    }

    /// What the oldest packet does, and the queue pair that it is for, if there is one. `None` when
    /// the ring holds what is none.
    fn peek(&mut self) -> Option<Option<(Opcode, u32)>> {
        let Some(found) = self.reader.peek().ok()? else { return Some(None) };
        let (opcode, dest_qp) = self.begin(found)?;
        Some(Some((opcode?, dest_qp)))
    }

    /// What the packet of a record does, if it is known, and the queue pair that it is for; `None`
    /// for what is no packet.
    fn begin(&self, (at, record): (usize, Record)) -> Option<(Option<Opcode>, u32)> {
        let (packet, mut begin) = (packet_at(record.tag)?, [0; BTH_LEN]);
        if record.len < packet + BTH_LEN {
            return None;
        }
        self.reader.read(at + packet, &mut begin);
        Some(wire::peek(&begin))
    }

    /// Takes the oldest packet if it is for this queue pair and `f` takes it: the bytes of its
    /// payload. `None` when the ring holds what is none.
    fn take(&mut self, qpn: u32, record: &mut [u8], f: &mut Each<'_>) -> Option<Option<usize>> {
        let RingFrom { reader, ends, .. } = self;
        let Some((at, Record { len, tag })) = reader.peek().ok()? else { return Some(None) };
        let long = len > LONG;
        let (head, scratch) = record.split_at_mut_checked(if long { HEAD_LEN } else { len })?;
        reader.read(at, head);
        let (headers, payload, before) = parse(tag, head, ends)?;
        if headers.bth.dest_qp != qpn {
            return Some(None);
        }
        let Ends { src, dst, traffic_class, hop_limit } = (*ends)?;
        let rx = Rx {
            headers: &headers,
            payload,
            in_transit: None,
            src,
            dst,
            traffic_class,
            hop_limit,
            vlan: None,
            routing: Routing::Ip,
            mtu: Some(RING_MTU),
        };
        let (payload_len, taken) = match long {
            false => (payload.len(), f(&rx)),
            true => {
                let in_ring = InRing::new(reader, (at, len), (before, &headers), scratch)?;
                (in_ring.bytes(), f(&Rx { payload: &[], in_transit: Some(&in_ring), ..rx }))
            }
        };
        if !taken {
            return Some(None);
        }
        reader.take(len);
        Some(Some(payload_len))
    }

    /// Has `f` take the oldest packet, if that is a short one between the ends of the packet before
    /// it, and no SEND with another packet for its queue pair behind it: several are answered at
    /// once. Whether it did.
    fn take_short(
        &mut self,
        packet: &mut [u8; SHORT_PACKET],
        f: impl FnOnce(&Ends, &Short<'_>) -> bool,
    ) -> bool {
        let (Ok(Some((at, Record { len, tag }))), Some(ends)) = (self.reader.peek(), &self.ends)
        else {
            return false;
        };
        let Some(packet) = packet.get_mut(..len).filter(|_| tag == SAME_ENDS) else { return false };
        self.reader.read(at, packet);
        let Some(short) = Short::parse(packet) else { return false };
        let is_alone = match &short {
            Short::Send(send, _) => !self.has_more_for(send.dest_qp, len),
            Short::Ack(_) => true,
        };
        let taken = is_alone && f(ends, &short);
        if taken {
            self.reader.take(len);
        }
        taken
    }

    /// Whether the packet behind the oldest, whose record is so long, may be for this queue pair.
    fn has_more_for(&self, qpn: u32, len: usize) -> bool {
        match self.reader.peek_behind(len) {
            Ok(None) => false,
            Ok(Some(behind)) => self.begin(behind).is_none_or(|(_, dest_qp)| dest_qp == qpn),
            Err(_) => true,
        }
    }

    /// Whether its writer has ended, or ended with it, and nothing waits in it.
    fn is_over(&self) -> bool {
        let has_ended = self.standing == Standing::HasEnded || self.directory.is_over();
        has_ended && !self.reader.has_more()
    }
}

/// All rings that are read, by one thread at a time.
pub(crate) struct Incoming {
    /// Those of one device in the order that it made them.
    rings: Vec<RingFrom>,
    /// The one that is read first in the next turn.
    next: usize,
    /// One was ended since it was last asked.
    broke: bool,
    record: Box<[u8]>,
}

impl Incoming {
    /// None yet.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new() -> std::io::Result<Incoming> {
        let mut record = Vec::new();
        record
            .try_reserve_exact(HEAD_LEN + MAX_RECORD_LEN)
            .map_err(|_| rustix::io::Errno::NOMEM)?;
        record.resize(HEAD_LEN + MAX_RECORD_LEN, 0);
        let record = record.into_boxed_slice();
        Ok(Incoming { rings: Vec::new(), next: 0, broke: false, record })
    }

    /// Whether there is any.
    pub(crate) fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// The device at `slot` has announced a ring, and may not write the one that is read any more.
    /// Whether the new one may be looked at: not while one before holds packets, so that two of a
    /// device do at most, and that one's are taken first.
    pub(crate) fn doubt(&mut self, slot: u16) -> bool {
        let mut of_slot = self.rings.iter_mut().filter(|known| known.slot == slot);
        of_slot.all(|known| {
            if known.standing == Standing::HasEnded {
                return known.is_over();
            }
            known.standing = Standing::MayHaveEnded;
            true
        })
    }

    /// Begins to read `ring`, after which its device writes no earlier one; one that is read
    /// already is read on.
    pub(crate) fn add(&mut self, ring: RingFrom) {
        let is_new = match ring.slot < registry::SLOTS && self.rings.try_reserve(1).is_ok() {
            true => ring.reader.attach(),
            // Where there is no memory it stays unattached, and packets go by UDP.
            false => return,
        };
        let of_slot = self.rings.iter_mut().filter(|known| known.slot == ring.slot);
        for known in of_slot.filter(|known| known.standing != Standing::HasEnded) {
            // The descriptor that was announced for the ring before may have become this one's by
            // the time it was opened.
            known.standing = if is_new { Standing::HasEnded } else { Standing::Writes };
        }
        if is_new {
            self.rings.push(ring);
        }
    }

    /// Ends with those that are over; whether there were any, or one broke since the last time.
    pub(in crate::adapter) fn forget_those_over(&mut self) -> bool {
        let before = self.rings.len();
        self.rings.retain(|known| !known.is_over());
        std::mem::take(&mut self.broke) || self.rings.len() != before
    }

    /// The slots of the devices that write them.
    pub(in crate::adapter) fn slots(&self) -> impl Iterator<Item = u16> {
        let read = self.rings.iter().filter(|ring| ring.standing == Standing::Writes);
        read.map(|ring| ring.slot)
    }

    /// Whether a packet waits in any.
    pub(crate) fn has_more(&self) -> bool {
        self.rings.iter().any(|ring| ring.reader.has_more())
    }

    /// Has `f` take a packet that waits, if it is short and nothing has to be looked at before it.
    /// Whether it did.
    pub(crate) fn take_short(&mut self, f: impl FnOnce(&Ends, &Short<'_>) -> bool) -> bool {
        let Incoming { rings, next, record, .. } = self;
        let has_more = |ring: &RingFrom| ring.reader.has_more();
        let at = match rings.get(*next) {
            Some(ring) if has_more(ring) => Some(*next),
            _ => rings.iter().position(has_more),
        };
        let Some(at) = at else { return false };
        let may = rings.iter().all(|ring| ring.standing != Standing::HasEnded);
        let Some(packet) = record.first_chunk_mut().filter(|_| may) else { return false };
        let taken = rings[at].take_short(packet, f);
        if taken {
            *next = if at + 1 < rings.len() { at + 1 } else { 0 };
        }
        taken
    }

    /// Hands out what a turn takes, ring by ring and in rows for one queue pair, until `visit`
    /// takes no more; answers with the packets. A ring that holds what is no packet is not read any
    /// more.
    pub(crate) fn receive(&mut self, visit: &mut dyn FnMut(&mut Row<'_>) -> bool) -> usize {
        let Incoming { rings, next, broke, record } = self;
        let mut taken = Share { packets: 0, bytes: 0 };
        let mut broken = None;
        let count = rings.len();
        let has_former = rings.iter().any(|ring| ring.standing == Standing::HasEnded);
        let mut goes_on = true;
        for at in 0..count {
            let at = (*next + at) % count;
            if has_former && waits_for_another(rings, at) {
                continue;
            }
            while goes_on && !taken.is_over() {
                let (first, qpn) = match rings[at].peek() {
                    Some(Some(first)) => first,
                    Some(None) => break,
                    None => {
                        broken = Some(at);
                        break;
                    }
                };
                let mut row = Row { rings, at, qpn, first, record, taken, broken: false };
                goes_on = visit(&mut row);
                let stuck = row.taken.packets == taken.packets;
                taken = row.taken;
                if row.broken {
                    broken = Some(at);
                    break;
                }
                // What nobody takes now waits for the next turn.
                if stuck {
                    break;
                }
            }
        }
        *next = if count > 0 { (*next + 1) % count } else { 0 };
        if let Some(at) = broken {
            rings.remove(at);
            (*next, *broke) = (0, true);
        }
        taken.packets
    }
}

/// Whether a ring that the device of this one wrote before still holds packets.
fn waits_for_another(rings: &[RingFrom], at: usize) -> bool {
    let mut before = rings[..at].iter().filter(|other| other.slot == rings[at].slot);
    before.any(|other| other.reader.has_more())
}

/// What a turn has taken.
#[derive(Clone, Copy)]
struct Share {
    packets: usize,
    bytes: usize,
}

impl Share {
    /// Whether it takes no more.
    fn is_over(self) -> bool {
        self.packets >= PACKETS_A_TURN || self.bytes >= BYTES_A_TURN
    }
}

/// The oldest packets of a ring, as far as they are for one queue pair.
pub(crate) struct Row<'a> {
    rings: &'a mut [RingFrom],
    /// Which of them.
    at: usize,
    qpn: u32,
    /// What the first of them does.
    first: Opcode,
    record: &'a mut [u8],
    taken: Share,
    broken: bool,
}

impl Row<'_> {
    /// The queue pair.
    pub(crate) fn dest_qp(&self) -> u32 {
        self.qpn
    }

    /// Whether the first of them is a request.
    pub(crate) fn begins_with_request(&self) -> bool {
        !self.first.is_response()
    }

    /// Hands out those that the turn takes, until `f` takes no more.
    pub(crate) fn each(&mut self, f: &mut Each<'_>) {
        while !self.taken.is_over() {
            match self.rings[self.at].take(self.qpn, self.record, f) {
                Some(Some(bytes)) => {
                    self.taken.packets += 1;
                    self.taken.bytes += bytes;
                }
                Some(None) => return,
                None => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    /// Whether nothing waits in any ring.
    pub(crate) fn was_all(&self) -> bool {
        // Its own first: as long as more comes by that, there is no need to look further.
        let has_more = |ring: &RingFrom| ring.reader.has_more();
        !has_more(&self.rings[self.at]) && !self.rings.iter().any(has_more)
    }
}

#[cfg(test)]
mod tests;
