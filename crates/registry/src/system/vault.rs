//! Sockets that must outlive the process which hosts the registry.
//!
//! When a host ends, its own members' sockets and the vacant seats that only it held would leave
//! their group, as would those of members that end with it, and others would move into their
//! places: until the next host knows the new order, datagrams go astray. So the host keeps
//! duplicates of all sockets in a *vault*: in flight in a socket pair, whose far end every member
//! holds a descriptor of. As long as one member lives, nothing in the vault closes; members bring
//! it to the next host. That one copies the sockets, with the slots they serve, into its own vault,
//! and gives those of the dead up one by one, in an order that moves nobody. The old vault stays
//! full until its last member holds the new one, so a host may also end while it follows on
//! another.

use crate::Error;
use crate::fds::{Fd, Table};
use crate::proto::MAX_FDS;
use crate::server::kernel::{Contents, Family, Held};
use crate::system::{probe, record, sys};
use engine_thread::has_memory;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::os::fd::AsFd;
use std::sync::Arc;

/// A host's vault.
pub(crate) struct Vault {
    near: Fd,
    far: Arc<Fd>,
    /// Records in it.
    records: usize,
}

impl Vault {
    pub(crate) fn new(table: &Arc<Table>) -> rustix::io::Result<Vault> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Vault { near: table.keep(near), far: Arc::new(table.keep(far)), records: 0 })
    }

    /// The end that members hold.
    pub(crate) fn far(&self) -> &Arc<Fd> {
        &self.far
    }

    /// Makes these sockets the contents. Best effort: what does not fit, or exceeds the limit on
    /// descriptors in flight, closes with the host.
    pub(crate) fn fill(&mut self, sockets: &[Held<Arc<Fd>>]) {
        let before = std::mem::take(&mut self.records);
        for some in sockets.chunks(MAX_FDS) {
            // A record says the slots of its sockets, 0 for none.
            let slots: Vec<u8> =
                some.iter().flat_map(|(slot, _)| slot.unwrap_or(0).to_le_bytes()).collect();
            let fds: Vec<_> = some.iter().map(|(_, fd)| fd.as_fd()).collect();
            self.records += usize::from(record::send(&self.near, &slots, &fds).is_ok());
        }
        // Only now: a socket that stays is never out of the vault.
        for _ in 0..before {
            let _ = record::receive(&self.far);
        }
    }
}

/// Copies of all sockets in a vault.
///
/// # Errors
/// There is no memory for them.
pub(crate) fn contents(vault: &Fd, table: &Arc<Table>) -> Result<Contents<Arc<Fd>>, Error> {
    let mut sockets = Vec::new();
    if sys::peek_from_start(vault).is_err() {
        return Ok(sockets);
    }
    while let Ok(Some(record)) = record::peek(vault) {
        if !has_memory() {
            return Err(Error::system("taking over the sockets of the host before", Errno::NOMEM));
        }
        let slots = record.bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        for (slot, fd) in slots.zip(record.fds) {
            let domain = sockopt::socket_domain(&fd);
            let family = [Family::V4, Family::V6];
            let family = family.into_iter().find(|f| domain == Ok(probe::domain(*f)));
            let held = ((slot > 0).then_some(slot), Arc::new(table.keep(fd)));
            sockets.extend(family.map(|family| (family, held)));
        }
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(table: &Arc<Table>, family: Family) -> Arc<Fd> {
        let domain = probe::domain(family);
        let fd = rustix::net::socket(domain, SocketType::DGRAM, None).unwrap();
        Arc::new(table.keep(fd))
    }

    #[test]
    fn what_was_put_in_last_outlives_the_host() {
        let table = Table::new();
        let mut vault = Vault::new(&table).unwrap();
        let far = table.duplicate(vault.far().as_fd()).unwrap();
        let family = |i: u16| if i.is_multiple_of(2) { Family::V4 } else { Family::V6 };
        let first = [(Some(3), socket(&table, Family::V4))];
        let second: Vec<Held<Arc<Fd>>> =
            (0..9).map(|i| ((i != 5).then_some(i + 1), socket(&table, family(i)))).collect();
        vault.fill(&first);
        vault.fill(&second);
        let cookie = |fd: &Arc<Fd>| sockopt::socket_cookie(fd).unwrap();
        let wanted: Vec<_> = second.iter().map(|(slot, fd)| (*slot, cookie(fd))).collect();
        drop((vault, first, second));
        // The first may end before it has told anyone.
        for _ in 0..2 {
            let found = contents(&far, &table).unwrap();
            assert!(found.iter().map(|(_, (slot, fd))| (*slot, cookie(fd))).eq(wanted.clone()));
            assert!(found.iter().map(|(found, _)| *found).eq((0..9).map(family)));
        }
    }
}
