//! On whose behalf keys are changed.

use hca::PdId;

/// On whose behalf keys are changed.
///
/// A queue pair changes keys of its own protection domain, which stay there. With the right to
/// fast-register (`qpc.fre`, which drivers give their own queue pairs and no program's) it may
/// change any of them, also the addresses of the machine's pages in a key's list. Without, only
/// keys over parts of other keys: what those then show is looked up in the same domain, so a
/// program lays out, and binds windows to, what its own context registered and nothing else.
///
/// Source: PRM "Queue Pair Context" (`fre`) and "UMR WQE"; Linux's `create_kernel_qp` sets it,
/// `create_user_qp` does not.
#[derive(Clone, Copy)]
pub(crate) struct Changer {
    /// Its domain; `None` for a queue pair that is in no domain.
    pub(crate) pd: Option<PdId>,
    pub(crate) fast_registers: bool,
}
