//! What waits in a slot, and its form there.

use super::memory::SGE_BYTES;
use crate::shelf::Shelf;
use crate::values::{Completion, RecvWr, Sge, TmInfo, WcFlags, WcOpcode, WcStatus};

/// What can wait in a slot.
pub trait Entry: Sized {
    /// Appends its form in a slot.
    fn encode(&self, slot: &mut Vec<u8>);
    /// What a slot holds; `None` where the bytes make no sense. A long list's store comes from
    /// `lists`.
    fn decode(slot: &[u8], lists: &Lists) -> Option<Self>;
}

/// Where lists of receive requests have their stores.
pub type Lists = Shelf<[Sge; 2]>;

/// Takes integers off the front of a slot.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

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
    pub(super) fn list(&mut self, entries: usize, list: &mut impl Extend<Sge>) -> Option<()> {
        if entries.checked_mul(SGE_BYTES)? > self.0.len() {
            return None;
        }
        for _ in 0..entries {
            list.extend([Sge { addr: self.u64()?, length: self.u32()?, lkey: self.u32()? }]);
        }
        Some(())
    }
}

pub(super) fn put_list(list: &[Sge], slot: &mut Vec<u8>) {
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
