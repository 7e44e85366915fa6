//! What a new host makes of those who come back from the one before.

use super::*;

/// The old host's own socket, those of others that died with it, and of one that does not come
/// back.
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

/// Its members bring what they have to the next.
#[test]
fn a_host_without_memory_for_what_was_the_others_does_not_go_on() {
    let mut server = Server::new(Net::new());
    let processes: Vec<Process> = (0..3).map(|conn| join(&mut server, conn)).collect();
    let mut net = std::mem::replace(&mut server.kernel, Net::new());
    net.host_ends(&processes[0].sockets);
    let mut server = Server::new(Net { no_memory: true, ..net });
    server.follow(true);
    assert!(!server.lacks_memory());
    let reply = ask_to_rejoin(&mut server, &processes[1]);
    assert!(matches!(reply, Reply::Failed(Error::System { errno: libc::ENOMEM, .. })));
    assert!(server.lacks_memory());
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
    server.entries.publish(1, "a".to_owned(), 7).unwrap();
    server.entries.claim(1, (1, 2), 4, Duration::ZERO).unwrap();
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
