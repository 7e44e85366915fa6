//! The bytes of a buffer as an outsider has them mapped, so that it copies them without a call to
//! the system.
//!
//! What is mapped is the exporter's file, by its own opening of it (pidfd_getfd(2)): it counts who
//! has the file open, and does not take an outsider for a user. A view is a loan ([`mm::View`]), so
//! what the exporter frees stays for a second at most.

use super::Outsider;
use crate::control::{Placement, SECOND_PLACE, SLOTS};
use crate::error::Refused;
use crate::gpu_memory::{id_of, memfd_name};
use engine_thread::try_lock;
use mm::{Loan, Mapping, NotLent, View};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::Ordering::SeqCst;

impl Outsider {
    /// How this process reaches the bytes that process `pid` has at `addr`, if the buffer has made
    /// `moves` moves and makes none now. Waits for no lock.
    ///
    /// # Errors
    /// Where the process has them elsewhere, is not the exporter, or does not let this one at its
    /// descriptors, or address space or calls to the system are limited here; or a view is not to
    /// be had now.
    pub fn reach(&self, pid: u32, addr: u64, moves: u64) -> Result<Loan, Refused> {
        let state = self.control.state();
        if state.is_closed() || state.generation() != moves {
            return Err(Refused::NotNow);
        }
        // An importer's opening is the program's, of which the exporter hears.
        let is_exporters = self.control.exporter_pid() == u64::from(pid);
        if !is_exporters || !View::may_be_lent() {
            return Err(Refused::NotOurs);
        }
        let placement = state.placement();
        let size = self.size()?;
        let (slot, base) = self.slot_of(pid, placement, addr, size).ok_or(Refused::NotOurs)?;
        let mut views = try_lock(&self.views).ok_or(Refused::NotNow)?;
        let place = &mut views[usize::from(placement == self.control.born())];
        if place.strong_count() == 0 {
            *place = self.view(pid, slot, placement, size)?;
        }
        Ok(Loan::new(place.clone(), base))
    }

    /// Bytes of the buffer.
    fn size(&self) -> Result<u64, Refused> {
        let stat = rustix::fs::fstat(&self.control).map_err(|_| Refused::NotNow)?;
        let bytes = u64::try_from(stat.st_size).map_err(|_| Refused::NotOurs)?;
        bytes.checked_sub(SECOND_PLACE).ok_or(Refused::NotOurs)
    }

    /// The slot of a process that has `addr` within the buffer, and where the buffer begins there.
    /// `None` where two say that of other beginnings: one of them is of another process, which has
    /// that number in a PID namespace of its own.
    fn slot_of(
        &self,
        pid: u32,
        placement: Placement,
        addr: u64,
        size: u64,
    ) -> Option<(usize, u64)> {
        let is_its = |slot| self.control.owner(slot).load(SeqCst) == u64::from(pid);
        let base_of = |slot| {
            let base = self.control.address_of(slot, placement).load(SeqCst);
            let is_there = base != 0 && addr.checked_sub(base).is_some_and(|at| at < size);
            is_there.then_some((slot, base))
        };
        let mut found = (0..SLOTS).filter(|slot| is_its(*slot)).filter_map(base_of);
        let (slot, base) = found.next()?;
        let is_one = found.all(|(_, other)| other == base);
        (is_one && is_its(slot)).then_some((slot, base))
    }

    fn view(
        &self,
        pid: u32,
        slot: usize,
        placement: Placement,
        size: u64,
    ) -> Result<Weak<View>, Refused> {
        if placement != self.control.born() {
            return view_of(&self.control, SECOND_PLACE, size);
        }
        let data = u32::try_from(self.control.data_of(slot).load(SeqCst));
        let data = data.map_err(|_| Refused::NotOurs)?;
        view_of(opened_by(pid, data, self.control.id())?, 0, size)
    }
}

/// The bytes of a file from `at` on.
fn view_of(file: impl AsFd, at: u64, size: u64) -> Result<Weak<View>, Refused> {
    let end = at.checked_add(size).ok_or(Refused::NotOurs)?;
    let mapping =
        Mapping::shared_lazily(file.as_fd(), 0..end, true).map_err(|_| Refused::NotOurs)?;
    View::lend(mapping, at, size).map_err(|refused| match refused {
        NotLent::Never => Refused::NotOurs,
        NotLent::NotNow => Refused::NotNow,
    })
}

