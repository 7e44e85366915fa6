//! Memory of others that is mapped here for as long as this process makes use of it, so that it
//! copies without a call to the system.
//!
//! A view is a loan: as long as it is there, so are the pages, whatever their owner does. Who has
//! not used one for a while gives it back ([`forget_unused`]), so what the owner frees stays for
//! that long at most. All that is lent to the process is held here, and whoever uses a view knows
//! it weakly.

use crate::brought_in::BroughtIn;
use crate::guard::Sink;
use crate::map::{Mapping, populate};
use engine_thread::{lock, try_lock};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{SecureComputingMode, secure_computing_mode};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long a view stays that is not used, and up to twice as long.
const PATIENCE: Duration = Duration::from_millis(500);

/// Views at the same time: of the mappings that a process may have (`vm.max_map_count`, 65530) the
/// program needs most.
const MOST: usize = 1024;

/// The part of address space that all of them may take together, a sixteenth: how long memory is
/// its owner says, which may be whatever it likes. The kernel maps from the end of that space down.
fn most_bytes(at: u64) -> u64 {
    at.checked_next_power_of_two().unwrap_or(1 << 63) / 16
}

/// What is lent, and how many that are without a look under the lock.
static LENT: Mutex<Vec<Arc<View>>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Why memory of another process is not mapped here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotLent {
    /// It cannot be, or is not to be.
    Never,
    /// Memory, descriptors or views are out, or another thread is at it: it may work later.
    NotNow,
}

/// Bytes of another process that are mapped here.
#[derive(Debug)]
pub struct View {
    /// Always there, until the view goes.
    mapping: Option<Mapping>,
    /// The process that has the mapping: a forked child does not.
    pid: u32,
    /// Where in the mapping they begin.
    at: u64,
    size: u64,
    brought_in: BroughtIn,
    /// Nobody has been told of it yet who gives it back.
    is_new: AtomicBool,
    /// Somebody has used it since it was last asked.
    used: AtomicBool,
}

/// Where another process has bytes, and the view of them.
#[derive(Clone, Debug)]
pub struct Loan {
    view: Weak<View>,
    /// Address there of the first byte.
    base: u64,
}

impl Loan {
    /// Reaches what another process has from `base` on by a view of it.
    pub fn new(view: Weak<View>, base: u64) -> Loan {
        Loan { view, base }
    }

    /// The view, unless it was given back; and the offset in it of what is at `addr` there.
    pub fn at(&self, addr: u64) -> Option<(Arc<View>, u64)> {
        let view = self.view.upgrade()?;
        view.used.store(true, Relaxed);
        Some((view, addr.checked_sub(self.base)?))
    }
}

impl View {
    /// Lends the `size` bytes from `at` on of a mapping to this process. Waits for no lock.
    ///
    /// # Errors
    /// [`NotLent::NotNow`] where too many are lent, or too much, there is no memory, or another
    /// thread is at it.
    pub fn lend(mapping: Mapping, at: u64, size: u64) -> Result<Weak<View>, NotLent> {
        // In the child of a fork the lock may be held by a thread that is not there.
        let mut lent = try_lock(&LENT).ok_or(NotLent::NotNow)?;
        let lengths = lent.iter().filter_map(|view| view.mapping.as_ref()).map(Mapping::len);
        let bytes = lengths.fold(mapping.len(), u64::saturating_add);
        let is_too_much = lent.len() >= MOST || bytes > most_bytes(mapping.addr());
        if is_too_much || lent.try_reserve(1).is_err() {
            return Err(NotLent::NotNow);
        }
        // A child would keep it as long as it lives, and has no use for it; and a program that
        // crashes would write all memory of its peers to the disk.
        mapping.keep_here();
        let (mapping, pid) = (Some(mapping), std::process::id());
        let (brought_in, is_new) = (BroughtIn::default(), AtomicBool::new(true));
        let used = AtomicBool::new(true);
        let view = Arc::new(View { mapping, pid, at, size, brought_in, is_new, used });
        let lender = Arc::downgrade(&view);
        lent.push(view);
        COUNT.store(lent.len(), SeqCst);
        Ok(lender)
    }

