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

/// Whether a read of this descriptor waits: the program has not made it non-blocking.
pub fn waits(fd: RawFd) -> bool {
    // SAFETY: no pointers are passed.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK == 0 }
}

/// A queue of events of one kind.
pub struct Fifo<T> {
    fd: Kept,
    queue: Mutex<Queue<T>>,
}

struct Queue<T> {
    events: VecDeque<T>,
    /// A thread is about to look for events, and brings them itself.
    is_held: bool,
    /// Events whose units the descriptor does not have: they came meanwhile.
    owed: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { events: VecDeque::new(), is_held: false, owed: 0 }
    }
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

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        lock(&self.queue)
    }

    /// Appends an event and wakes whoever waits. Never blocks: the counter cannot overflow before
    /// memory ends.
    pub fn push(&self, event: T) {
        let mut queue = self.queue();
        queue.events.push_back(event);
        match queue.is_held {
            true => queue.owed += 1,
            false => self.add_units(1),
        }
    }

    fn add_units(&self, count: u64) {
        let count = count.to_ne_bytes();
        // SAFETY: eight bytes of a live local are read.
        unsafe { libc::write(self.fd(), count.as_ptr().cast(), count.len()) };
    }

    /// Takes the oldest event after [`wait`] took a unit; `None` when the unit's event was removed
    /// meanwhile. `delivered` runs before a concurrent [`Fifo::remove`] can end, so that it sees
    /// the event either here or there.
    pub fn take<R>(&self, delivered: impl FnOnce(T) -> R) -> Option<R> {
        let mut queue = self.queue();
        queue.events.pop_front().map(delivered)
    }

    /// Takes the oldest event with its unit, if there is one that nobody is about to take.
    pub fn take_at_once<R>(&self, delivered: impl FnOnce(T) -> R) -> Option<R> {
        self.take_from(&mut self.queue(), delivered)
    }

    /// The same after `turn`, in which the calling thread may bring events itself: the one that it
    /// takes needs no unit then, which would take two system calls.
    pub fn take_after<R>(&self, turn: impl FnOnce(), delivered: impl FnOnce(T) -> R) -> Option<R> {
        self.queue().is_held = true;
        let held = Held(self);
        turn();
        let taken = self.take_from(&mut self.queue(), delivered);
        drop(held);
        taken
    }

    fn take_from<R>(&self, queue: &mut Queue<T>, delivered: impl FnOnce(T) -> R) -> Option<R> {
        if queue.events.is_empty() {
            return None;
        }
        match queue.owed.checked_sub(1) {
            Some(left) => queue.owed = left,
            None if !self.take_unit() => return None,
            None => {}
        }
        queue.events.pop_front().map(delivered)
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.queue().events.is_empty()
    }

    /// Forgets events that `unwanted` names, for an object that is being destroyed.
    pub fn remove(&self, unwanted: impl Fn(&T) -> bool) {
        let mut queue = self.queue();
        let before = queue.events.len();
        queue.events.retain(|event| !unwanted(event));
        for _ in queue.events.len()..before {
            match queue.owed.checked_sub(1) {
                Some(left) => queue.owed = left,
                None => _ = self.take_unit(),
            }
        }
    }

    /// Takes one unit if there is one, without waiting even where the descriptor is blocking; says
    /// whether it did.
    fn take_unit(&self) -> bool {
        let mut unit = [0u8; 8];
        let into = libc::iovec { iov_base: unit.as_mut_ptr().cast(), iov_len: unit.len() };
        // SAFETY: one live iovec over a live local. Refusal leaves a unit too many, which `take`
        // tolerates.
        unsafe { libc::preadv2(self.fd(), &into, 1, -1, libc::RWF_NOWAIT) > 0 }
    }
}

/// A queue as long as its events bring no units, which it gets afterwards.
struct Held<'a, T>(&'a Fifo<T>);

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.is_held = false;
        let owed = std::mem::take(&mut queue.owed);
        if owed > 0 {
            self.0.add_units(owed);
        }
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
    fn who_brings_events_takes_one_without_its_unit() {
        let fifo = Fifo::new().unwrap();
        fifo.push(1);
        let brings = |events: &'static [u8]| || events.iter().for_each(|event| fifo.push(*event));
        assert_eq!(fifo.take_after(brings(&[2, 3]), |event| event), Some(1));
        assert!(readable(fifo.fd()), "the others have theirs");
        assert_eq!((pop(&fifo), pop(&fifo)), (Ok(2), Ok(3)));
        assert!(!readable(fifo.fd()) && fifo.is_empty());
        assert_eq!(fifo.take_after(brings(&[4]), |event| event), Some(4));
        assert!(!readable(fifo.fd()));
        let removed = || {
            fifo.push(5);
            fifo.push(6);
            fifo.remove(|&event| event == 5);
        };
        assert_eq!(fifo.take_after(removed, |event| event), Some(6));
        assert_eq!(fifo.take_after(|| (), |event| event), None);
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
