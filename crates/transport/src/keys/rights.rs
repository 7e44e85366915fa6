//! Who may use a key for what, and why not.

use crate::sabotage::{self, Sabotage};
use crate::values::Access;

/// Why a key does not give access (IBA 10.6.3: all are one "access violation" to the peer).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// No such key, or one of an earlier registration.
    #[error("no such key")]
    Unknown,
    /// The key belongs to another protection domain.
    #[error("key of another protection domain")]
    ForeignPd,
    /// The key lacks the right.
    #[error("the key does not grant this access")]
    Denied,
    /// The range leaves the registration.
    #[error("range outside the registration")]
    Range,
    /// A memory window that is not bound, or bound to another QP.
    #[error("memory window not bound to this queue pair")]
    NotBound,
    /// On-demand memory: no page is there for this access.
    #[error("no page is mapped there")]
    Unmapped,
    /// The range lies in many pieces, and there is no memory to remember them.
    #[error("no memory for the pieces that the range lies in")]
    NoMemory,
}

/// Checks domain and rights of a key.
pub(crate) fn check_rights(
    same_pd: bool,
    granted: Access,
    wanted: Access,
) -> std::result::Result<(), KeyError> {
    if !same_pd && !sabotage::on(Sabotage::SkipPdCheck) {
        return Err(KeyError::ForeignPd);
    }
    if !granted.contains(wanted) && !sabotage::on(Sabotage::SkipKeyAccess) {
        return Err(KeyError::Denied);
    }
    Ok(())
}
