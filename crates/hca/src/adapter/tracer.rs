//! Leave for a neighbour where Yama asks for it (`Documentation/admin-guide/LSM/Yama.rst`): with
//! `ptrace_scope` 1, as Ubuntu has it, a process reaches only the memory of its own descendants and
//! of a process that has named it, or an ancestor of it, by `PR_SET_PTRACER`. One can be named at a
//! time.
//!
//! The first process that a queue pair is connected to is named until its last neighbour here is
//! gone, and then another; requests to the others' memory go by packets. Whom the program itself
//! names counts more: then nobody is named here. A process that is named could attach itself as a
//! debugger as well, so its number has to be proven ([`Neighbour::agree`]).

use super::directory::neighbour::Neighbour;
use engine_thread::try_lock;
use rustix::process::{PTracer, Pid, getpid, set_ptracer};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Whether the program leaves it to this library whom to name.
static RULE: OnceLock<fn() -> bool> = OnceLock::new();

/// Whose process is named. Its lock is innermost, and nobody waits for it: in the child of a fork
/// it may stay locked.
static NAMED: Mutex<Named> = Mutex::new(Named::NOBODY);

#[derive(Clone)]
struct Named {
    /// Who named it: a child of a fork has named nobody.
    by: u32,
    pid: u32,
    /// Neighbours of that process: one for each pair of devices.
    neighbours: u32,
    latest: Weak<Neighbour>,
}

impl Named {
    const NOBODY: Named = Named { by: 0, pid: 0, neighbours: 0, latest: Weak::new() };
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
    let Some(before) = try_lock(&NAMED).map(|named| named.clone()) else { return };
    // Not to be dropped under the lock, which its end takes.
    let known = before.latest.upgrade();
    let is_another = before.by == own && before.pid != pid;
    if is_another && known.as_ref().is_some_and(|known| known.is_there()) {
        return;
    }
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let Some(mut named) = try_lock(&NAMED) else { return };
    if !may_name() || set_ptracer(PTracer::ProcessID(number)).is_err() {
        return;
    }
    if !neighbour.is_there() {
        // The number may be another's by now.
        let _ = set_ptracer(PTracer::None);
        *named = Named::NOBODY;
        return;
    }
    if (named.by, named.pid) != (own, pid) {
        *named = Named { by: own, pid, ..Named::NOBODY };
    }
    let is_new = neighbour.becomes_named() || named.neighbours == 0;
    named.neighbours += u32::from(is_new);
    named.latest = Arc::downgrade(neighbour);
}

/// A neighbour of the process `pid` that was named is no more: with the last the leave ends.
pub(crate) fn forget(pid: u32) {
    let Some(mut named) = try_lock(&NAMED) else { return };
    if (named.by, named.pid) != (getpid().as_raw_pid().cast_unsigned(), pid) {
        return;
    }
    named.neighbours = named.neighbours.saturating_sub(1);
    if named.neighbours == 0 {
        *named = Named::NOBODY;
        if may_name() {
            let _ = set_ptracer(PTracer::None);
        }
    }
}
