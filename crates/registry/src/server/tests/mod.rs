//! The server over a modelled kernel: groups that order themselves as Linux does, owners that hold
//! sockets.

mod requests;
mod steering;
mod succession;

use super::*;
use crate::server::kernel::Contents;
use crate::steer::{self, Insn, QPN_INDEX_BITS, execute};
use std::time::Duration;

#[derive(Default)]
struct Net {
    /// Sockets of each family's group in the kernel's order.
    groups: [Vec<u32>; 2],
    programs: [Vec<Insn>; 2],
    /// Slots whose deed somebody holds.
    deeds: BTreeSet<u16>,
    next: u32,
    clock: u64,
    uptime: Duration,
    expelled: Vec<u32>,
    located: usize,
    fail_steering: bool,
    no_memory: bool,
    vault: u32,
    /// Contents of all vaults.
    kept: BTreeMap<u32, Vec<Held<u32>>>,
}

impl Net {
    fn new() -> Self {
        Net { next: 100, vault: 50, ..Net::default() }
    }

    /// The registry's process ends: what only it held closes, save what is in the vault.
    fn host_ends(&mut self, sockets: &[u32]) {
        let kept = self.kept.get(&self.vault).cloned().unwrap_or_default();
        for socket in sockets.iter().filter(|s| kept.iter().all(|(_, k)| k != *s)) {
            self.close(*socket);
        }
        self.vault += 1;
    }

    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn close(&mut self, socket: u32) {
        for group in &mut self.groups {
            if let Some(at) = group.iter().position(|s| *s == socket) {
                group.swap_remove(at);
            }
        }
    }

    /// The socket that a datagram for a slot arrives at; none if the index is beyond the group.
    fn deliver(&self, family: usize, slot: u16) -> Option<u32> {
        let mut packet = [0; 24];
        let qpn = u32::from(slot) << QPN_INDEX_BITS | 0x77;
        packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        let index = execute(&self.programs[family], &packet);
        self.groups[family].get(index as usize).copied()
    }
}

fn at(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

impl Kernel for Net {
    type Fd = u32;

    fn bind(&mut self, family: Family) -> Result<Option<u32>, Error> {
        let socket = self.fresh();
        self.groups[at(family)].push(socket);
        Ok(Some(socket))
    }
    fn steer(&mut self, via: &u32, program: &[Insn]) -> Result<(), Error> {
        if self.fail_steering {
            return Err(Error::Full("optmem".into()));
        }
        for (group, current) in self.groups.iter().zip(&mut self.programs) {
            if group.contains(via) {
                *current = program.to_vec();
            }
        }
        Ok(())
    }
    fn expel(&mut self, _: Family, socket: &u32) {
        self.expelled.push(*socket);
        self.close(*socket);
    }
    fn locate(&mut self, family: Family, sockets: &[u32]) -> Option<Vec<Option<usize>>> {
        self.located += 1;
        let position = |socket: &u32| sockets.iter().position(|s| s == socket);
        Some(self.groups[at(family)].iter().map(position).collect())
    }
    fn are_at(&mut self, family: Family, expected: &[(u32, u32)]) -> Option<bool> {
        let group = &self.groups[at(family)];
        Some(expected.iter().all(|(socket, index)| group.get(*index as usize) == Some(socket)))
    }
    fn same(&self, a: &u32, b: &u32) -> bool {
        a == b
    }
    fn fill_vault(&mut self, sockets: &[Held<u32>]) {
        self.kept.insert(self.vault, sockets.to_vec());
    }
    fn vault(&self) -> Option<u32> {
        Some(self.vault)
    }
    fn open_vault(&mut self, vault: &u32) -> Result<Contents<u32>, Error> {
        if self.no_memory {
            let what = "taking over".to_owned();
            return Err(Error::System { what, errno: libc::ENOMEM });
        }
        let family = |s: &u32| if self.groups[0].contains(s) { Family::V4 } else { Family::V6 };
        let kept =
            self.kept.get(vault).cloned().filter(|_| *vault != self.vault).unwrap_or_default();
        Ok(kept.into_iter().map(|held| (family(&held.1), held)).collect())
    }
    fn deed(&mut self, slot: u16) -> Result<Option<u32>, Error> {
        let fd = self.fresh();
        Ok(self.deeds.insert(slot).then_some(fd))
    }
    fn is_held(&self, slot: u16) -> bool {
        self.deeds.contains(&slot)
    }
    fn absentees(&mut self, present: &BTreeSet<u16>) -> Vec<u16> {
        self.deeds.difference(present).copied().collect()
    }
    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
    fn uptime(&self) -> Duration {
        self.uptime
    }
    fn random(&mut self) -> u32 {
        1019
    }
}

#[derive(Clone, Debug)]
struct Process {
    conn: ConnId,
    slot: u16,
    joined_at: u64,
    sockets: [u32; 2],
    vault: u32,
}

fn who() -> Identity {
    Identity { device: "peerdma0".into(), guid: 1, comm: "test".into() }
}

fn greet(server: &mut Server<Net>, conn: ConnId) {
    server.connected(conn, conn as i32, 0);
    let (reply, _) = server.handle(conn, Request::Hello { version: VERSION }, vec![]);
    assert_eq!(reply, Reply::Welcome { version: VERSION });
}

fn join(server: &mut Server<Net>, conn: ConnId) -> Process {
    greet(server, conn);
    match server.handle(conn, Request::Join { who: who() }, vec![7]) {
        (Reply::Joined { slot, joined_at, v4: true, v6: true }, fds) => {
            Process { conn, slot, joined_at, sockets: [fds[0], fds[1]], vault: fds[3] }
        }
        other => panic!("{other:?}"),
    }
}

fn rejoin(server: &mut Server<Net>, process: &Process) {
    assert_eq!(ask_to_rejoin(server, process), Reply::Done);
}

fn ask_to_rejoin(server: &mut Server<Net>, process: &Process) -> Reply {
    greet(server, process.conn);
    let Process { slot, joined_at, sockets, .. } = *process;
    let request = Request::Rejoin { slot, joined_at, v4: true, v6: true, who: who() };
    let fds = vec![7, sockets[0], sockets[1], process.vault];
    server.handle(process.conn, request, fds).0
}

fn die(server: &mut Server<Net>, process: &Process) {
    server.kernel.deeds.remove(&process.slot);
    server.closed(process.conn);
}

fn check(server: &Server<Net>, processes: &[Process]) {
    for process in processes {
        for family in 0..2 {
            let arrived = server.kernel.deliver(family, process.slot);
            assert_eq!(arrived, Some(process.sockets[family]), "{process:?}");
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize % n
    }
}
