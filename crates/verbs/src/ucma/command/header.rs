//! What stands before every command: its number and its lengths, as `rdma_user_cm.h` has them.

use crate::base::ffi::{Errno, INVALID, Res};
use crate::ucma::layout::{Fields, read};

/// `struct rdma_ucm_cmd_hdr`.
pub const HEADER_LEN: u64 = 8;

pub const CREATE_ID: u32 = 0;
pub const DESTROY_ID: u32 = 1;
pub const BIND_IP: u32 = 2;
pub const RESOLVE_IP: u32 = 3;
pub const RESOLVE_ROUTE: u32 = 4;
pub const QUERY_ROUTE: u32 = 5;
pub const CONNECT: u32 = 6;
pub const LISTEN: u32 = 7;
pub const ACCEPT: u32 = 8;
pub const REJECT: u32 = 9;
pub const DISCONNECT: u32 = 10;
pub const INIT_QP_ATTR: u32 = 11;
pub const GET_EVENT: u32 = 12;
pub const GET_OPTION: u32 = 13;
pub const SET_OPTION: u32 = 14;
pub const NOTIFY: u32 = 15;
pub const JOIN_IP_MCAST: u32 = 16;
pub const LEAVE_MCAST: u32 = 17;
pub const MIGRATE_ID: u32 = 18;
pub const QUERY: u32 = 19;
pub const BIND: u32 = 20;
pub const RESOLVE_ADDR: u32 = 21;
pub const JOIN_MCAST: u32 = 22;
pub const RESOLVE_IB_SERVICE: u32 = 23;
pub const WRITE_CM_EVENT: u32 = 24;
/// Number of commands; those of newer kernels are refused as an older one would.
const COMMANDS: u32 = 25;

/// What stands before every command.
#[derive(Clone, Copy)]
pub struct Header {
    pub command: u32,
    /// Bytes of the command's structure.
    pub in_len: usize,
    /// Room for the answer.
    pub out_len: usize,
}

impl Header {
    /// Whether it is the one that waits.
    pub fn is_get_event(&self) -> bool {
        self.command == GET_EVENT
    }
}

/// Reads and checks the header of `len` bytes at `buffer`.
///
/// # Safety
/// The program wrote the command there.
pub unsafe fn header(buffer: u64, len: usize) -> Res<Header> {
    if (len as u64) < HEADER_LEN {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { read::<8>(buffer) }?;
    let fields = Fields(&bytes);
    let in_len = usize::from(fields.u16(4));
    let header = Header { command: fields.u32(0), in_len, out_len: fields.u16(6).into() };
    if header.command >= COMMANDS || in_len + HEADER_LEN as usize > len {
        return Err(INVALID);
    }
    if header.command == GET_OPTION {
        return Err(Errno(libc::ENOSYS));
    }
    Ok(header)
}
