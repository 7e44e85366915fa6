//! Ids of the connection manager: made, ended, and moved to another channel.

use super::request::{Command, errno};
use crate::base::ffi::{INVALID, Res};
use crate::ucma::layout::Fields;
use std::os::fd::RawFd;
use std::time::Instant;

impl Command<'_> {
    pub(super) fn create_id(&self) -> Res<()> {
        self.room_for(4)?;
        let bytes = self.read::<24>()?;
        let fields = Fields(&bytes);
        let (space, qp_type) = (fields.u16(16), fields.u8(18));
        let uid = fields.u64(0);
        let handle = self.with(|cma| cma.create(self.channel.id(), uid, space, qp_type))?;
        self.answer(fields.u64(8), &handle.to_ne_bytes(), 4).inspect_err(|_| {
            let _ = self.end(handle);
        })
    }

    fn end(&self, handle: u32) -> Res<u32> {
        let key = self.key(handle)?;
        let reported = self.with(|cma| cma.destroy(key, Instant::now()))?;
        self.service.free_ports(key);
        Ok(reported)
    }

    pub(super) fn destroy_id(&self) -> Res<()> {
        self.room_for(4)?;
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let reported = self.end(fields.u32(8))?;
        self.answer(fields.u64(0), &reported.to_ne_bytes(), 4)
    }

    pub(super) fn migrate(&self) -> Res<()> {
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let from = crate::ucma::channel_of(fields.u32(12) as RawFd)?;
        if !std::ptr::eq(from.engine(), self.channel.engine()) {
            return Err(INVALID);
        }
        let to = self.channel.id();
        let reported = self
            .service
            .with(from.id(), fields.u32(12) as RawFd, |cma| {
                let key = cma.key(from.id(), fields.u32(8))?;
                cma.migrate(key, to)
            })
            .map_err(errno)?;
        self.channel.take_from(&from);
        self.answer(fields.u64(0), &reported.to_ne_bytes(), 4)
    }
}
