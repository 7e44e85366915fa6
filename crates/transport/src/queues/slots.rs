//! Queues whose waiting entries live in memory that a front end provides.
//!
//! A program may bring the memory of its queues (ibv_alloc_parent_domain(3)). What waits is then encoded there, in slots of
//! fixed size, and nowhere else: receive requests and completions whole, of a send request its gather list or inline
//! data. The program may overwrite or unmap it at any time, so what comes back is checked like anything from outside
//! and a slot that does not make sense is [`SlotLost`]. Integers are in the order of the host; the form of a slot is ours
//! and promised to nobody.

use crate::error::Result as HcaResult;
use crate::shelf::{Shelf, list_of, queue_of};
use crate::values::{
    Completion, QpCap, RecvWr, SendWr, SgList, Sge, TmInfo, WcFlags, WcOpcode, WcStatus,
};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use umem::{AccessError, DmaSpace};

/// Alignment that slots are made for, in bytes: a cache line.
pub const SLOT_ALIGN: u64 = 64;
/// Bytes of one scatter/gather entry in a slot.
const SGE_BYTES: usize = 16;
/// Bytes before a receive request's list: identifier and number of entries.
const RECV_HEAD_BYTES: usize = 16;
/// Lists of requests that were taken from a queue and are not done: a message that fills one, and what follows it.
const LISTS_OUT: usize = 4;
/// Entries of the longest gather list that is read without asking for memory: what a device allows.
const LONGEST_LIST: usize = 32;
/// Bytes of a completion in a slot.
const COMPLETION_BYTES: usize = 8 + 8 + 4 + 8 + 7 * 4;

/// A slot is unreadable, unwritable or holds what was never put there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the queue's memory is gone or was overwritten")]
pub struct SlotLost;

/// Memory for one queue, or for both queues of a QP. Whoever provides it keeps it until the object is destroyed.
#[derive(Clone)]
pub struct QueueMemory {
    space: Arc<dyn DmaSpace>,
    addr: u64,
    len: u64,
}

impl std::fmt::Debug for QueueMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueueMemory {{ {:#x}+{:#x} }}", self.addr, self.len)
    }
}

impl QueueMemory {
    /// `len` bytes at `addr` of `space`.
    pub fn new(space: Arc<dyn DmaSpace>, addr: u64, len: u64) -> QueueMemory {
        QueueMemory { space, addr, len }
    }

    /// Bytes that the queues of a QP take: the send queue's slots, then the receive queue's.
    pub fn bytes_of_qp(cap: &QpCap) -> u64 {
        send_queue_bytes(cap) + u64::from(cap.max_recv_wr) * recv_slot(cap.max_recv_sge)
    }

    /// Bytes that a shared receive queue takes.
    pub fn bytes_of_srq(max_wr: u32, max_sge: u32) -> u64 {
        u64::from(max_wr) * recv_slot(max_sge)
    }

    /// Bytes that a completion queue of `cqe` entries takes.
    pub fn bytes_of_cq(cqe: u32) -> u64 {
        places(cqe) as u64 * whole_slot(COMPLETION_BYTES)
    }

    /// What follows the first `at` bytes.
    fn after(&self, at: u64) -> QueueMemory {
        let at = at.min(self.len);
        QueueMemory { space: self.space.clone(), addr: self.addr + at, len: self.len - at }
    }

    fn check(&self, at: u64, len: usize) -> Result<u64, AccessError> {
        match at.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(self.addr + at),
            _ => Err(AccessError::OutOfRange),
        }
    }

    fn read(&self, at: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.space.read(self.check(at, dst.len())?, dst)
    }

    fn write(&self, at: u64, src: &[u8]) -> Result<(), AccessError> {
        self.space.write(self.check(at, src.len())?, src)
    }
}

/// Places of a completion queue of `cqe` entries: drivers round up to a power of two with one to spare, and programs that ask for the
/// bare minimum live on it (perftest's latency tests ask for 1 and let 2 completions wait).
pub fn places(cqe: u32) -> usize {
    (cqe as usize + 1).next_power_of_two()
}

fn whole_slot(bytes: usize) -> u64 {
    (bytes as u64).max(1).next_multiple_of(SLOT_ALIGN)
}

fn recv_slot(max_sge: u32) -> u64 {
    whole_slot(RECV_HEAD_BYTES + max_sge as usize * SGE_BYTES)
}

