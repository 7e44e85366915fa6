//! A word in shared memory that says which thread holds it, and that the kernel marks when that
//! thread ends without letting go: by a kill, by `exec`, however it came about.
//!
//! It is a robust futex (set_robust_list(2)). The kernel looks at it before the thread's memory
//! goes, and before `exec` gives the process another program. So whoever sees another process's
//! word held knows that its memory was what it had been, at that instant.

use crate::Shm;
use rustix::io::{Errno, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// `FUTEX_OWNER_DIED` of `linux/futex.h`.
const OWNER_DIED: u32 = 0x4000_0000;

/// `struct robust_list` of `linux/futex.h`.
#[repr(C)]
struct Node {
    next: *const Node,
}

/// `struct robust_list_head`: the list, where from a node its word is, and one that is being
/// locked.
#[repr(C)]
struct Head {
    list: Node,
    futex_offset: libc::c_long,
    pending: *const Node,
}

/// The list of one thread, with one word on it.
struct List {
    head: Head,
    node: Node,
}

/// A word that the present thread holds. Dropping it lets go.
pub struct Held {
    shm: Arc<Shm>,
    at: usize,
    /// The kernel reads it until the thread ends; a thread has one list.
    list: *mut List,
}

impl Held {
    /// Takes hold of the word at `at` for the calling thread, which must not use robust mutexes of
    /// the C library: its list is replaced. See [`Shm::word`] for panics.
    ///
    /// # Errors
    /// What set_robust_list(2) says.
    pub fn new(shm: &Arc<Shm>, at: usize) -> Result<Held> {
        let word = shm.low_half(at);
        let list = Box::into_raw(Box::new(List {
            head: Head {
                list: Node { next: std::ptr::null() },
                futex_offset: 0,
                pending: std::ptr::null(),
            },
            node: Node { next: std::ptr::null() },
        }));
        // SAFETY: `list` is ours alone until the kernel has it, which reads it when this thread
        // ends. The list is the head, the node, and the head again; from the node the word is at
        // the offset, wherever the two are mapped.
        let code = unsafe {
            let node = &raw const (*list).node;
            (*list).node.next = (&raw const (*list).head).cast();
            (*list).head.list.next = node;
            (*list).head.futex_offset =
                (std::ptr::from_ref(word) as isize).wrapping_sub(node as isize) as libc::c_long;
            libc::syscall(libc::SYS_set_robust_list, &raw const (*list).head, size_of::<Head>())
        };
        if code != 0 {
            // SAFETY: the kernel did not take it.
            drop(unsafe { Box::from_raw(list) });
            return Err(Errno::NOSYS);
        }
        // Only now: a thread that dies before it holds nothing.
        word.store(rustix::thread::gettid().as_raw_pid() as u32, SeqCst);
        Ok(Held { shm: shm.clone(), at, list })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shm.low_half(self.at).store(0, SeqCst);
        self.shm.wake(self.at);
        // SAFETY: the thread that made it drops it, for it cannot be sent; the kernel has the list
        // no more when it is freed.
        unsafe {
            let none = std::ptr::null::<Head>();
            libc::syscall(libc::SYS_set_robust_list, none, size_of::<Head>());
            drop(Box::from_raw(self.list));
        }
    }
}

impl Shm {
    /// Changes who holds the word at `at`, as its number: to nobody for a while and back, on behalf
    /// of its holder, for whom the kernel marks it all the same. See [`Shm::word`] for panics.
    pub fn yield_hold(&self, at: usize, from: u32, to: u32) {
        let _ = self.low_half(at).compare_exchange(from, to, SeqCst, SeqCst);
    }

    /// Whether the thread that held the word at `at` has ended without letting go. See
    /// [`Shm::word`] for panics.
    #[inline]
    pub fn has_died(&self, at: usize) -> bool {
        self.low_half(at).load(SeqCst) & OWNER_DIED != 0
    }

    /// The thread that holds the word at `at`, by its number; `None` when it has let go or ended.
    /// See [`Shm::word`] for panics.
    #[inline]
    pub fn holder(&self, at: usize) -> Option<u32> {
        let value = self.low_half(at).load(SeqCst);
        (value != 0 && value & OWNER_DIED == 0).then_some(value)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_held_until_its_thread_lets_go_or_ends() {
        let shm = Arc::new(Shm::create("peerdma-test", 64).unwrap().0);
        assert_eq!(shm.holder(8), None);
        let inside = shm.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let held = Held::new(&inside, 8).unwrap();
                assert_eq!(inside.holder(8), Some(rustix::thread::gettid().as_raw_pid() as u32));
                drop(held);
                assert_eq!(inside.holder(8), None);
                // It ends with the word in its hand.
                std::mem::forget(Held::new(&inside, 8).unwrap());
                assert!(inside.holder(8).is_some());
            });
        });
        while shm.holder(8).is_some() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn another_program_holds_nothing() {
        let shm = Arc::new(Shm::create("peerdma-test", 64).unwrap().0);
        // SAFETY: as below; the child becomes another program.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::mem::forget(Held::new(&shm, 24));
            let (program, seconds) = (c"sleep".as_ptr(), c"60".as_ptr());
            let end = std::ptr::null::<libc::c_char>();
            // SAFETY: terminated texts, and a list that ends.
            unsafe {
                libc::execlp(program, program, seconds, end);
                libc::_exit(1);
            }
        }
        let comm = || std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap();
        while comm() != "sleep\n" {
            std::thread::yield_now();
        }
        assert_eq!(shm.holder(24), None);
        // SAFETY: our own child, waited for here only.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }

    #[test]
    fn a_killed_process_lets_go() {
        let shm = Arc::new(Shm::create("peerdma-test", 64).unwrap().0);
        // SAFETY: the child takes the word, which allocates at most what a forked child may (the
        // C library sees to its heap), and waits for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::mem::forget(Held::new(&shm, 16));
            loop {
                // SAFETY: no pointers are involved.
                unsafe { libc::pause() };
            }
        }
        while shm.holder(16).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(shm.holder(16), Some(child as u32));
        // SAFETY: our own child, waited for here only.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(shm.holder(16), None, "before its parent hears of the end");
    }
}
