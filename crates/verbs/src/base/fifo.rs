//! Events on their way to the program: a queue whose descriptor is readable while something waits,
//! as the kernel's event files are. The descriptor is a semaphore eventfd with one unit an event,
//! so `poll`, `select`, `epoll` and `O_NONBLOCK` work on it as programs expect.

use crate::base::ffi::{Res, last_errno};
use descriptors::Kept;
use engine_thread::lock;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};

unsafe extern "C-unwind" {
    /// read(2), where a thread may be cancelled.
    fn read(fd: c_int, into: *mut c_void, len: usize) -> isize;
}

/// Takes one unit of a queue's descriptor; waits for one unless the program made the descriptor
/// non-blocking. False when there is none, with errno set.
///
/// A thread that waits here may be cancelled (pthread_cancel(3)), as in the system call that
/// programs know this place for. It is unwound then: the caller must have nothing to drop, and be
/// declared `C-unwind` where C calls it.
pub fn wait(fd: RawFd) -> bool {
    let mut unit = [0u8; 8];
    // SAFETY: eight bytes of a live local are written.
    unsafe { read(fd, unit.as_mut_ptr().cast(), unit.len()) >= 0 }
}

/// A queue of events of one kind.
pub struct Fifo<T> {
    fd: Kept,
    queue: Mutex<VecDeque<T>>,
}

impl<T> Fifo<T> {
    /// An empty queue.
    pub fn new() -> Res<Fifo<T>> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: `fd` was just created and belongs to nobody else.
        let fd = Kept::here(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Fifo { fd, queue: Mutex::default() })
    }

    /// An empty queue with the number that the parent process's has in this forked child, and with
    /// its flags. A number that is something else by now stays that.
    pub fn instead_of(number: RawFd) -> Res<Fifo<T>> {
        let fresh = Fifo::new()?;
        let known = std::fs::read_link(format!("/proc/self/fd/{number}"));
        if known.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]") {
            // SAFETY: no pointers are passed. The copy of the parent's descriptor that is closed
            // here has no owner in this process: what owns it belongs to an earlier life and is not
            // dropped.
            unsafe {
                let flags = libc::fcntl(number, libc::F_GETFL);
                if libc::dup3(fresh.fd(), number, libc::O_CLOEXEC) < 0 {
                    return Err(last_errno());
                }
                libc::fcntl(number, libc::F_SETFL, flags);
                let fd = Kept::here(OwnedFd::from_raw_fd(number));
                return Ok(Fifo { fd, queue: Mutex::default() });
            }
        }
        Ok(fresh)
    }

    /// The descriptor programs wait on.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<T>> {
        lock(&self.queue)
    }

    /// Appends an event and wakes whoever waits. Never blocks: the counter cannot overflow before
    /// memory ends.
    pub fn push(&self, event: T) {
        let mut queue = self.queue();
        queue.push_back(event);
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes of a live local are read.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes the oldest event after [`wait`] took a unit; `None` when the unit's event was removed
    /// meanwhile. `delivered` runs before a concurrent [`Fifo::remove`] can end, so that it sees
    /// the event either here or there.
    pub fn take<R>(&self, delivered: impl FnOnce(T) -> R) -> Option<R> {
        let mut queue = self.queue();
        queue.pop_front().map(delivered)
    }

    /// Forgets events that `unwanted` names, for an object that is being destroyed.
    pub fn remove(&self, unwanted: impl Fn(&T) -> bool) {
        let mut queue = self.queue();
        let before = queue.len();
        queue.retain(|event| !unwanted(event));
        for _ in queue.len()..before {
            self.take_unit();
        }
    }

    /// Takes one unit if there is one, without waiting even where the descriptor is blocking.
    fn take_unit(&self) {
        let mut unit = [0u8; 8];
        let into = libc::iovec { iov_base: unit.as_mut_ptr().cast(), iov_len: unit.len() };
        // SAFETY: one live iovec over a live local. Refusal leaves a unit too many, which `take`
        // tolerates.
        unsafe { libc::preadv2(self.fd(), &into, 1, -1, libc::RWF_NOWAIT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ffi::Errno;

    fn readable(fd: RawFd) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    fn pop<T>(fifo: &Fifo<T>) -> Res<T> {
        loop {
            if !wait(fifo.fd()) {
                return Err(last_errno());
            }
            if let Some(event) = fifo.take(|event| event) {
                return Ok(event);
            }
        }
    }

    fn set_nonblocking(fd: RawFd) {
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    }

    #[test]
    fn readable_exactly_while_something_waits() {
        let fifo = Fifo::new().unwrap();
        assert!(!readable(fifo.fd()));
        fifo.push(1);
        fifo.push(2);
        assert_eq!(pop(&fifo), Ok(1));
        assert!(readable(fifo.fd()));
        assert_eq!(pop(&fifo), Ok(2));
        assert!(!readable(fifo.fd()));
    }

    #[test]
    fn a_nonblocking_descriptor_says_eagain() {
        let fifo = Fifo::<u8>::new().unwrap();
        set_nonblocking(fifo.fd());
        assert_eq!(pop(&fifo), Err(Errno(libc::EAGAIN)));
    }

    #[test]
    fn removed_events_leave_nothing_readable() {
        let fifo = Fifo::new().unwrap();
        for event in [1, 2, 1, 3] {
            fifo.push(event);
        }
        fifo.remove(|&event| event == 1);
        assert_eq!(pop(&fifo), Ok(2));
        assert_eq!(pop(&fifo), Ok(3));
        assert!(!readable(fifo.fd()));
    }

    #[test]
    fn a_waiting_reader_is_woken() {
        let fifo = Fifo::new().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| pop(&fifo));
            fifo.push(7);
            assert_eq!(reader.join().unwrap(), Ok(7));
        });
    }
}
