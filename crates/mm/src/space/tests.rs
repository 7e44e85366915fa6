use super::pin::{may_lock_any, memlock_limit_bytes};
use super::*;
use crate::page_size;
use std::sync::Mutex;
use std::sync::mpsc;

#[derive(Default)]
struct Seen(Mutex<Vec<Range<u64>>>);

impl Invalidate for Seen {
    fn invalidate(&self, range: Range<u64>) {
        self.0.lock().unwrap().push(range);
    }
}

fn space() -> Arc<AddressSpace> {
    Arc::new(AddressSpace::new())
}

#[test]
fn only_overlapping_registrations_are_told() {
    let space = space();
    let seen: Vec<Arc<Seen>> = (0..4).map(|_| Arc::new(Seen::default())).collect();
    let ranges = [0x1000..0x2000, 0x1800..0x9000, 0x4000..0x5000, 0x9000..0xA000];
    let held: Vec<_> = ranges
        .iter()
        .zip(&seen)
        .map(|(r, s)| space.register(r.clone(), s.clone()).unwrap())
        .collect();
    space.invalidate(0x2000..0x4001);
    let told: Vec<bool> = seen.iter().map(|s| s.0.lock().unwrap().len() == 1).collect();
    assert_eq!(told, [false, true, true, false]);
    drop(held);
    space.invalidate(0..u64::MAX);
    assert_eq!(seen[0].0.lock().unwrap().len(), 0);
    assert_eq!(space.registrations(), 0);
}

#[test]
fn many_registrations_grow_the_table() {
    let space = space();
    let seen = Arc::new(Seen::default());
    let mut held: Vec<_> =
        (0..1000u64).map(|i| space.register(i * 10..i * 10 + 10, seen.clone()).unwrap()).collect();
    space.invalidate(5000..5001);
    assert_eq!(seen.0.lock().unwrap().len(), 1);
    held.drain(..990);
    assert_eq!(space.registrations(), 10);
    space.invalidate(0..9900);
    assert_eq!(seen.0.lock().unwrap().len(), 1);
}

#[test]
fn dropping_a_registration_waits_for_its_call_back() {
    struct Slow(mpsc::SyncSender<()>, Mutex<mpsc::Receiver<()>>, AtomicBool);
    impl Invalidate for Slow {
        fn invalidate(&self, _: Range<u64>) {
            self.0.send(()).unwrap();
            self.1.lock().unwrap().recv().unwrap();
            self.2.store(true, SeqCst);
        }
    }
    let (entered, on_enter) = mpsc::sync_channel(1);
    let (go, on_go) = mpsc::sync_channel(1);
    let slow = Arc::new(Slow(entered, Mutex::new(on_go), AtomicBool::new(false)));
    let space = space();
    let registration = space.register(0..10, slow.clone()).unwrap();
    let other = Arc::new(Seen::default());
    let quick = space.register(20..30, other.clone()).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| space.invalidate(0..1));
        on_enter.recv().unwrap();
        let dropper = s.spawn(|| {
            drop(registration);
            assert!(slow.2.load(SeqCst), "dropped before the call-back had returned");
        });
        // other ranges are not held up by the slow call-back
        space.invalidate(25..26);
        assert_eq!(other.0.lock().unwrap().len(), 1);
        drop(quick);
        go.send(()).unwrap();
        dropper.join().unwrap();
    });
}

#[test]
fn a_call_back_may_unmap_elsewhere() {
    struct Nested(Arc<AddressSpace>);
    impl Invalidate for Nested {
        fn invalidate(&self, range: Range<u64>) {
            if range.start == 0 {
                self.0.invalidate(100..101);
            }
        }
    }
    let space = space();
    let seen = Arc::new(Seen::default());
    let nested = space.register(0..10, Arc::new(Nested(space.clone())));
    let other = space.register(100..110, seen.clone()).unwrap();
    space.invalidate(0..1);
    assert_eq!(seen.0.lock().unwrap().len(), 1);
    drop((nested, other));
}

/// Told of the begin and the end of a change.
#[derive(Default)]
struct Both(AtomicU64, AtomicU64);

impl Invalidate for Both {
    fn invalidate(&self, _: Range<u64>) {
        self.0.fetch_add(1, SeqCst);
    }
    fn invalidated(&self, _: Range<u64>) {
        self.1.fetch_add(1, SeqCst);
    }
}

