//! What members may ask for, and how much of it.

use super::*;
use crate::server::entries::{CLAIM_JOINING, JOINING_LEASE, MAX_ENTRIES};

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

#[test]
fn the_claim_of_joining_is_lent_and_who_lost_it_cannot_give_it_back() {
    let mut server = Server::new(Net::new());
    let (a, b) = (join(&mut server, 1), join(&mut server, 2));
    let claim = |server: &mut Server<Net>, conn, slot| {
        server.handle(conn, Request::Claim { kind: CLAIM_JOINING, key: 0, slot }, vec![]).0
    };
    let release = |server: &mut Server<Net>, conn| {
        server.handle(conn, Request::Release { kind: CLAIM_JOINING, key: 0 }, vec![]).0
    };
    assert_eq!(claim(&mut server, 1, a.slot), Reply::Done);
    server.kernel.uptime += JOINING_LEASE;
    assert_eq!(claim(&mut server, 2, b.slot), Reply::Failed(Error::Taken));
    // To ask again begins the lease anew.
    assert_eq!(claim(&mut server, 1, a.slot), Reply::Done);
    server.kernel.uptime += JOINING_LEASE;
    assert_eq!(claim(&mut server, 2, b.slot), Reply::Failed(Error::Taken));
    server.kernel.uptime += Duration::from_nanos(1);
    let Reply::Joined { slot: beside, .. } =
        server.handle(1, Request::Join { who: who() }, vec![7]).0
    else {
        panic!("no second member")
    };
    assert_eq!(claim(&mut server, 1, beside), Reply::Failed(Error::Taken), "of one process");
    assert_eq!(claim(&mut server, 2, b.slot), Reply::Done);
    assert_eq!(release(&mut server, 1), Reply::Failed(Error::Unknown));
    assert_eq!(claim(&mut server, 1, a.slot), Reply::Failed(Error::Taken));
    assert_eq!(release(&mut server, 2), Reply::Done);
    // Other kinds are nobody's to take over.
    let other = |slot| Request::Claim { kind: 1, key: 9, slot };
    assert_eq!(server.handle(1, other(a.slot), vec![]).0, Reply::Done);
    server.kernel.uptime += 2 * JOINING_LEASE;
    assert_eq!(server.handle(2, other(b.slot), vec![]).0, Reply::Failed(Error::Taken));
}
