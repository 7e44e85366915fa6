//! Every datagram arrives at the member it is for, whoever comes and goes.

use super::*;

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