fn send_slot(cap: &QpCap) -> u64 {
    whole_slot((cap.max_send_sge as usize * SGE_BYTES).max(cap.max_inline_data as usize))
}

fn send_queue_bytes(cap: &QpCap) -> u64 {
    u64::from(cap.max_send_wr) * send_slot(cap)
}

/// What can wait in a slot.
pub trait Entry: Sized {
    /// Appends its form in a slot.
    fn encode(&self, slot: &mut Vec<u8>);
    /// What a slot holds; `None` where the bytes make no sense. A long list's store comes from `lists`.
    fn decode(slot: &[u8], lists: &Lists) -> Option<Self>;
}

/// Where lists of receive requests have their stores.
pub type Lists = Arc<Shelf<[Sge; 2]>>;

/// A queue of values: in the engine's own memory, or in slots.
pub struct Fifo<T>(Store<T>);

enum Store<T> {
    Own(VecDeque<T>),
    Slots(Slots<T>),
}

struct Slots<T> {
    memory: QueueMemory,
    slot_bytes: u64,
    places: usize,
    /// The oldest entry's place.
    head: usize,
    len: usize,
    scratch: Vec<u8>,
    lists: Lists,
    holds: PhantomData<T>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Fifo<T> {
        Fifo(Store::Own(VecDeque::new()))
    }
}

impl<T: Entry> Fifo<T> {
    /// A queue of `places` in `memory`, which is large enough for slots of `slot_bytes`; its entries have lists of `max_sge`.
    fn in_memory(
        memory: QueueMemory,
        slot_bytes: u64,
        places: usize,
        max_sge: u32,
    ) -> HcaResult<Fifo<T>> {
        Ok(Fifo(Store::Slots(Slots {
            memory,
            slot_bytes,
            places,
            head: 0,
            len: 0,
            scratch: list_of(slot_bytes as usize)?,
            lists: Shelf::new(LISTS_OUT, max_sge as usize)?,
            holds: PhantomData,
        })))
    }

    /// A queue of `places` in the engine's own memory.
    pub fn own(places: usize) -> HcaResult<Fifo<T>> {
        Ok(Fifo(Store::Own(queue_of(places)?)))
    }

    /// Entries that wait.
    pub fn len(&self) -> usize {
        match &self.0 {
            Store::Own(own) => own.len(),
            Store::Slots(slots) => slots.len,
        }
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends an entry, for which the caller knows room.
    ///
    /// # Errors
    /// [`SlotLost`] when the memory is gone.
    pub fn push_back(&mut self, entry: T) -> Result<(), SlotLost> {
        match &mut self.0 {
            Store::Own(own) => {
                own.push_back(entry);
                Ok(())
            }
            Store::Slots(slots) => slots.push_back(&entry),
        }
    }

    /// Takes the oldest entry; a lost one is taken as well.
    pub fn pop_front(&mut self) -> Option<Result<T, SlotLost>> {
        match &mut self.0 {
            Store::Own(own) => {
                let entry = own.pop_front();
                if own.is_empty() {
                    // It begins anew at its first place, so that a queue that is never full touches little memory.
                    own.clear();
                }
                entry.map(Ok)
            }
            Store::Slots(slots) => slots.pop_front(),
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        match &mut self.0 {
            Store::Own(own) => own.clear(),
            Store::Slots(slots) => (slots.head, slots.len) = (0, 0),
        }
    }

    /// Keeps the entries that `keep` is for, in their order.
    ///
    /// # Errors
    /// [`SlotLost`].
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) -> Result<(), SlotLost> {
        match &mut self.0 {
            Store::Own(own) => {
                own.retain(|entry| keep(entry));
                Ok(())
            }
            Store::Slots(slots) => {
                for _ in 0..slots.len {
                    match slots.pop_front() {
                        Some(Ok(entry)) if keep(&entry) => slots.push_back(&entry)?,
                        Some(Ok(_)) | None => {}
                        Some(Err(lost)) => return Err(lost),
                    }
                }
                Ok(())
            }
        }
    }

    /// Moves everything into `to`.
    ///
    /// # Errors
    /// [`SlotLost`].
    pub fn move_to(&mut self, mut to: Fifo<T>) -> Result<(), SlotLost> {
        while let Some(entry) = self.pop_front() {
            to.push_back(entry?)?;
        }
        *self = to;
        Ok(())
    }
}

impl Fifo<Completion> {
    /// The ring of a completion queue of `cqe` entries.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn of_cq(cqe: u32, memory: Option<QueueMemory>) -> HcaResult<Fifo<Completion>> {
        let places = places(cqe);
        match memory {
            Some(memory) => Fifo::in_memory(memory, whole_slot(COMPLETION_BYTES), places, 0),
            None => Fifo::own(places),
        }
    }
}

