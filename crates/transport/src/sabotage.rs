//! Deliberate defects, to prove that the tests would notice them.
//!
//! Without the feature `sabotage` every question here is answered "no" at compile time and nothing
//! is left in the program. With it, a test switches one defect on for its own thread and asserts
//! that the named check then fails; or a process that a test started has one everywhere.

/// A rule that can be broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Sabotage {
    /// A key is found by its index alone, whatever its tag.
    SkipRkeyCheck,
    /// A key of another protection domain is good.
    SkipPdCheck,
    /// A range may leave its registration.
    SkipRangeCheck,
    /// A key's rights are not looked at.
    SkipKeyAccess,
    /// A QP's rights are not looked at.
    SkipAccessFlags,
    /// The responder takes any PSN for the expected one.
    SkipPsnCheck,
    /// A repeated atomic is executed again instead of answered from the saved result.
    ReexecuteAtomics,
    /// A missing receive request drops the message instead of asking the peer to wait.
    IgnoreRnr,
    /// Completions of one acknowledge come out last first.
    LoseCompletionOrder,
    /// A datagram's Q_Key is not looked at.
    SkipQkey,
    /// A packet's P_Key is not looked at.
    SkipPkey,
    /// An acknowledge goes out although the payload was not placed.
    AckBeforePlace,
    /// A length that differs from the announced one is good.
    SkipLengthCheck,
    /// A fenced request does not wait.
    IgnoreFence,
    /// A window of type 2 is open to every QP.
    SkipWindowQp,
    /// A window is bound to a registration that does not allow it.
    SkipBindRight,
    /// An XRC queue of any domain may be named.
    SkipXrcDomain,
    /// A FLUSH needs no right.
    SkipFlushRight,
    /// A rendezvous is answered before its data is there.
    FinBeforeData,
    /// An RDMA WRITE's payload is not placed.
    LoseWrite,
    /// A tagged buffer takes messages although unexpected ones are not reported handled.
    IgnoreTagPhase,
    /// The signature of a block is not checked.
    SkipSignature,
}

impl Sabotage {
    /// Every defect there is.
    pub const ALL: &[Sabotage] = &[
        Sabotage::SkipRkeyCheck,
        Sabotage::SkipPdCheck,
        Sabotage::SkipRangeCheck,
        Sabotage::SkipKeyAccess,
        Sabotage::SkipAccessFlags,
        Sabotage::SkipPsnCheck,
        Sabotage::ReexecuteAtomics,
        Sabotage::IgnoreRnr,
        Sabotage::LoseCompletionOrder,
        Sabotage::SkipQkey,
        Sabotage::SkipPkey,
        Sabotage::AckBeforePlace,
        Sabotage::SkipLengthCheck,
        Sabotage::IgnoreFence,
        Sabotage::SkipWindowQp,
        Sabotage::SkipBindRight,
        Sabotage::SkipXrcDomain,
        Sabotage::SkipFlushRight,
        Sabotage::FinBeforeData,
        Sabotage::LoseWrite,
        Sabotage::IgnoreTagPhase,
        Sabotage::SkipSignature,
    ];
}

/// Whether `what` is switched on in this thread.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn on(_what: Sabotage) -> bool {
    false
}

#[cfg(feature = "sabotage")]
mod switched {
    use super::Sabotage;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    thread_local! {
        static ACTIVE: Cell<Option<Sabotage>> = const { Cell::new(None) };
    }
    const NOWHERE: u32 = u32::MAX;
    static EVERYWHERE: AtomicU32 = AtomicU32::new(NOWHERE);
    static ASKED: AtomicU32 = AtomicU32::new(0);

    pub(crate) fn on(what: Sabotage) -> bool {
        ACTIVE.get() == Some(what)
            || EVERYWHERE.load(Relaxed) == what as u32
                && ASKED.fetch_add(1, Relaxed).is_multiple_of(64)
    }

    /// Switches one defect on in the whole process, for every 64th question about it.
    pub fn everywhere(what: Sabotage) {
        EVERYWHERE.store(what as u32, Relaxed);
    }

    /// Runs `f` with one defect switched on in this thread; switches it off also when `f` panics.
    pub fn with<R>(what: Sabotage, f: impl FnOnce() -> R) -> R {
        struct Off(Option<Sabotage>);
        impl Drop for Off {
            fn drop(&mut self) {
                ACTIVE.set(self.0);
            }
        }
        let _off = Off(ACTIVE.replace(Some(what)));
        f()
    }
}

#[cfg(feature = "sabotage")]
pub(crate) use switched::on;
#[cfg(feature = "sabotage")]
pub use switched::{everywhere, with};
