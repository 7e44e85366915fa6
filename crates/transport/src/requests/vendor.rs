//! Vendor error codes of completions: which check failed.

use crate::keys::{BindError, ConfigureError, KeyError};
use umem::AccessError;

pub(crate) const NONE: u32 = 0;
pub(crate) const TOO_SHORT: u32 = 0x20;
pub(crate) const NO_READ_RESOURCES: u32 = 0x21;
pub(crate) const BAD_RESPONSE: u32 = 0x22;
pub(crate) const FOREIGN_AH: u32 = 0x23;
pub(crate) const SLOT_LOST: u32 = 0x24;
pub(crate) const SIGNED: u32 = 0x25;
pub(crate) const NO_MEMORY: u32 = 0x26;

pub(crate) fn key(error: KeyError) -> u32 {
    match error {
        KeyError::Unknown => 1,
        KeyError::ForeignPd => 2,
        KeyError::Denied => 3,
        KeyError::Range => 4,
        KeyError::NotBound => 5,
        KeyError::Unmapped => 6,
        KeyError::NoMemory => NO_MEMORY,
    }
}

pub(crate) fn bind(error: BindError) -> u32 {
    match error {
        BindError::Window => 0x31,
        BindError::State => 0x32,
        BindError::Rights => 0x33,
        BindError::Region => 0x34,
        BindError::RegionRights => 0x35,
        BindError::Range => 0x36,
    }
}

pub(crate) fn configure(error: ConfigureError) -> u32 {
    match error {
        ConfigureError::Key => 0x41,
        ConfigureError::Rights => 0x42,
        ConfigureError::Entries => 0x43,
        ConfigureError::Signature => 0x44,
    }
}

pub(crate) fn memory(error: AccessError) -> u32 {
    match error {
        AccessError::Revoked => 0x11,
        AccessError::OutOfRange => 0x12,
        AccessError::Fault => 0x13,
        AccessError::Unreachable => 0x14,
        AccessError::Unmapped => 0x15,
        AccessError::NotPresent { .. } => 0x16,
        AccessError::Moving => 0x17,
    }
}
