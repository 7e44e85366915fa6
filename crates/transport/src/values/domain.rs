//! Identities of domains.

/// Identity of a protection domain within the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PdId(pub u32);

/// Identity of an XRC domain within one device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct XrcdId(pub u32);
