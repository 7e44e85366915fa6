//! The server over a modelled kernel: groups that order themselves as Linux does, owners that hold sockets.

use super::*;
use crate::steer::{self, Insn, QPN_INDEX_BITS, execute};

#[derive(Default)]
struct Net {
    /// Sockets of each family's group in the kernel's order.
    groups: [Vec<u32>; 2],
    programs: [Vec<Insn>; 2],
    /// Slots whose deed somebody holds.
    deeds: BTreeSet<u16>,
    next: u32,
    clock: u64,
    expelled: Vec<u32>,
    located: usize,
    fail_steering: bool,
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
    fn open_vault(&mut self, vault: &u32) -> Vec<(Family, Held<u32>)> {
        let family = |s: &u32| if self.groups[0].contains(s) { Family::V4 } else { Family::V6 };
        let kept =
            self.kept.get(vault).cloned().filter(|_| *vault != self.vault).unwrap_or_default();
        kept.into_iter().map(|held| (family(&held.1), held)).collect()
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
    greet(server, process.conn);
    let Process { slot, joined_at, sockets, .. } = *process;
    let request = Request::Rejoin { slot, joined_at, v4: true, v6: true, who: who() };
    let fds = vec![7, sockets[0], sockets[1], process.vault];
    let (reply, _) = server.handle(process.conn, request, fds);
    assert_eq!(reply, Reply::Done);
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

#[test]
fn steering_is_right_after_every_join_and_death() {
    let mut server = Server::new(Net::new());
    let mut random = Random(88_172_645_463_325_252);
    let mut processes: Vec<Process> = Vec::new();
    for conn in 0..3000 {
        // Waves, so that the group also shrinks.
        let grow = if conn / 300 % 2 == 0 { 3 } else { 1 };
        if processes.is_empty() || random.below(4) < grow {
            processes.push(join(&mut server, conn));
        } else {
            let gone = processes.swap_remove(random.below(processes.len()));
            die(&mut server, &gone);
        }
        check(&server, &processes);
    }
    assert_eq!(server.kernel.located, 2, "only the first join of each family is uncertain");
    for process in std::mem::take(&mut processes) {
        die(&mut server, &process);
    }
    assert!(server.kernel.groups.iter().all(Vec::is_empty));
}

#[test]
fn a_death_moves_nobody_while_few_seats_are_vacant() {
    let mut server = Server::new(Net::new());
    let mut processes: Vec<Process> = (0..20).map(|conn| join(&mut server, conn)).collect();
    let order = server.kernel.groups.clone();
    for gone in [5, 4, 3] {
        let gone = processes.remove(gone);
        die(&mut server, &gone);
    }
    assert_eq!(server.kernel.groups, order);
    let last = processes.pop().unwrap();
    die(&mut server, &last);
    assert_eq!(server.kernel.groups[0], order[0][..19]);
    check(&server, &processes);
}

/// Or its peers would ask a socket that nobody reads, until they gave up.
#[test]
fn what_is_for_a_dead_member_comes_to_the_leader() {
    let mut server = Server::new(Net::new());
    let processes: Vec<Process> = (0..5).map(|conn| join(&mut server, conn)).collect();
    let [leader, killed, slow, ..] = &processes[..] else { unreachable!() };
    let arrives = |server: &Server<Net>, of: &Process| server.kernel.deliver(0, of.slot);
    die(&mut server, killed);
    assert_eq!(arrives(&server, killed), Some(leader.sockets[0]));
    // Its connection was closed first; its deed comes after.
    server.closed(slow.conn);
    assert!(server.has_missing());
    server.review_missing();
    assert_eq!(arrives(&server, slow), Some(slow.sockets[0]), "it may come back");
    server.kernel.deeds.remove(&slow.slot);
    server.review_missing();
    assert!(!server.has_missing());
    assert_eq!(arrives(&server, slow), Some(leader.sockets[0]));
}

#[test]
fn vacant_seats_do_not_pile_up() {
    let mut server = Server::new(Net::new());
    let mut old = join(&mut server, 0);
    for conn in 1..500 {
        let new = join(&mut server, conn);
        die(&mut server, &old);
        check(&server, std::slice::from_ref(&new));
        old = new;
    }
    assert!(server.kernel.groups[0].len() < 40, "{}", server.kernel.groups[0].len());
}

/// The old host's own socket, those of others that died with it, and of one that does not come back.
#[test]
fn a_successor_finds_the_order_and_presumes_the_one_that_is_missing() {
    let mut server = Server::new(Net::new());
    let mut processes: Vec<Process> = (0..9).map(|conn| join(&mut server, conn)).collect();
    let mut net = std::mem::replace(&mut server.kernel, Net::new());
    for dead in [6, 3, 0] {
        let dead = processes.remove(dead);
        dead.sockets.into_iter().for_each(|s| net.close(s));
        net.deeds.remove(&dead.slot);
    }
    let mut server = Server::new(net);
    let stopped = processes.remove(2);
    for process in &processes {
        rejoin(&mut server, process);
    }
    assert!(server.is_stale());
    server.settle().unwrap();
    check(&server, &processes);
    check(&server, std::slice::from_ref(&stopped));
    assert!(!server.is_settled(), "one index is only presumed");

    // Newcomers are steered to all the same, and never get the stopped one's slot.
    processes.push(join(&mut server, 50));
    assert_ne!(processes.last().unwrap().slot, stopped.slot);
    check(&server, &processes);
    check(&server, std::slice::from_ref(&stopped));

    // It dies unseen: its socket's place is taken by the last, which the next look finds.
    stopped.sockets.into_iter().for_each(|s| server.kernel.close(s));
    server.kernel.deeds.remove(&stopped.slot);
    server.settle().unwrap();
    check(&server, &processes);
    assert!(server.is_settled());
}

#[test]
fn a_member_whose_connection_broke_comes_back_to_its_seat() {
    let mut server = Server::new(Net::new());
    let mut processes: Vec<Process> = (0..4).map(|conn| join(&mut server, conn)).collect();
    let order = server.kernel.groups.clone();
    // The last one, whose seat could go at once; datagrams go on arriving.
    server.closed(processes[3].conn);
    check(&server, &processes);
    assert_eq!(server.kernel.groups, order);
    processes[3].conn = 20;
    rejoin(&mut server, &processes[3]);
    server.settle().unwrap();
    check(&server, &processes);
    assert!(server.kernel.expelled.is_empty() && server.is_settled());
    // Had it died instead, its seat would have gone with the next change.
    server.closed(20);
    server.kernel.deeds.remove(&processes[3].slot);
    die(&mut server, &processes[2]);
    assert_eq!(server.kernel.groups[0], order[0][..2]);
}

#[test]
fn the_end_of_a_host_disturbs_no_datagram() {
    let mut server = Server::new(Net::new());
    let mut processes: Vec<Process> = (0..9).map(|conn| join(&mut server, conn)).collect();
    let gone = processes.remove(5);
    die(&mut server, &gone);
    let host = processes.remove(3);
    let with_it = processes.remove(1);
    let mut net = std::mem::replace(&mut server.kernel, Net::new());
    net.host_ends(&[&gone.sockets[..], &host.sockets, &with_it.sockets].concat());
    net.deeds.remove(&host.slot);

    let mut server = Server::new(net);
    server.follow(true);
    // One that went with the host, but whose end is seen later.
    server.kernel.deeds.remove(&with_it.slot);
    let stopped = processes.pop().unwrap();
    for process in &processes {
        assert!(server.is_awaiting());
        check(&server, &processes);
        rejoin(&mut server, process);
        let (reply, _) = server.handle(process.conn, Request::Members { after: 0 }, vec![]);
        assert!(matches!(reply, Reply::Members(_)));
    }
    check(&server, &processes);
    server.review_awaited();
    assert_eq!(server.awaited, [stopped.slot].into());
    server.stop_awaiting();
    assert!(server.is_stale());
    server.settle().unwrap();
    assert!(server.is_settled());
    check(&server, &processes);
    check(&server, std::slice::from_ref(&stopped));
    rejoin(&mut server, &stopped);
    processes.push(stopped);
    check(&server, &processes);
    for socket in server.kernel.groups.iter().flatten() {
        let mut kept = server.kernel.kept[&server.kernel.vault].iter();
        assert!(kept.any(|(_, s)| s == socket), "the next host's");
    }
    // All goes on as ever, and in the end nothing is left.
    processes.push(join(&mut server, 50));
    check(&server, &processes);
    for process in std::mem::take(&mut processes) {
        die(&mut server, &process);
    }
    assert!(server.kernel.groups.iter().all(Vec::is_empty));
}

#[test]
fn who_leaves_before_the_order_is_known_moves_nobody() {
    let mut server = Server::new(Net::new());
    let mut processes: Vec<Process> = (0..4).map(|conn| join(&mut server, conn)).collect();
    let mut net = std::mem::replace(&mut server.kernel, Net::new());
    net.vault += 1;
    let mut server = Server::new(net);
    server.follow(true);
    // Not in the order of the group.
    rejoin(&mut server, &processes[3]);
    rejoin(&mut server, &processes[1]);
    let gone = processes.remove(3);
    let (reply, _) = server.handle(gone.conn, Request::Leave { slot: gone.slot }, vec![]);
    assert!(matches!(reply, Reply::Done));
    check(&server, &processes);
    server.stop_awaiting();
    server.settle().unwrap();
    check(&server, &processes);
}

#[test]
fn a_host_that_stands_still_is_not_inherited_from() {
    let mut server = Server::new(Net::new());
    let processes: Vec<Process> = (0..3).map(|conn| join(&mut server, conn)).collect();
    let mut net = std::mem::replace(&mut server.kernel, Net::new());
    net.vault += 1;
    let mut server = Server::new(net);
    server.follow(false);
    rejoin(&mut server, &processes[1]);
    rejoin(&mut server, &processes[2]);
    server.stop_awaiting();
    server.settle().unwrap();
    check(&server, &processes);
    assert!(server.kernel.expelled.is_empty());
}

#[test]
fn what_may_be_on_its_way_back_is_asked_for_early() {
    let net = Net { deeds: [4, 9].into(), ..Net::new() };
    let mut server = Server::new(net);
    let ask = |server: &Server<Net>| {
        let who = Identity { device: String::new(), guid: 0, comm: String::new() };
        let id = "a".to_owned();
        [
            Request::Join { who },
            Request::Members { after: 0 },
            Request::Directory { slot: 4 },
            Request::Directory { slot: 5 },
            Request::Lookup { id },
            Request::Owner { kind: 1, key: 2 },
            Request::Leave { slot: 4 },
        ]
        .map(|request| server.is_early(&request))
    };
    assert_eq!(ask(&server), [false, false, false, false, true, true, false], "nobody was before");
    server.follow(true);
    assert_eq!(ask(&server), [true, true, true, false, true, true, false]);
    server.awaited.remove(&4);
    assert_eq!(ask(&server), [true, true, false, false, true, true, false]);
    server.stop_awaiting();
    server.published.insert("a".to_owned(), (1, 7));
    server.claims.insert((1, 2), (1, 4));
    assert_eq!(ask(&server), [false; 7]);
}

#[test]
fn two_that_are_missing_stay_unmapped_until_they_return() {
    let mut server = Server::new(Net::new());
    let processes: Vec<Process> = (0..5).map(|conn| join(&mut server, conn)).collect();
    let mut server = Server::new(std::mem::replace(&mut server.kernel, Net::new()));
    rejoin(&mut server, &processes[2]);
    rejoin(&mut server, &processes[3]);
    rejoin(&mut server, &processes[4]);
    server.settle().unwrap();
    check(&server, &processes[2..]);
    let leader = processes[2].sockets[0];
    assert_eq!(server.kernel.deliver(0, processes[0].slot), Some(leader));
    rejoin(&mut server, &processes[0]);
    rejoin(&mut server, &processes[1]);
    let (Reply::Members(rows), _) = server.handle(0, Request::Members { after: 0 }, vec![]) else {
        panic!("no listing");
    };
    assert_eq!(rows.len(), 5);
    check(&server, &processes);
    assert!(server.is_settled());
}

#[test]
fn a_socket_somebody_else_bound_is_noticed() {
    let mut server = Server::new(Net::new());
    let mut processes = vec![join(&mut server, 0)];
    server.kernel.groups[0].push(1);
    processes.push(join(&mut server, 1));
    check(&server, &processes);
}

#[test]
fn a_join_that_cannot_be_steered_leaves_nothing_behind() {
    let mut server = Server::new(Net::new());
    let processes = [join(&mut server, 0)];
    greet(&mut server, 1);
    server.kernel.fail_steering = true;
    let (reply, fds) = server.handle(1, Request::Join { who: who() }, vec![7]);
    assert!(matches!(reply, Reply::Failed(Error::Full(_))) && fds.is_empty());
    assert_eq!(server.kernel.groups[0], [processes[0].sockets[0]]);
    server.kernel.fail_steering = false;
    check(&server, &processes);
}

#[test]
fn slots_come_in_turn_wrap_around_zero_and_run_out() {
    let mut server = Server::new(Net::new());
    let first = join(&mut server, 0);
    assert_eq!(first.slot, 1020);
    die(&mut server, &first);
    let slots: Vec<u16> = (1..6).map(|conn| join(&mut server, conn).slot).collect();
    assert_eq!(slots, [1021, 1022, 1023, 1, 2], "the freed one is not handed out again soon");
    for conn in 6..1024 {
        join(&mut server, conn);
    }
    greet(&mut server, 2000);
    let (reply, _) = server.handle(2000, Request::Join { who: who() }, vec![7]);
    assert!(matches!(reply, Reply::Failed(Error::Full(_))), "{reply:?}");
}

#[test]
fn requests_out_of_order_or_without_their_descriptors_are_refused() {
    let mut server = Server::new(Net::new());
    let refused = |answer: Answer<u32>| matches!(answer.0, Reply::Failed(Error::Protocol(_)));
    server.connected(1, 1, 0);
    assert!(refused(server.handle(1, Request::Join { who: who() }, vec![7])));
    greet(&mut server, 1);
    assert!(refused(server.handle(1, Request::Join { who: who() }, vec![])));
    assert!(refused(server.handle(1, Request::Publish { id: "x".into() }, vec![])));
    let rejoin = |slot| Request::Rejoin { slot, joined_at: 0, v4: true, v6: true, who: who() };
    assert!(refused(server.handle(1, rejoin(5), vec![7, 8])));
    assert!(refused(server.handle(1, rejoin(0), vec![7, 8, 9])));
    assert!(refused(server.handle(1, rejoin(1024), vec![7, 8, 9])));
    let (reply, _) = server.handle(1, Request::Hello { version: 9 }, vec![]);
    assert!(matches!(reply, Reply::Failed(Error::Version { theirs: 9, .. })));
    let (reply, _) = server.handle(9, Request::Members { after: 0 }, vec![]);
    assert_eq!(reply, Reply::Failed(Error::Unknown), "a connection that does not exist");
    assert_eq!(server.page(u16::MAX), vec![]);
}

#[test]
fn publications_and_claims_end_with_their_connection_and_are_limited() {
    let mut server = Server::new(Net::new());
    let a = join(&mut server, 1);
    let b = join(&mut server, 2);
    let claim = |p: &Process| Request::Claim { kind: 1, key: 9, slot: p.slot };
    assert_eq!(server.handle(1, claim(&a), vec![]).0, Reply::Done);
    assert_eq!(server.handle(2, claim(&b), vec![]).0, Reply::Failed(Error::Taken));
    for i in 0..MAX_ENTRIES - 1 {
        let publish = Request::Publish { id: i.to_string() };
        assert_eq!(server.handle(1, publish, vec![5]).0, Reply::Done);
    }
    let one_more = Request::Publish { id: "more".into() };
    assert!(matches!(server.handle(1, one_more, vec![5]).0, Reply::Failed(Error::Full(_))));
    die(&mut server, &a);
    assert_eq!(server.handle(2, claim(&b), vec![]).0, Reply::Done);
    let lookup = Request::Lookup { id: "0".into() };
    assert_eq!(server.handle(2, lookup, vec![]).0, Reply::Failed(Error::Unknown));
    check(&server, &[b]);
    assert_eq!(steer::SLOTS, 1024);
}