/// What a process has open as its descriptor `fd`, if that is the memory of a software GPU's buffer
/// `id`: not the file opened once more, of which its exporter would hear.
fn opened_by(pid: u32, fd: u32, id: u64) -> Result<OwnedFd, Refused> {
    // Looked at before it is taken: to give another file back may wait for who serves that.
    let _its_own = shm::Processes::seen().map_err(|_| Refused::NotOurs)?;
    let file = rustix::fs::readlink(format!("/proc/{pid}/fd/{fd}"), Vec::new());
    let wanted = format!("/memfd:{}", memfd_name(id));
    if !file.is_ok_and(|file| file.to_bytes().starts_with(wanted.as_bytes())) {
        return Err(Refused::NotOurs);
    }
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Refused::NotOurs)?;
    let fd = i32::try_from(fd).map_err(|_| Refused::NotOurs)?;
    let taken = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .and_then(|process| rustix::process::pidfd_getfd(process, fd, PidfdGetfdFlags::empty()));
    let taken = taken.map_err(|errno| match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Refused::NotNow,
        _ => Refused::NotOurs,
    })?;
    if id_of(taken.as_fd()) == Some(id) { Ok(taken) } else { Err(Refused::NotOurs) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::patiently;
    use super::*;
    use crate::Storage;
    use mm::Sink;
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::time::Duration;

    const SIZE: u64 = 3 * 4096;

    fn buffer(id: u64, placement: Placement) -> Storage {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let data = rustix::fs::memfd_create(memfd_name(id), flags).unwrap();
        rustix::fs::ftruncate(&data, SIZE).unwrap();
        rustix::fs::fcntl_add_seals(&data, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        Storage::create(data, SIZE, id, "1a:00.0".parse().unwrap(), placement).unwrap()
    }

    /// An outsider of `storage`, which is this process's own.
    fn outsider(storage: &Storage) -> (Arc<Outsider>, u32) {
        let (pid, fd) = (std::process::id(), storage.control().as_fd().as_raw_fd());
        (patiently(|| Outsider::new(pid, fd.cast_unsigned())).unwrap(), pid)
    }

    fn bytes_at(memory: Sink<'_>) -> [u8; 5] {
        let mut bytes = [0; 5];
        memory.source().read(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_view_shows_the_buffer_where_it_is() {
        for (id, born) in [(0xa01, Placement::Vram), (0xa02, Placement::Host)] {
            let storage = buffer(id, born);
            let (outsider, pid) = outsider(&storage);
            let addr = storage.memory(born).unwrap().addr();
            assert_eq!(outsider.reach(pid, addr, 1).unwrap_err(), Refused::NotNow);
            let reach = patiently(|| outsider.reach(pid, addr, 0)).unwrap();
            let (view, offset) = reach.at(addr + 4097).unwrap();
            view.bring_in(offset, 100);
            view.memory(offset, 5).unwrap().write(b"there").unwrap();
            let there = storage.memory(born).unwrap().part(4097, 5).unwrap();
            assert_eq!(&bytes_at(there), b"there");
            assert!(view.memory(SIZE - 4, 5).is_none() && view.memory(u64::MAX, 5).is_none());
            assert!(reach.at(addr - 1).is_none());

            assert_eq!(storage.move_to(born.other(), Some(true), Duration::ZERO), Ok(true));
            assert_eq!(outsider.reach(pid, addr, 1).unwrap_err(), Refused::NotOurs);
            let moved = storage.memory(born.other()).unwrap().addr();
            let (second, offset) = patiently(|| outsider.reach(pid, moved + 4000, 1))
                .unwrap()
                .at(moved + 4097)
                .unwrap();
            assert_eq!(&bytes_at(second.memory(offset, 5).unwrap()), b"there");
            let again = patiently(|| outsider.reach(pid, moved, 1)).unwrap();
            let (again, _) = again.at(moved).unwrap();
            assert!(Arc::ptr_eq(&second, &again), "one for each place");
        }
    }

    #[test]
    fn what_another_process_has_elsewhere_is_not_reached() {
        let storage = buffer(0xa03, Placement::Vram);
        let (outsider, pid) = outsider(&storage);
        let refused = |pid, addr| patiently(|| outsider.reach(pid, addr, 0)).err();
        assert_eq!(refused(pid, 4096), Some(Refused::NotOurs), "not mapped yet");
        let addr = storage.memory(Placement::Vram).unwrap().addr();
        assert_eq!(refused(pid, addr - 1), Some(Refused::NotOurs));
        assert_eq!(refused(pid, addr + SIZE), Some(Refused::NotOurs));
        assert_eq!(refused(pid + 1, addr), Some(Refused::NotOurs));
        // What two slots of one number say of it must agree.
        let data = rustix::io::fcntl_dupfd_cloexec(storage.data(), 0).unwrap();
        let control = rustix::io::fcntl_dupfd_cloexec(storage.control(), 0).unwrap();
        let second = Storage::open(data, SIZE, 0xa03, control).unwrap();
        let claimed = second.control.address_of(second.slot, Placement::Vram);
        assert_eq!(refused(pid, addr), None);
        claimed.store(addr - 4096, SeqCst);
        assert_eq!(refused(pid, addr), Some(Refused::NotOurs));
        claimed.store(addr, SeqCst);
        assert_eq!(refused(pid, addr), None);
        claimed.store(addr - 4096, SeqCst);
        drop(second);
        assert_eq!(refused(pid, addr), None, "whoever has gone says nothing");
        *outsider.views.lock().unwrap() = Default::default();
        // Another file in the place of the data.
        let named = storage.control.data_of(storage.slot);
        let other = buffer(0xa04, Placement::Vram);
        for fd in [storage.control().as_fd(), other.data().as_fd(), std::io::stdin().as_fd()] {
            named.store(fd.as_raw_fd().cast_unsigned().into(), SeqCst);
            assert_eq!(refused(pid, addr), Some(Refused::NotOurs));
        }
        named.store(u64::MAX, SeqCst);
        assert_eq!(refused(pid, addr), Some(Refused::NotOurs));
    }
}
