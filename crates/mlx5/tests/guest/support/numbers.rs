//! Numbers of the PRM that several tests compare with or ask by.

/// Opcodes of requests.
pub const WRITE: u8 = 0x08;
pub const SEND: u8 = 0x0a;
pub const READ: u8 = 0x10;
pub const FETCH_ADD: u8 = 0x12;
pub const UMR: u8 = 0x25;
/// In a request that changes a key: it fails if the key is not free.
pub const CHECK_NOT_FREE: u8 = 1 << 5;

/// Opcodes of completions.
pub const REQUEST: u8 = 0;
pub const RESPONSE_SEND: u8 = 2;
pub const REQUEST_ERROR: u8 = 13;
pub const RESPONSE_ERROR: u8 = 14;

/// Syndromes of completions with an error.
pub const LOCAL_PROTECTION: u8 = 0x04;
pub const REMOTE_ACCESS: u8 = 0x13;

/// Statuses of commands.
pub const BAD_PARAMETER: u8 = 3;
pub const BAD_RESOURCE: u8 = 5;
pub const BUSY: u8 = 6;