impl Fifo<RecvWr> {
    /// The requests of a receive queue.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn of_receives(
        max_wr: u32,
        max_sge: u32,
        memory: Option<QueueMemory>,
    ) -> HcaResult<Fifo<RecvWr>> {
        match memory {
            Some(memory) => Fifo::in_memory(memory, recv_slot(max_sge), max_wr as usize, max_sge),
            None => Fifo::own(max_wr as usize),
        }
    }
}

impl<T: Entry> Slots<T> {
    fn at(&self, index: usize) -> u64 {
        ((self.head + index) % self.places.max(1)) as u64 * self.slot_bytes
    }

    fn push_back(&mut self, entry: &T) -> Result<(), SlotLost> {
        self.scratch.clear();
        entry.encode(&mut self.scratch);
        if self.len >= self.places || self.scratch.len() as u64 > self.slot_bytes {
            return Err(SlotLost);
        }
        self.memory.write(self.at(self.len), &self.scratch).map_err(|_| SlotLost)?;
        self.len += 1;
        Ok(())
    }

    fn pop_front(&mut self) -> Option<Result<T, SlotLost>> {
        if self.len == 0 {
            return None;
        }
        self.scratch.resize(self.slot_bytes as usize, 0);
        let read = self.memory.read(self.at(0), &mut self.scratch);
        self.head = (self.head + 1) % self.places;
        self.len -= 1;
        Some(read.ok().and_then(|()| T::decode(&self.scratch, &self.lists)).ok_or(SlotLost))
    }
}

/// Takes integers off the front of a slot.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }
    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_ne_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_ne_bytes)
    }
    fn list(&mut self, entries: usize, list: &mut impl Extend<Sge>) -> Option<()> {
        if entries.checked_mul(SGE_BYTES)? > self.0.len() {
            return None;
        }
        for _ in 0..entries {
            list.extend([Sge { addr: self.u64()?, length: self.u32()?, lkey: self.u32()? }]);
        }
        Some(())
    }
}

fn put_list(list: &[Sge], slot: &mut Vec<u8>) {
    for sge in list {
        slot.extend(sge.addr.to_ne_bytes());
        slot.extend(sge.length.to_ne_bytes());
        slot.extend(sge.lkey.to_ne_bytes());
    }
}

impl Entry for RecvWr {
    fn encode(&self, slot: &mut Vec<u8>) {
        slot.extend(self.wr_id.to_ne_bytes());
        slot.extend((self.scatter.len() as u64).to_ne_bytes());
        put_list(&self.scatter, slot);
    }

    fn decode(slot: &[u8], lists: &Lists) -> Option<RecvWr> {
        let mut reader = Reader(slot);
        let (wr_id, entries) = (reader.u64()?, reader.u64()?);
        let entries = usize::try_from(entries).ok().filter(|&entries| entries <= slot.len())?;
        let mut scatter = lists.lend(entries).ok()?;
        reader.list(entries, &mut scatter)?;
        Some(RecvWr { wr_id, scatter })
    }
}

impl Entry for Completion {
    fn encode(&self, slot: &mut Vec<u8>) {
        slot.extend(self.wr_id.to_ne_bytes());
        slot.extend(self.timestamp_ns.to_ne_bytes());
        slot.extend([self.status as u8, self.opcode as u8, self.sl, u8::from(self.solicited)]);
        slot.extend(self.tm.tag.to_ne_bytes());
        for word in [
            self.tm.app_ctx,
            self.vendor_err,
            self.byte_len,
            self.imm_or_key,
            self.qp_num,
            self.src_qp,
            self.flags.bits(),
        ] {
            slot.extend(word.to_ne_bytes());
        }
    }

