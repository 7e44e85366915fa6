//! The system as the registry uses it: UDP sockets, steering programs, deeds, clock.

use crate::Error;
use crate::fds::Fd;
use crate::server::kernel::{Contents, Family, Held, Kernel};
use crate::steer::Insn;
use crate::system::names::Names;
use crate::system::probe;
use crate::system::sys;
use crate::system::vault::{self, Vault};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{SocketFlags, SocketType};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::guard::Groups;

/// The running system.
pub(crate) struct Linux {
    names: Names,
    table: Arc<crate::fds::Table>,
    port: u16,
    vault: Option<Vault>,
    since: Instant,
    /// The slots whose deeds somebody holds, when that was seen last, as far as it is known.
    held: RefCell<Option<(Instant, Option<BTreeSet<u16>>)>>,
}

/// How long that is good: all slots are asked about at once.
const LISTED_FOR: Duration = Duration::from_millis(5);

impl Linux {
    pub(crate) fn new(names: Names, table: Arc<crate::fds::Table>, port: u16) -> Self {
        // Without a vault all works, but less smoothly when this host ends.
        let vault = Vault::new(&table).ok();
        Linux { names, table, port, vault, since: Instant::now(), held: RefCell::default() }
    }
}

/// A UDP socket on the wildcard address in the port's group; `None` where the host lacks the
/// family.
pub(crate) fn socket(family: Family, port: u16) -> rustix::io::Result<Option<OwnedFd>> {
    let domain = probe::domain(family);
    let fd = match rustix::net::socket_with(domain, SocketType::DGRAM, SocketFlags::CLOEXEC, None) {
        Ok(fd) => fd,
        Err(Errno::AFNOSUPPORT) => return Ok(None),
        Err(e) => return Err(e),
    };
    let (address, groups): (SocketAddr, _) = match family {
        Family::V4 => ((Ipv4Addr::UNSPECIFIED, port).into(), Groups::OpenV4),
        Family::V6 => {
            sockopt::set_ipv6_v6only(&fd, true)?;
            ((Ipv6Addr::UNSPECIFIED, port).into(), Groups::OpenV6)
        }
    };
    sockopt::set_socket_reuseport(&fd, true)?;
    sys::keep_strangers_out(&fd, port, groups)?;
    match rustix::net::bind(&fd, &address) {
        Ok(()) => Ok(Some(fd)),
        Err(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Is there where the kernel has the Soft-RoCE driver loaded.
const RXE: &str = "/sys/module/rdma_rxe";

/// Says who holds a UDP port, from the lines of `/proc/net/udp` and `udp6`, and whether the
/// Soft-RoCE driver is loaded: its socket looks like one of a program of root's, and with Linux 6.1
/// it stays when its devices are deleted.
fn holder(tables: &[String], port: u16, own_uid: u32, rxe: bool) -> String {
    let lines = tables.iter().flat_map(|t| t.lines().skip(1));
    let mut unsure = None;
    for line in lines {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1).and_then(|a| a.rsplit_once(':'));
        if local.is_none_or(|(_, hex)| u16::from_str_radix(hex, 16) != Ok(port)) {
            continue;
        }
        // After local: remote, state, queues, timer, retransmits, uid, timeout, inode.
        let uid: Option<u32> = fields.nth(5).and_then(|f| f.parse().ok());
        let inode: Option<u64> = fields.nth(1).and_then(|f| f.parse().ok());
        match (uid, inode) {
            (_, Some(0)) => return "the kernel itself".into(),
            (Some(0), Some(inode)) if rxe => {
                return format!(
                    "the kernel's Soft-RoCE driver (`rdma link delete` its devices, then \
                     `modprobe -r rdma_rxe`) or a program of uid 0 (socket inode {inode}; see \
                     `ss -ulnpe`)"
                );
            }
            (Some(uid), Some(inode)) if uid != own_uid => {
                return format!("a program of uid {uid} (socket inode {inode}; see `ss -ulnpe`)");
            }
            (Some(_), Some(inode)) => {
                unsure = Some(format!(
                    "a program of this user that does not share it (socket inode {inode}; see \
                     `ss -ulnpe`)"
                ));
            }
            _ => {}
        }
    }
    unsure.unwrap_or_else(|| "another program (see `ss -ulnpe`)".into())
}

impl Kernel for Linux {
    type Fd = Arc<Fd>;

    fn bind(&mut self, family: Family) -> Result<Option<Arc<Fd>>, Error> {
        match socket(family, self.port) {
            Ok(fd) => Ok(fd.map(|fd| Arc::new(self.table.keep(fd)))),
            Err(Errno::ADDRINUSE) => {
                let tables = ["/proc/net/udp", "/proc/net/udp6"]
                    .map(|path| std::fs::read_to_string(path).unwrap_or_default());
                let rxe = std::path::Path::new(RXE).exists();
                let holder = holder(&tables, self.port, self.names.uid(), rxe);
                Err(Error::PortTaken { port: self.port, holder })
            }
            Err(e) => Err(Error::system("binding the RoCE port", e)),
        }
    }

    fn steer(&mut self, via: &Arc<Fd>, program: &[Insn]) -> Result<(), Error> {
        sys::steer_group(via, program).map_err(|e| match e {
            Errno::NOMEM => Error::Full(format!(
                "the steering program of {} instructions exceeds net.core.optmem_max; raise it",
                program.len()
            )),
            e => Error::system("attaching the steering program", e),
        })
    }

    fn expel(&mut self, family: Family, socket: &Arc<Fd>) {
        // Where the host has no loopback this fails, and closing the last descriptor does the same.
        let _ = probe::expel(family, socket);
    }

    fn locate(&mut self, family: Family, sockets: &[Arc<Fd>]) -> Option<Vec<Option<usize>>> {
        let token = self.random();
        probe::locate(family, self.port, token, sockets)
    }

    fn are_at(&mut self, family: Family, expected: &[(Arc<Fd>, u32)]) -> Option<bool> {
        let token = self.random();
        probe::are_at(family, self.port, token, expected)
    }

    fn same(&self, a: &Arc<Fd>, b: &Arc<Fd>) -> bool {
        a.cookie().is_some_and(|a| b.cookie() == Some(a))
    }

    fn fill_vault(&mut self, sockets: &[Held<Arc<Fd>>]) {
        if let Some(vault) = &mut self.vault {
            vault.fill(sockets);
        }
    }

    fn vault(&self) -> Option<Arc<Fd>> {
        Some(self.vault.as_ref()?.far().clone())
    }

    fn open_vault(&mut self, vault: &Arc<Fd>) -> Result<Contents<Arc<Fd>>, Error> {
        let ours = self.vault.as_ref().is_some_and(|own| self.same(own.far(), vault));
        if ours { Ok(Vec::new()) } else { vault::contents(vault, &self.table) }
    }

    fn deed(&mut self, slot: u16) -> Result<Option<Arc<Fd>>, Error> {
        self.held.take();
        let deed = self.names.deed(slot).map_err(|e| Error::system("binding a slot's name", e))?;
        Ok(deed.map(Arc::new))
    }

    fn is_held(&self, slot: u16) -> bool {
        let mut listed = self.held.borrow_mut();
        let fresh = |(at, _): &(Instant, _)| at.elapsed() < LISTED_FOR;
        if !listed.as_ref().is_some_and(fresh) {
            *listed = Some((Instant::now(), self.names.held().ok()));
        }
        // Not known means that it may be.
        listed.as_ref().and_then(|(_, held)| held.as_ref()).is_none_or(|held| held.contains(&slot))
    }

    fn absentees(&mut self, present: &BTreeSet<u16>) -> Vec<u16> {
        self.names.summon(|slot| !present.contains(&slot)).unwrap_or_default()
    }

    fn now(&mut self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }

    fn uptime(&self) -> Duration {
        self.since.elapsed()
    }

    fn random(&mut self) -> u32 {
        let mut bytes = [0; 4];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) {
            Ok(_) => u32::from_ne_bytes(bytes),
            Err(_) => self.now() as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::holder;

    const HEAD: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
                        retrnsmt   uid  timeout inode ref pointer drops\n";

    fn table(uid: u32, inode: u64) -> String {
        let rest = "00000000:0000 07 00000000:00000000 00:00000000 00000000";
        format!("{HEAD}  77: 00000000:12B7 {rest} {uid:5} 0 {inode} 2 0000000000000000 0\n")
    }

    #[test]
    fn the_holder_of_a_port_is_named() {
        let told = |uid, inode, rxe| holder(&[table(uid, inode)], 4791, 0, rxe);
        assert!(told(1000, 55, false).contains("uid 1000 (socket inode 55;"));
        assert!(told(0, 0, false).starts_with("the kernel itself"));
        assert!(told(0, 9, false).contains("this user that does not share it (socket inode 9;"));
        assert!(told(0, 9, true).starts_with("the kernel's Soft-RoCE driver"));
        assert!(told(1000, 9, true).contains("uid 1000 (socket inode 9;"));
        assert!(holder(&[table(1000, 55)], 4792, 0, true).starts_with("another program"));
        let garbage = ["garbage\n: :\nx y:zz".into()];
        assert!(holder(&garbage, 1, 0, true).starts_with("another program"));
    }
}
