//! Commands other than `GET_EVENT`, checked in the kernel's order (`ucma.c`) and carried out.

mod address;
mod connection;
mod header;
mod id;
mod multicast;
mod option;
mod query;
mod request;

pub use header::{Header, header};
pub use request::errno;

use super::channel::Channel;
use crate::base::ffi::{Errno, Res};
use header::*;
use request::Command;
use std::os::fd::RawFd;

/// Carries out the command at `buffer`.
///
/// # Safety
/// The program wrote the command, with places of its own for the answer.
pub unsafe fn run(channel: &Channel, fd: RawFd, header: Header, buffer: u64) -> Res<()> {
    let at = buffer.wrapping_add(HEADER_LEN);
    let command = Command { channel, service: &channel.engine().cm, fd, header, at };
    match header.command {
        CREATE_ID => command.create_id(),
        DESTROY_ID => command.destroy_id(),
        BIND_IP => command.bind_ip(),
        BIND => command.bind_storage(),
        RESOLVE_IP => command.resolve_ip(),
        RESOLVE_ADDR => command.resolve_storage(),
        RESOLVE_ROUTE => command.resolve_route(),
        QUERY_ROUTE => command.query_route(),
        QUERY => command.query(),
        CONNECT => command.connect(),
        LISTEN => command.listen(),
        ACCEPT => command.accept(),
        REJECT => command.reject(),
        DISCONNECT => command.disconnect(),
        INIT_QP_ATTR => command.init_qp_attr(),
        SET_OPTION => command.set_option(),
        NOTIFY => command.notify(),
        JOIN_IP_MCAST => command.join_ip(),
        JOIN_MCAST => command.join_storage(),
        LEAVE_MCAST => command.leave(),
        MIGRATE_ID => command.migrate(),
        RESOLVE_IB_SERVICE => command.resolve_service(),
        WRITE_CM_EVENT => command.write_event(),
        _ => Err(Errno(libc::ENOSYS)),
    }
}
