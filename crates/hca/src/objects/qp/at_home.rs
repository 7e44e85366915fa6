//! Bytes of a request between two queue pairs of one device, which go without packets (D7): by the
//! device's own keys, from one registration of this process to the other.

use super::Qp;
use super::emit::Out;
use crate::adapter::Adapter;
use crate::adapter::directory::ends_word;
use crate::adapter::rings::Ends;
use crate::objects::door::Door;
use link::Path;
use smallvec::SmallVec;
use std::sync::Arc;
use transport::executor::AtHome;
use transport::values::QpType;
use transport::{Count, Counter, Direct, InPlace, WATCHED};
use umem::AccessError;

/// The bytes of a request of which a program may watch the words.
type Message = SmallVec<[u8; WATCHED as usize]>;

impl Qp {
    /// What its peer may do past packets, where it is of this device.
    pub(crate) fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// The door of the peer, QP `dest_qpn` at the end of `path`, if that is of this device, and
    /// `ends` as it has to be open to them.
    pub(super) fn home(
        &self,
        adapter: &Adapter,
        path: &Path,
        dest_qpn: u32,
        ends: &Ends,
    ) -> Option<(Arc<Door>, u64)> {
        let is_here = self.init.qp_type == QpType::Rc && adapter.has_neighbours();
        let owner = self.owner.upgrade().filter(|_| is_here && adapter.is_own(path, dest_qpn))?;
        Some((owner.door(dest_qpn)?, ends_word(ends.src, ends.dst)))
    }
}

impl Out<'_> {
    /// Moves a part of a request; `false` if packets shall do all of it.
    pub(super) fn goes_home(&mut self, (door, ends): (&Door, u64), direct: Direct<'_>) -> bool {
        let Some(visit) = door.visit(self.number, ends) else { return false };
        let Direct { write, remote, length, at, len, memory, .. } = direct;
        let (keys, who) = (self.adapter.keys(), (door.pd, visit.access));
        let Some(there) = AtHome::of(keys, who, remote, length, write) else { return false };
        let moved = match (length <= WATCHED, write) {
            (true, true) => writes_message(&there, length, memory),
            (true, false) => reads_message(&there, length, memory),
            (false, _) => moves_part(&there, write, (at, len), memory),
        };
        if moved.is_err() {
            return false;
        }
        count(self.adapter, (self.number, door.number), write, len as u64);
        if at + len as u64 == u64::from(length) {
            let requests = if write { Counter::RxWriteRequests } else { Counter::RxReadRequests };
            self.adapter.directory().count(requests, 1);
        }
        true
    }
}

/// Counts so many bytes at both ends; the requester counts those of its device itself.
fn count(adapter: &Adapter, (number, peer): (u32, u32), write: bool, bytes: u64) {
    let directory = adapter.directory();
    let (from, to) = if write { (number, peer) } else { (peer, number) };
    directory.add_traffic(from, bytes, 0);
    directory.add_traffic(to, 0, bytes);
    directory.count(if write { Counter::RcvdBytes } else { Counter::SentBytes }, bytes);
}

/// Copies a message by way of a copy of it, as packets do: nobody sees a word of it in part,
/// wherever it comes from, and it may lie over its target.
fn writes_message(
    there: &AtHome,
    length: u32,
    memory: &mut dyn InPlace,
) -> Result<(), AccessError> {
    let mut message = Message::new();
    memory.read(0, length as usize, &mut |from| {
        let filled = message.len();
        // Never more than is asked for, so nothing is allocated.
        message.resize(filled + from.len() as usize, 0);
        Ok(from.read(message.get_mut(filled..).unwrap_or_default())?)
    })?;
    there.write(&message)
}

fn reads_message(there: &AtHome, length: u32, memory: &mut dyn InPlace) -> Result<(), AccessError> {
    let mut message = Message::from_elem(0, length as usize);
    there.read(&mut message)?;
    let mut rest = message.as_slice();
    memory.write(0, length as usize, &mut |into| {
        let (part, after) = rest.split_at_checked(into.len() as usize).unwrap_or_default();
        rest = after;
        Ok(into.write(part)?)
    })
}

/// Moves `len` bytes from `at` on of a longer one from where they are to where they go. The memory
/// of the request is entered first, and that of the key only tried: whoever keeps everyone out of
/// both would else wait for who waits for it.
fn moves_part(
    there: &AtHome,
    write: bool,
    (mut at, len): (u64, usize),
    memory: &mut dyn InPlace,
) -> Result<(), AccessError> {
    let all = there.addresses().ok_or(AccessError::Unreachable)?;
    // A copy in parts spoils what it has yet to read; packets read ahead.
    if at == 0 && memory.may_lie_over(&all) {
        return Err(AccessError::Unreachable);
    }
    match write {
        true => memory.read(at, len, &mut |from| {
            there.fill(at, from)?;
            at += from.len();
            Ok(())
        }),
        false => memory.write(at, len, &mut |into| {
            there.drain(at, into)?;
            at += into.len();
            Ok(())
        }),
    }
}