    fn decode(slot: &[u8], _: &Lists) -> Option<Completion> {
        let mut reader = Reader(slot);
        let (wr_id, timestamp_ns) = (reader.u64()?, reader.u64()?);
        let [status, opcode, sl, solicited] = reader.bytes()?;
        Some(Completion {
            wr_id,
            timestamp_ns,
            status: WcStatus::from_bits(status.into())?,
            opcode: WcOpcode::from_bits(opcode.into())?,
            sl,
            solicited: solicited != 0,
            tm: TmInfo { tag: reader.u64()?, app_ctx: reader.u32()? },
            vendor_err: reader.u32()?,
            byte_len: reader.u32()?,
            imm_or_key: reader.u32()?,
            qp_num: reader.u32()?,
            src_qp: reader.u32()?,
            src_ip: None,
            vlan: None,
            flags: WcFlags::from_bits(reader.u32()?)?,
        })
    }
}

/// The send queue's slots: each holds the gather list or the inline data of one request.
pub(crate) struct SendSlots {
    memory: QueueMemory,
    slot_bytes: u64,
    places: u64,
    /// Requests stored so far. They leave in order, and no more than `places` are in the queue.
    stored: u64,
    scratch: Vec<u8>,
}

impl SendSlots {
    fn new(memory: QueueMemory, cap: &QpCap) -> HcaResult<SendSlots> {
        let (places, slot_bytes) = (u64::from(cap.max_send_wr), send_slot(cap));
        let scratch = list_of(slot_bytes as usize)?;
        Ok(SendSlots { memory, slot_bytes, places, stored: 0, scratch })
    }

    /// Moves a request's payload into the next slot.
    pub fn store(&mut self, wr: &mut SendWr) -> Result<SendSlot, SlotLost> {
        use crate::values::Payload;
        let bytes = &mut self.scratch;
        bytes.clear();
        let kind = match &wr.payload {
            Payload::Inline(data) => {
                bytes.extend_from_slice(data);
                SlotKind::Inline
            }
            Payload::Gather(list) => {
                put_list(list, bytes);
                SlotKind::Gather(list.len())
            }
        };
        if bytes.len() as u64 > self.slot_bytes {
            return Err(SlotLost);
        }
        let at = self.stored % self.places.max(1) * self.slot_bytes;
        self.memory.write(at, bytes).map_err(|_| SlotLost)?;
        self.stored += 1;
        wr.payload = Payload::Gather(SgList::new());
        Ok(SendSlot { memory: self.memory.clone(), at, len: bytes.len(), kind })
    }
}

enum SlotKind {
    Inline,
    Gather(usize),
}

/// Where the payload of one send request is described.
pub(crate) struct SendSlot {
    memory: QueueMemory,
    at: u64,
    len: usize,
    kind: SlotKind,
}

impl SendSlot {
    /// The gather list; `None` where the data is inline.
    pub fn gather(&self) -> Option<Result<SmallVec<[Sge; LONGEST_LIST]>, SlotLost>> {
        let SlotKind::Gather(entries) = self.kind else { return None };
        let mut bytes: SmallVec<[u8; LONGEST_LIST * SGE_BYTES]> = SmallVec::new();
        bytes.resize(self.len, 0);
        let mut list = SmallVec::new();
        let read = self.memory.read(self.at, &mut bytes).ok();
        let read = read.and_then(|()| Reader(&bytes).list(entries, &mut list));
        Some(read.map(|()| list).ok_or(SlotLost))
    }

    /// Copies inline data out, from `at` on.
    pub fn inline(&self, at: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        match at.checked_add(dst.len() as u64) {
            Some(end) if end <= self.len as u64 => self.memory.read(self.at + at, dst),
            _ => Err(AccessError::OutOfRange),
        }
    }

    /// Whether it brings its bytes along.
    pub fn is_inline(&self) -> bool {
        matches!(self.kind, SlotKind::Inline)
    }
}

/// Both queues of a QP in one piece of memory.
pub(crate) fn split(memory: QueueMemory, cap: &QpCap) -> HcaResult<(SendSlots, Fifo<RecvWr>)> {
    let receives = memory.after(send_queue_bytes(cap));
    Ok((
        SendSlots::new(memory, cap)?,
        Fifo::of_receives(cap.max_recv_wr, cap.max_recv_sge, Some(receives))?,
    ))
}

#[cfg(test)]
mod tests;