    /// Whether one may be lent at all. Address space that is limited is the program's; and where
    /// calls to the system are filtered, as those of services are, one that a program is not known
    /// to need may end it.
    pub fn may_be_lent() -> bool {
        let is_limited = getrlimit(Resource::As).current.is_some();
        !is_limited && secure_computing_mode() == Ok(SecureComputingMode::Disabled)
    }

    /// Whether process `pid`, this one, has the mapping; a forked child's copy is its parent's.
    pub fn is_of(&self, pid: u32) -> bool {
        self.pid == pid
    }

    /// Whether it is asked so for the first time: somebody has to call [`forget_unused`] from now
    /// on.
    pub fn is_new(&self) -> bool {
        self.is_new.load(Relaxed) && self.is_new.swap(false, Relaxed)
    }

    /// So many bytes from `offset` on; `None` beyond the end.
    pub fn memory(&self, offset: u64, len: u64) -> Option<Sink<'_>> {
        let bytes = self.mapping.as_ref()?.sink().part(self.at, self.size).ok()?;
        bytes.part(offset, len).ok()
    }

    /// Brings pages of it in, which saves the copy their faults. What cannot be brought in shows as
    /// a fault of the copy.
    pub fn bring_in(&self, offset: u64, len: u64) {
        let Some(memory) = self.memory(offset, len) else { return };
        // A page that is read in is there for writing too, since the mapping is shared.
        let bring_in = || populate(memory.addr(), memory.len(), false).is_ok();
        self.brought_in.ensure(offset..offset + len, || false, bring_in);
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // What a child has at these addresses is something else.
        if self.pid != std::process::id() {
            std::mem::forget(self.mapping.take());
        }
    }
}

/// Gives views back that nobody has used since it last looked, half a second ago at least: several
/// threads may be at it. Answers when it is to look again, if there are any. Waits for no lock, and
/// for nobody who is at a view; allocates nothing.
pub fn forget_unused() -> Option<Duration> {
    static LOOKED: Mutex<Option<Instant>> = Mutex::new(None);
    if COUNT.load(SeqCst) == 0 {
        return None;
    }
    let Some(mut looked) = try_lock(&LOOKED) else { return Some(PATIENCE) };
    let rest = looked.map_or(Duration::ZERO, |at| PATIENCE.saturating_sub(at.elapsed()));
    if !rest.is_zero() {
        return Some(rest);
    }
    *looked = Some(Instant::now());
    give_back();
    Some(PATIENCE)
}

/// Gives all views back: who called [`forget_unused`] does so no more. Waits for nobody who is at a
/// view, who keeps it until then.
pub fn forget_all() {
    let mut lent = lock(&LENT);
    let all = std::mem::take(&mut *lent);
    COUNT.store(0, SeqCst);
    drop(lent);
    drop(all);
}

/// Gives the views back that nobody has used since the last time.
pub(crate) fn give_back() {
    let mut at = 0;
    loop {
        let Some(mut lent) = try_lock(&LENT) else { return };
        let is_used = |view: &Arc<View>| view.used.swap(false, Relaxed);
        at += lent.iter().skip(at).take_while(|view| is_used(view)).count();
        if at >= lent.len() {
            return;
        }
        let unused = lent.swap_remove(at);
        COUNT.store(lent.len(), SeqCst);
        // What it has mapped goes only now: that may take long.
        drop(lent);
        drop(unused);
    }
}