#[test]
fn the_end_of_a_change_is_told_to_whom_its_begin_was() {
    let space = space();
    let both: Vec<Arc<Both>> = (0..3).map(|_| Arc::default()).collect();
    let first = space.register(0..10, both[0].clone()).unwrap();
    let elsewhere = space.register(20..30, both[1].clone()).unwrap();
    let change = space.begin(5..15).unwrap();
    assert_eq!(Change::from_raw(Change::into_raw(Some(change))), Some(change));
    assert_eq!(Change::from_raw(Change::into_raw(None)), None);
    let told = |which: usize| (both[which].0.load(SeqCst), both[which].1.load(SeqCst));
    assert_eq!((told(0), told(1)), ((1, 0), (0, 0)));
    std::thread::scope(|s| {
        let late = s.spawn(|| space.register(0..10, both[2].clone()).unwrap());
        // filed at once, so that no later change is missed; back only when this one is over
        while space.registrations() < 3 {
            std::thread::yield_now();
        }
        assert!(!late.is_finished());
        space.end(5..15, change);
        drop(late.join().unwrap());
    });
    assert_eq!((told(0), told(1), told(2)), ((1, 1), (0, 0), (0, 0)));
    drop((first, elsewhere));
}

#[test]
fn the_thread_that_holds_the_lock_is_not_told() {
    let space = space();
    let seen = Arc::new(Seen::default());
    let registration = space.register(0..10, seen.clone()).unwrap();
    let held = space.lock();
    space.invalidate(0..10);
    drop(held);
    assert!(seen.0.lock().unwrap().is_empty());
    space.invalidate(0..10);
    assert_eq!(seen.0.lock().unwrap().len(), 1);
    drop(registration);
}

#[test]
fn registering_and_unmapping_at_once() {
    let space = space();
    let seen = Arc::new(Seen::default());
    std::thread::scope(|s| {
        for t in 0..2u64 {
            let (space, seen) = (&space, &seen);
            s.spawn(move || {
                for i in 0..2000 {
                    let at = (i % 50) * 16 + t;
                    drop(space.register(at..at + 8, seen.clone()).unwrap());
                }
            });
            s.spawn(move || (0..4000u64).for_each(|i| space.invalidate(i % 800..i % 800 + 20)));
        }
    });
    assert_eq!(space.registrations(), 0);
}

#[test]
fn pinned_pages_are_counted_and_limited_only_on_request() {
    let space = space();
    let one = space.pin(1 << 40).unwrap();
    assert_eq!(space.pinned_pages(), 1 << 40);
    drop(one);
    assert_eq!(space.pinned_pages(), 0);
    space.enforce_memlock(true);
    let result = space.pin(1 << 40);
    let unlimited = may_lock_any() || memlock_limit_bytes() / page_size() >= 1 << 40;
    assert_eq!(result.is_ok(), unlimited);
}

#[test]
fn one_space_a_process() {
    assert!(Arc::ptr_eq(&AddressSpace::process(), &AddressSpace::process()));
    invalidate(0..1);
}

#[test]
fn a_forked_child_does_not_wait_for_its_parents_lock() {
    let space = space();
    let registration = space.register(0..10, Arc::new(Seen::default())).unwrap();
    let held = space.lock();
    // SAFETY: the child only makes system calls and touches atomics, then leaves by _exit.
    let status = unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(10);
            space.invalidate(0..10);
            libc::_exit(42);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 42, "{status:#x}");
    drop(held);
    drop(registration);
}

/// What a child gets that is made while another thread holds the table, or does not.
fn adopted_while(held: bool) -> i32 {
    let space = space();
    let registration = space.register(0..10, Arc::new(Seen::default())).unwrap();
    let guard = held.then(|| space.lock());
    // SAFETY: the child only makes system calls, touches atomics and locks of its own, then
    // leaves by _exit.
    let status = unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(10);
            let adopted = space.adopt_own().is_ok();
            drop(registration);
            libc::_exit(i32::from(adopted));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    drop(guard);
    drop(registration);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn a_daemon_goes_on_with_registrations_that_nobody_held() {
    assert_eq!(adopted_while(false), 1);
    assert_eq!(adopted_while(true), 0);
}
