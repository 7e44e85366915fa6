use super::*;
use std::ptr;

/// An anonymous or memfd mapping that unmaps on drop.
struct Map(*mut libc::c_void, usize);

impl Map {
    fn anon(len: usize, prot: i32) -> Map {
        // SAFETY: a fresh anonymous mapping.
        let p = unsafe {
            libc::mmap(ptr::null_mut(), len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(p, libc::MAP_FAILED);
        Map(p, len)
    }
    fn addr(&self) -> u64 {
        self.0 as u64
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: ours, and no reference to it exists.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

fn sink(addr: u64, len: usize) -> Sink<'static> {
    // SAFETY: tests name mappings of their own that no reference points into, or no memory at all.
    unsafe { Sink::vouched(addr, len as u64) }
}

fn copy_from(addr: u64, dst: &mut [u8]) -> Result<(), LoadFault> {
    sink(addr, dst.len()).source().read(dst)
}

fn copy_to(addr: u64, src: &[u8]) -> Result<(), StoreFault> {
    sink(addr, src.len()).write(src)
}

fn fill(addr: u64, byte: u8, len: usize) -> Result<(), StoreFault> {
    sink(addr, len).fill(byte)
}

fn atomic_u64(addr: u64, op: AtomicOp) -> Result<u64, StoreFault> {
    sink(addr, 8).atomic_u64(op)
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

#[test]
fn copies_every_small_length_and_alignment() {
    install();
    let map = Map::anon(16384, RW);
    let src: Vec<u8> = (0..9000u32).map(|i| (i * 7 + 3) as u8).collect();
    let lengths = (0..=300).chain([1023, 4095, 4096, 4097, 4160, 4224, 5000, 8191]);
    for len in lengths {
        for shift in 0..17 {
            let at = map.addr() + shift;
            fill(map.addr(), 0xAA, 16384).unwrap();
            copy_to(at, &src[..len]).unwrap();
            let mut all = vec![0; len + 40];
            copy_from(map.addr(), &mut all).unwrap();
            assert!(all[..shift as usize].iter().all(|&b| b == 0xAA));
            assert_eq!(
                &all[shift as usize..shift as usize + len],
                &src[..len],
                "len {len} shift {shift}"
            );
            assert!(all[shift as usize + len..].iter().all(|&b| b == 0xAA));
            let mut back = vec![0; len];
            copy_from(at, &mut back).unwrap();
            assert_eq!(back, src[..len]);
        }
    }
}

#[test]
fn unmapped_protected_and_wild_addresses_fault() {
    install();
    let gone = Map::anon(4096, RW);
    let addr = gone.addr();
    drop(gone);
    let none = Map::anon(4096, libc::PROT_NONE);
    for bad in [addr, none.addr(), 0, 8, 0xdead_0000_0000_0000, u64::MAX - 4, 1 << 62] {
        for len in [1, 8, 64, 5000] {
            assert_eq!(copy_from(bad, &mut vec![0; len]), Err(LoadFault), "{bad:#x}");
            assert_eq!(copy_to(bad, &vec![0; len]), Err(StoreFault), "{bad:#x}");
            assert_eq!(fill(bad, 1, len), Err(StoreFault));
        }
        let word = bad & !7;
        assert_eq!(atomic_u64(word, AtomicOp::FetchAdd { add: 1 }), Err(StoreFault));
        assert_eq!(
            atomic_u64(word, AtomicOp::CompareSwap { compare: 0, swap: 1 }),
            Err(StoreFault)
        );
        assert_eq!(touch_read(bad), Err(Fault));
        assert_eq!(touch_write(bad), Err(Fault));
    }
}

#[test]
fn read_only_memory_reads_but_does_not_write() {
    install();
    let map = Map::anon(4096, libc::PROT_READ);
    let mut word = [1; 8];
    copy_from(map.addr(), &mut word).unwrap();
    assert_eq!(word, [0; 8]);
    touch_read(map.addr()).unwrap();
    assert_eq!(copy_to(map.addr(), &word), Err(StoreFault));
    assert_eq!(touch_write(map.addr()), Err(Fault));
    assert_eq!(atomic_u64(map.addr(), AtomicOp::FetchAdd { add: 0 }), Err(StoreFault));
}

#[test]
fn a_copy_that_runs_off_the_end_has_copied_what_was_there() {
    install();
    for len in [3, 64, 300, 6000] {
        let map = Map::anon(3 * 4096, RW);
        let end = map.addr() + 2 * 4096;
        // SAFETY: the last page of our own mapping.
        unsafe { libc::mprotect((end as usize) as *mut _, 4096, libc::PROT_NONE) };
        let at = end - len as u64 + 1;
        assert_eq!(copy_to(at, &vec![7; len]), Err(StoreFault));
        let mut there = vec![0; len - 1];
        copy_from(at, &mut there).unwrap();
        // whole words or blocks before the edge arrived
        assert!(there[..(len - 1) / 64 * 64].iter().all(|&b| b == 7), "len {len}");
        let mut dst = vec![0; len];
        assert_eq!(copy_from(at, &mut dst), Err(LoadFault));
    }
}

#[test]
fn truncated_memfd_is_a_fault_not_a_sigbus() {
    install();
    // SAFETY: plain system calls on our own descriptor and mapping.
    unsafe {
        let fd = libc::memfd_create(c"guard-test".as_ptr(), 0);
        assert_eq!(libc::ftruncate(fd, 8192), 0);
        let p = libc::mmap(ptr::null_mut(), 8192, RW, libc::MAP_SHARED, fd, 0);
        let map = Map(p, 8192);
        copy_to(map.addr(), &[5; 8192]).unwrap();
        assert_eq!(libc::ftruncate(fd, 4096), 0);
        libc::close(fd);
        let mut bytes = [0; 8192];
        assert_eq!(copy_from(map.addr(), &mut bytes), Err(LoadFault));
        assert_eq!(copy_to(map.addr() + 4096, &[1]), Err(StoreFault));
        assert_eq!(atomic_u64(map.addr() + 4096, AtomicOp::FetchAdd { add: 1 }), Err(StoreFault));
        copy_from(map.addr(), &mut bytes[..4096]).unwrap();
    }
}

#[test]
fn atomics_return_the_old_value() {
    install();
    let map = Map::anon(4096, RW);
    let at = map.addr() + 16;
    assert_eq!(atomic_u64(at, AtomicOp::FetchAdd { add: 5 }), Ok(0));
    assert_eq!(atomic_u64(at, AtomicOp::CompareSwap { compare: 4, swap: 9 }), Ok(5));
    assert_eq!(atomic_u64(at, AtomicOp::CompareSwap { compare: 5, swap: u64::MAX }), Ok(5));
    assert_eq!(atomic_u64(at, AtomicOp::FetchAdd { add: 2 }), Ok(u64::MAX));
    assert_eq!(atomic_u64(at, AtomicOp::FetchAdd { add: 0 }), Ok(1));
    assert_eq!(atomic_u64(at + 1, AtomicOp::FetchAdd { add: 0 }), Err(StoreFault));
}

#[test]
fn aligned_words_are_never_torn() {
    install();
    let map = Map::anon(4096, RW);
    let addr = map.addr();
    std::thread::scope(|s| {
        let writer = s.spawn(move || {
            for i in 0..200_000u64 {
                let word = if i % 2 == 0 { [0u8; 8] } else { [0xFF; 8] };
                // 24 bytes from an odd local address onto aligned words
                let mut src = [0; 25];
                src[1..].copy_from_slice(&[word, word, word].concat());
                copy_to(addr, &src[1..]).unwrap();
            }
        });
        let mut buf = [0u8; 25];
        while !writer.is_finished() {
            copy_from(addr, &mut buf[1..]).unwrap();
            for word in buf[1..].chunks(8) {
                assert!(word.iter().all(|&b| b == word[0]), "torn: {word:x?}");
            }
        }
    });
}

/// Runs `body` in a forked child and returns its wait status.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only calls async-signal-safe things and leaves by _exit.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::_exit(body());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    }
}

fn action(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: all zeroes is a valid sigaction.
    let mut a: libc::sigaction = unsafe { std::mem::zeroed() };
    a.sa_sigaction = handler;
    a.sa_flags = flags;
    a
}

fn own_fault() {
    // SAFETY: none: this is the fault that the test is about, in a child process.
    unsafe { ptr::read_volatile(8 as *const u8) };
}

extern "C" fn exit_with_signal(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo; _exit is async-signal-safe.
    unsafe { libc::_exit(if (*info).si_addr() as usize == 8 { signal } else { 99 }) };
}

#[test]
fn the_programs_default_action_still_kills() {
    install();
    let status = in_child(|| {
        assert!(chain(libc::SIGSEGV, Some(&action(libc::SIG_DFL, 0)), None));
        own_fault();
        0
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
}

#[test]
fn an_ignored_fault_kills_but_an_ignored_kill_does_not() {
    install();
    let ignore = || assert!(chain(libc::SIGSEGV, Some(&action(libc::SIG_IGN, 0)), None));
    let status = in_child(|| {
        ignore();
        own_fault();
        0
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
    let status = in_child(|| {
        ignore();
        // SAFETY: a signal to ourselves.
        unsafe { libc::raise(libc::SIGSEGV) };
        7
    });
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
}

#[test]
fn a_sent_signal_has_its_default_effect() {
    install();
    let status = in_child(|| {
        assert!(chain(libc::SIGBUS, Some(&action(libc::SIG_DFL, 0)), None));
        // SAFETY: a signal to ourselves.
        unsafe { libc::raise(libc::SIGBUS) };
        0
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "{status:#x}");
}

#[test]
fn the_programs_handler_gets_its_own_faults_only() {
    install();
    let status = in_child(|| {
        let handler = exit_with_signal as *const () as usize;
        assert!(chain(libc::SIGSEGV, Some(&action(handler, libc::SA_SIGINFO)), None));
        let mut old = action(0, 0);
        assert!(chain(libc::SIGSEGV, None, Some(&mut old)));
        assert_eq!(old.sa_sigaction, handler);
        assert_eq!(old.sa_flags, libc::SA_SIGINFO);
        assert_eq!(copy_to(16, &[1]), Err(StoreFault));
        own_fault();
        0
    });
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == libc::SIGSEGV, "{status:#x}");
}

#[test]
fn a_one_shot_handler_runs_once_and_with_its_mask() {
    extern "C" fn once(_: i32) {
        let mut set = 0u64;
        // SAFETY: reads this thread's mask.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, 0, 0, &raw mut set, 8) };
        if set & (1 << (libc::SIGUSR1 - 1)) == 0 || set & (1 << (libc::SIGSEGV - 1)) == 0 {
            // SAFETY: async-signal-safe.
            unsafe { libc::_exit(50) };
        }
    }
    install();
    let status = in_child(|| {
        let mut a = action(once as *const () as usize, libc::SA_RESETHAND);
        // SAFETY: our own set.
        unsafe { libc::sigaddset(&mut a.sa_mask, libc::SIGUSR1) };
        chain(libc::SIGSEGV, Some(&a), None);
        own_fault(); // returns from the handler, faults again, dies by the default action
        0
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
}

#[test]
fn other_signals_are_not_ours_to_chain() {
    install();
    assert!(!chain(libc::SIGUSR1, None, None));
}

/// The signals that the calling thread blocks, which blocks these from now on.
fn block(signals: u64) -> u64 {
    let mut before = 0;
    // SAFETY: both are words of this stack, as long as the kernel's set.
    let code = unsafe {
        let (set, old) = (&raw const signals, &raw mut before);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, set, old, 8usize)
    };
    assert_eq!(code, 0);
    before
}

#[test]
fn a_thread_is_made_ready_for_faults_again_and_again() {
    use std::time::{Duration, Instant};
    install();
    let (now, both) = (Instant::now(), 1 << (libc::SIGBUS - 1) | 1 << (libc::SIGSEGV - 1));
    assert!(would_catch(now));
    block(both);
    assert!(would_catch(now + Duration::from_millis(1)));
    assert_eq!(block(0) & both, 0);
    // SAFETY: the child makes system calls only, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; an action of all zeros is the default one.
        unsafe {
            let action = [0u64; 4];
            let (new, old) = (action.as_ptr(), std::ptr::null::<u64>());
            libc::syscall(libc::SYS_rt_sigaction, libc::SIGBUS, new, old, 8usize);
            libc::_exit(i32::from(would_catch(now + Duration::from_millis(2))));
        }
    }
    let mut status = 1;
    // SAFETY: `status` is live, and the child ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "a bare call has set the default action");
}