/// Keeps the other tests from what all of them share.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    engine_thread::lock(&ALONE)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::guard;
    use std::os::fd::AsFd;

    fn lend(size: u64) -> Loan {
        guard::install();
        let mapping = Mapping::anonymous_shared(3 * 4096).unwrap();
        Loan::new(View::lend(mapping, 100, size).unwrap(), 0x1000)
    }

    #[test]
    fn a_view_is_given_back_when_it_is_not_used() {
        let _alone = alone();
        let (one, other) = (lend(4096), lend(4096));
        let (view, offset) = one.at(0x1005).unwrap();
        assert!(one.at(0xfff).is_none());
        assert!(view.is_new() && !view.is_new());
        view.bring_in(offset, 100);
        view.memory(offset, 5).unwrap().write(b"there").unwrap();
        let mut bytes = [0; 5];
        view.memory(5, 5).unwrap().source().read(&mut bytes).unwrap();
        assert_eq!(&bytes, b"there");
        assert!(view.memory(4092, 5).is_none() && view.memory(u64::MAX, 5).is_none());
        drop(view);
        give_back();
        assert!(one.at(0x1000).is_some() && other.view.strong_count() > 0, "both were new");
        give_back();
        assert!(one.at(0x1000).is_some() && other.at(0x1000).is_none(), "one was used since");
        assert!(forget_unused().is_some());
        give_back();
        give_back();
        assert!(one.at(0x1000).is_none());
        assert_eq!(forget_unused(), None);
    }

    #[test]
    fn all_are_given_back_at_once() {
        let _alone = alone();
        let (one, other) = (lend(64), lend(64));
        let (view, _) = one.at(0x1000).unwrap();
        forget_all();
        assert_eq!(forget_unused(), None);
        assert!(other.at(0x1000).is_none());
        view.memory(0, 1).unwrap().write(b"!").unwrap();
        drop(view);
        assert!(one.at(0x1000).is_none());
    }

    /// The flags of the mapping that `view` is of, as proc_pid_smaps(5) has them.
    fn flags_of(view: &View) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begin = format!("{:x}-", view.mapping.as_ref().unwrap().addr());
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&begin));
        lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap().to_owned()
    }

    #[test]
    fn what_is_lent_is_in_no_child_and_no_core_dump() {
        let _alone = alone();
        let (view, _) = lend(64).at(0x1000).unwrap();
        let flags = flags_of(&view);
        assert!(flags.contains(" dc") && flags.contains(" dd"), "{flags}");
    }

    #[test]
    fn no_more_are_lent_than_a_process_has_mappings_for() {
        let _alone = alone();
        let all: Vec<Loan> = (0..MOST).map(|_| lend(64)).collect();
        let one_more = View::lend(Mapping::anonymous_shared(4096).unwrap(), 0, 64);
        assert_eq!(one_more.err(), Some(NotLent::NotNow));
        drop(all);
        give_back();
        give_back();
        assert!(View::lend(Mapping::anonymous_shared(4096).unwrap(), 0, 64).is_ok());
    }

    /// A file may be as long as its owner likes, and takes no memory.
    #[test]
    fn no_more_bytes_are_lent_than_there_are_addresses_for() {
        let _alone = alone();
        forget_all();
        let file = rustix::fs::memfd_create("long", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let most = most_bytes(Mapping::anonymous(4096).unwrap().addr());
        let quarter = most / 4;
        rustix::fs::ftruncate(&file, quarter).unwrap();
        let lend = || {
            let mapping = Mapping::shared_lazily(file.as_fd(), 0..quarter, true).unwrap();
            View::lend(mapping, 0, quarter)
        };
        assert!((0..4).all(|_| lend().is_ok()));
        assert_eq!(lend().err(), Some(NotLent::NotNow));
        forget_all();
        assert!(lend().is_ok());
        forget_all();
        let length = |at| most_bytes(at).trailing_zeros();
        assert!(length(0x7fff_0000_0000) == 43 && length(0x7f_0000_0000) == 35);
        assert_eq!(length(u64::MAX), 59);
    }

    #[test]
    fn who_is_at_a_view_keeps_it() {
        let _alone = alone();
        let reach = lend(64);
        let (view, _) = reach.at(0x1000).unwrap();
        give_back();
        give_back();
        assert!(reach.view.upgrade().is_some() && Arc::strong_count(&view) == 1);
        view.memory(0, 1).unwrap().write(b"!").unwrap();
    }
}
