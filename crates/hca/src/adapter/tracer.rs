//! Leave for a neighbour where Yama asks for it (`Documentation/admin-guide/LSM/Yama.rst`): with
//! `ptrace_scope` 1, as Ubuntu has it, a process reaches only the memory of its own descendants and
//! of a process that has named it, or an ancestor of it, by `PR_SET_PTRACER`. One can be named at a
//! time.
//!
//! The first process that a queue pair is connected to is named until its last neighbour here is
//! gone, and then the next that one is connected to; requests to the others' memory go by packets.
//! Whom the program itself names counts more: then nobody is named here. A process that is named
//! could attach itself as a debugger as well, so its number has to be proven
//! ([`Neighbour::agree`]).

use super::directory::neighbour::Neighbour;
use engine_thread::try_lock;
use rustix::process::{PTracer, Pid, getpid, set_ptracer};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Whether the program leaves it to this library whom to name.
static RULE: OnceLock<fn() -> bool> = OnceLock::new();

/// Whose process is named. Its lock is innermost, and nobody waits for it: in the child of a fork
/// it may stay locked.
static NAMED: Mutex<Named> = Mutex::new(Named { by: 0, pid: 0, neighbours: Vec::new() });

struct Named {
    /// Who named it: a child of a fork has named nobody.
    by: u32,
    pid: u32,
    /// Neighbours of that process: one for each pair of devices. Empty when nobody is named.
    neighbours: Vec<Weak<Neighbour>>,
}

/// Has neighbours named to Yama as long as `rule` says so; until then none is.
pub fn name_neighbours_while(rule: fn() -> bool) {
    let _ = RULE.set(rule);
}

fn may_name() -> bool {
    RULE.get().is_some_and(|may| may())
}

/// Whether a process has to be named.
pub(crate) fn is_asked_for() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.is_ok_and(|scope| scope.trim() == "1")
}

/// Names the process of `neighbour`, unless another one has to stay named.
pub(crate) fn name(neighbour: &Arc<Neighbour>) {
    if !may_name() || !is_asked_for() {
        return;
    }
    let (own, pid) = (getpid().as_raw_pid().cast_unsigned(), neighbour.pid());
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    // Neighbours are not to be dropped under the lock, which their end takes: these go after it.
    let mut kept: SmallVec<[Arc<Neighbour>; 2]> = SmallVec::new();
    let Some(mut named) = try_lock(&NAMED) else { return };
    if named.by != own {
        named.neighbours.clear();
    }
    named.neighbours.retain(|known| known.strong_count() > 0);
    if named.pid != pid {
        kept.extend(named.neighbours.iter().filter_map(Weak::upgrade));
        if kept.iter().any(|known| known.is_there()) {
            return;
        }
        named.neighbours.clear();
    }
    let is_known = named.neighbours.iter().any(|known| known.as_ptr() == Arc::as_ptr(neighbour));
    if named.neighbours.try_reserve(1).is_err() || !may_name() {
        return;
    }
    if set_ptracer(PTracer::ProcessID(number)).is_err() {
        return;
    }
    (named.by, named.pid) = (own, pid);
    if !is_known {
        named.neighbours.push(Arc::downgrade(neighbour));
    }
    if !neighbour.is_there() {
        // The number may be another's by now.
        named.neighbours.clear();
        let _ = set_ptracer(PTracer::None);
    }
}

/// `neighbour` is no more: with the last of its process the leave ends. Where another thread is at
/// it, that waits for the next one that is named.
pub(crate) fn forget(neighbour: &Neighbour) {
    let Some(mut named) = try_lock(&NAMED) else { return };
    let own = getpid().as_raw_pid().cast_unsigned();
    if named.by != own || named.neighbours.is_empty() {
        return;
    }
    named.neighbours.retain(|known| !std::ptr::eq(known.as_ptr(), neighbour));
    if named.neighbours.is_empty() && may_name() {
        let _ = set_ptracer(PTracer::None);
    }
}
