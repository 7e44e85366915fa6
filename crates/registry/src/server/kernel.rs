//! What the registry's logic needs from the system, so that it can be tested without one.

use crate::Error;
use crate::steer::Insn;
use std::collections::BTreeSet;
use std::time::Duration;

/// An IP family; each has its own reuseport group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A socket and the slot it serves, if any.
pub(crate) type Held<F> = (Option<u16>, F);

/// What is in a vault.
pub(crate) type Contents<F> = Vec<(Family, Held<F>)>;

/// The system under the server. `Fd` is a shared handle: clones are one descriptor.
pub(crate) trait Kernel {
    type Fd: Clone + PartialEq;

    /// A new socket at the end of the family's group; `None` where the host lacks the family.
    fn bind(&mut self, family: Family) -> Result<Option<Self::Fd>, Error>;
    /// Attaches the steering program to the group that `via` is in.
    fn steer(&mut self, via: &Self::Fd, program: &[Insn]) -> Result<(), Error>;
    /// Takes a socket out of its group, whoever else holds it; the last of the group moves to its
    /// index.
    fn expel(&mut self, family: Family, socket: &Self::Fd);
    /// Finds out which of `sockets` is at each index of the group; `None` is somebody else's
    /// socket. No answer where the host cannot send to itself.
    fn locate(&mut self, family: Family, sockets: &[Self::Fd]) -> Option<Vec<Option<usize>>>;
    /// Whether all these sockets are at these indices; no answer where the host cannot send to
    /// itself.
    fn are_at(&mut self, family: Family, expected: &[(Self::Fd, u32)]) -> Option<bool>;
    /// Whether two descriptors are one socket.
    fn same(&self, a: &Self::Fd, b: &Self::Fd) -> bool;
    /// Makes these sockets, each with the slot it serves, outlive this process for as long as
    /// somebody holds the vault, instead of those before.
    fn fill_vault(&mut self, sockets: &[Held<Self::Fd>]);
    /// The vault, to be held by members; `None` if there cannot be one.
    fn vault(&self) -> Option<Self::Fd>;
    /// The sockets in the vault of a host that ended; they stay in it. No error but that there is
    /// no memory for them.
    fn open_vault(&mut self, vault: &Self::Fd) -> Result<Contents<Self::Fd>, Error>;
    /// The proof that a slot is in use, which lives as long as its holder; `None` if it is in use.
    fn deed(&mut self, slot: u16) -> Result<Option<Self::Fd>, Error>;
    /// Whether the proof that a slot is in use still exists.
    fn is_held(&self, slot: u16) -> bool;
    /// Slots in use by processes that are not among `present`; these get word to look for this
    /// registry.
    fn absentees(&mut self, present: &BTreeSet<u16>) -> Vec<u16>;
    /// Nanoseconds since the epoch.
    fn now(&mut self) -> u64;
    /// Time since some moment, by a clock that nobody sets.
    fn uptime(&self) -> Duration;
    /// A random number.
    fn random(&mut self) -> u32;
}
