//! Multicast groups: joined and left.

use super::request::Command;
use crate::base::ffi::{INVALID, Res};
use crate::ucma::layout::{Fields, IN6_LEN, STORAGE_LEN};
use cma::Addr;

impl Command<'_> {
    pub(super) fn join_ip(&self) -> Res<()> {
        let bytes = self.read::<48>()?;
        let fields = Fields(&bytes);
        let addr = fields.addr(16, IN6_LEN);
        self.join(fields.u64(0), fields.u64(8), fields.u32(44), addr)
    }

    pub(super) fn join_storage(&self) -> Res<()> {
        let bytes = self.read::<152>()?;
        let fields = Fields(&bytes);
        let addr = fields.addr(24, STORAGE_LEN);
        // Full member, or one that only sends.
        if usize::from(fields.u16(20)) != addr.len() || fields.u16(22) > 1 {
            return Err(INVALID);
        }
        self.join(fields.u64(0), fields.u64(8), fields.u32(16), addr)
    }

    fn join(&self, response: u64, uid: u64, handle: u32, addr: Addr) -> Res<()> {
        self.room_for(4)?;
        if addr.is_empty() {
            return Err(INVALID);
        }
        let key = self.key(handle)?;
        let membership = self.with(|cma| cma.join(key, &addr, uid))?;
        self.answer(response, &membership.to_ne_bytes(), 4).inspect_err(|_| {
            let _ = self.with(|cma| cma.leave(self.channel.id(), membership));
        })
    }

    pub(super) fn leave(&self) -> Res<()> {
        self.room_for(4)?;
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let reported = self.with(|cma| cma.leave(self.channel.id(), fields.u32(8)))?;
        self.answer(fields.u64(0), &reported.to_ne_bytes(), 4)
    }
}
