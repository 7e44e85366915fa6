//! The executor: every check and every effect of an incoming operation, in one place (D3).
//!
//! It knows no packets. The packet responder calls it, the same-host path calls it, a PCI front end
//! may. What it refuses it refuses with a typed [`Refusal`]; the caller turns that into a NAK, a
//! completion or silence.

mod arriving;
mod at_home;
mod inbox;
mod landing;
mod published;
mod refusal;
mod target;

pub use arriving::{Arriving, InTransit};
pub use at_home::AtHome;
pub use inbox::{Inbox, Landed};
pub use landing::Landing;
pub use published::Published;
pub use refusal::Refusal;
pub use target::Target;

use crate::keys::{Alarm, KeyTable};
use crate::sabotage::{self, Sabotage};
use crate::values::{Access, Flush, MAX_MESSAGE, PdId, Remote};
use std::sync::atomic::{Ordering, fence};
use umem::AtomicOp;

/// The rights under which incoming operations of one QP run.
#[derive(Clone)]
pub struct Executor<'a> {
    /// Keys of the device.
    pub keys: &'a KeyTable,
    /// Protection domain of the QP.
    pub pd: PdId,
    /// Its number: windows of type 2 are open to one QP.
    pub qpn: u32,
    /// What the QP lets its peer do.
    pub access: Access,
    /// Rings when a block signature is bad.
    pub(crate) alarm: Option<Alarm>,
}

impl Executor<'_> {
    fn enabled(&self, right: Access, why: &'static str) -> Result<(), Refusal> {
        if self.access.contains(right) || sabotage::on(Sabotage::SkipAccessFlags) {
            Ok(())
        } else {
            Err(Refusal::InvalidRequest(why))
        }
    }

    fn target(&self, remote: Remote, len: u32, right: Access) -> Result<Target, Refusal> {
        if len > MAX_MESSAGE {
            return Err(Refusal::InvalidRequest("longer than 2^31 bytes"));
        }
        if len == 0 {
            return Ok(Target(None));
        }
        self.keys
            .resolve_remote((self.pd, self.qpn), remote.rkey, remote.addr, u64::from(len), right)
            .map(|memory| Target(Some(memory.watched(self.alarm.as_ref()))))
            .map_err(Refusal::of_key)
    }

    /// Memory that an RDMA WRITE of `len` bytes may fill. A length of 0 names no memory (IBA
    /// 9.7.4.1.6).
    pub fn write(&self, remote: Remote, len: u32) -> Result<Target, Refusal> {
        self.enabled(Access::REMOTE_WRITE, "RDMA WRITE is not enabled on the QP")?;
        self.target(remote, len, Access::REMOTE_WRITE)
    }

    /// Memory that an RDMA READ of `len` bytes may fetch.
    pub fn read(&self, remote: Remote, len: u32) -> Result<Target, Refusal> {
        self.enabled(Access::REMOTE_READ, "RDMA READ is not enabled on the QP")?;
        self.target(remote, len, Access::REMOTE_READ)
    }

    /// Does one atomic and returns the word's old value.
    pub fn atomic(&self, remote: Remote, op: AtomicOp) -> Result<u64, Refusal> {
        self.enabled(Access::REMOTE_ATOMIC, "atomics are not enabled on the QP")?;
        if !remote.addr.is_multiple_of(8) {
            return Err(Refusal::InvalidRequest("atomic on a misaligned address"));
        }
        let target = self.target(remote, 8, Access::REMOTE_ATOMIC)?;
        target.ready(0, 8, true)?;
        match target.0 {
            Some(word) => word.atomic(op).map_err(Refusal::of_memory),
            None => Err(Refusal::InvalidRequest("atomic on nothing")),
        }
    }

    /// Writes 8 aligned bytes at once (IBA A19.4.2).
    pub fn atomic_write(&self, remote: Remote, value: u64) -> Result<(), Refusal> {
        self.enabled(Access::REMOTE_WRITE, "RDMA WRITE is not enabled on the QP")?;
        if !remote.addr.is_multiple_of(8) {
            return Err(Refusal::InvalidRequest("ATOMIC WRITE to a misaligned address"));
        }
        let target = self.target(remote, 8, Access::REMOTE_WRITE)?;
        target.ready(0, 8, true)?;
        let Target(Some(word)) = target else {
            return Err(Refusal::InvalidRequest("ATOMIC WRITE to nothing"));
        };
        let mut compare = value;
        loop {
            let swap = AtomicOp::CompareSwap { compare, swap: value };
            match word.atomic(swap).map_err(Refusal::of_memory)? {
                found if found == compare => return Ok(()),
                found => compare = found,
            }
        }
    }

    /// Brings earlier writes to where `flush` says (IBA A19.4.1). They were placed before this is
    /// called, in memory that all processors see, so what is left is that none of it is still in
    /// this one's store buffer.
    pub fn flush(&self, flush: &Flush) -> Result<(), Refusal> {
        let right = match flush.placement {
            1 => Access::FLUSH_GLOBAL,
            2 => Access::FLUSH_PERSISTENT,
            3 => Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
            _ => return Err(Refusal::InvalidRequest("FLUSH to an unknown placement")),
        };
        let right = if sabotage::on(Sabotage::SkipFlushRight) { Access::empty() } else { right };
        self.enabled(right, "FLUSH is not enabled on the QP")?;
        if flush.len > MAX_MESSAGE {
            return Err(Refusal::InvalidRequest("longer than 2^31 bytes"));
        }
        let Remote { addr, rkey } = flush.remote;
        let who = (self.pd, self.qpn);
        let flushed = if flush.whole {
            self.keys.resolve_whole(who, rkey, right)
        } else {
            self.keys.resolve_remote(who, rkey, addr, flush.len.into(), right)
        };
        // The access of no byte finds out whether the memory is still there.
        flushed.map_err(Refusal::of_key)?.read(0, &mut []).map_err(Refusal::of_memory)?;
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Invalidates a key on the peer's behalf.
    pub fn invalidate(&self, key: u32) -> Result<(), Refusal> {
        self.keys.invalidate_by_peer((self.pd, self.qpn), key).map_err(Refusal::RemoteAccess)
    }
}
