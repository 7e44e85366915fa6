//! Messages of conversations that are over, of others, or of nobody.

use crate::net::*;
use cm::{Event, Reason};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// A message with ids, whose further fields are `fill`.
fn message(kind: u16, local: u32, remote: u32, fill: u8) -> [u8; 256] {
    let mut mad = [fill; 256];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16..18].copy_from_slice(&kind.to_be_bytes());
    mad[24..28].copy_from_slice(&local.to_be_bytes());
    mad[28..32].copy_from_slice(&remote.to_be_bytes());
    mad
}

#[test]
fn messages_about_nothing_are_dropped_but_for_those_that_would_be_repeated() {
    let mut net = Net::new(2, 3);
    for kind in [MRA, REJ, RTU, DREP, SIDR_REP, 0x19, 0x1a, 0x1b] {
        for fill in [0, 1, 0x80, 0xff] {
            net.forge(0, 1, &message(kind, 5, 0x40_1234, fill));
        }
    }
    assert!(net.log.is_empty(), "{:?}", net.log);
    net.forge(0, 1, &message(DREQ, 5, 0x40_1234, 0));
    let answer = net.last(DREP);
    assert_eq!((answer.to, answer.ids()), (0, (0x40_1234, 5)));
    net.forge(0, 1, &message(REP, 5, 0x40_1234, 0));
    let answer = net.last(REJ);
    assert_eq!((answer.to, answer.ids()), (0, (0x40_1234, 5)));
    assert_eq!((answer.reason(), answer.mad[24 + 8] >> 6), (Reason::INVALID_COMM_ID.0, 1));
    net.silent();
    net.nothing_is_left();
}

/// Who knows one id but not the other, or sends from elsewhere, moves nothing.
#[test]
fn messages_of_others_do_not_touch_a_connection() {
    let mut net = Net::new(3, 4);
    let (active, passive) = net.connected(1);
    let (own, theirs) = net.last(RTU).ids();
    net.log.clear();
    for kind in [MRA, REJ, REP, RTU, DREQ, DREP] {
        for fill in [0, 1, 0x40, 0xff] {
            // A wrong id of the sender's, from the right host.
            net.forge(0, 1, &message(kind, own ^ 1, theirs, fill));
            // Both ids right, from another host.
            net.forge(2, 1, &message(kind, own, theirs, fill));
        }
    }
    // Both ids right, but a disconnect of another queue pair.
    net.forge(0, 1, &message(DREQ, own, theirs, 0x55));
    net.silent();
    net.cms[1].disconnect(passive, net.now).unwrap();
    net.run(MS);
    assert_eq!(net.only(0), Event::DisconnectRequested(active), "it is still connected");
}

#[test]
fn who_asked_and_died_is_not_waited_for() {
    let mut net = Net::new(2, 12);
    net.connect(0, 1, 1, &[]);
    net.run(MS);
    let passive = net.request(1);
    // Killed; another process, or its successor, gets what is for it.
    net.cms[0] = Net::new(2, 13).cms.remove(0);
    net.reply(1, passive, 2).unwrap();
    net.run(MS);
    let told = net.only(1);
    assert!(
        matches!(&told, Event::Refused(refused) if refused.reason == Reason::INVALID_COMM_ID),
        "{told:?}"
    );
    net.nothing_is_left();
}

/// A peer that uses a queue pair of a connection for another has lost the first: it is refused, and
/// the first ended, so that it may try again.
#[test]
fn a_stale_queue_pair_number_in_a_request() {
    let mut net = Net::new(2, 5);
    let (_, passive) = net.connected(1);
    // The peer is started anew.
    net.cms[0] = Net::new(2, 6).cms.remove(0);
    let again = net.connect(0, 1, 1, &[]);
    net.run(MS);
    match net.only(0) {
        Event::Refused(refused) => {
            assert_eq!((refused.conn, refused.reason), (again, Reason::STALE_CONN))
        }
        other => panic!("{other:?}"),
    }
    let rej = net.last(REJ);
    assert_eq!((rej.mad[24 + 8] >> 6, rej.ids().0), (0, 0), "about the REQ, without an id");
    assert_eq!(net.only(1), Event::Disconnected(passive));
    net.run(TIMEWAIT);
    net.told(0);
    net.told(1);
    net.connected(1);
}

#[test]
fn a_stale_queue_pair_number_in_a_reply() {
    let mut net = Net::new(2, 7);
    let (active, _) = net.connected(1);
    net.cms[1] = Net::new(2, 8).cms.remove(1);
    let second = net.connect(0, 1, 2, &[]);
    net.run(MS);
    let passive = net.request(1);
    // The same number as that of the first connection.
    net.reply(1, passive, 1001).unwrap();
    net.run(MS);
    let told = net.told(1);
    assert!(
        matches!(&told[..], [Event::Refused(refused)] if refused.reason == Reason::STALE_CONN),
        "{told:?}"
    );
    assert_eq!(net.only(0), Event::Disconnected(active));
    // The repeated REQ meets a conversation that is over.
    net.run(PATIENCE);
    let told = net.told(0);
    assert!(told.contains(&Event::TimewaitExit(active)), "{told:?}");
    net.told(1);
    net.cms[0].destroy(second, net.now);
    net.run(MS);
    for (node, event) in std::mem::take(&mut net.events) {
        if let Event::Request(request) = event {
            net.cms[node].destroy(request.conn, net.now);
        }
    }
    net.nothing_is_left();
}

/// One queue pair number of two hosts is two queue pairs.
#[test]
fn the_same_queue_pair_number_of_another_host() {
    let mut net = Net::new(3, 9);
    net.connected(1);
    net.connect(2, 1, 1, &[]);
    net.run(MS);
    net.request(1);
}

#[test]
fn a_request_repeated_in_timewait_is_stale_and_after_it_a_new_one() {
    let mut net = Net::new(2, 10);
    let (active, passive) = net.connected(1);
    let req = net.last(REQ).mad;
    net.cms[0].disconnect(active, net.now).unwrap();
    net.run(MS);
    net.cms[1].disconnect(passive, net.now).unwrap();
    net.run(MS);
    net.told(0);
    net.told(1);
    net.forge(0, 1, &req);
    assert_eq!(net.last(REJ).reason(), Reason::STALE_CONN.0);
    net.silent();
    net.run(TIMEWAIT);
    net.told(0);
    net.told(1);
    net.forge(0, 1, &req);
    // Nobody is there any more who asked, and says so.
    let passive = net.request(1);
    net.reply(1, passive, 5).unwrap();
    net.run(MS);
    let told = net.only(1);
    assert!(
        matches!(&told, Event::Refused(refused) if refused.reason == Reason::INVALID_COMM_ID),
        "{told:?}"
    );
    net.silent();
    net.nothing_is_left();
}

/// Every message of a connection comes again at every later moment: nothing is reported twice.
#[test]
fn every_message_comes_again() {
    let mut net = Net::new(2, 11);
    let (active, passive) = net.connected(1);
    let replay = |net: &mut Net, kinds: &[u16]| {
        for sent in net.log.clone() {
            if kinds.contains(&sent.kind()) {
                net.forge(sent.from, sent.to, &sent.mad);
            }
        }
        net.run(10 * MS);
    };
    replay(&mut net, &[REQ, REP, RTU]);
    net.silent();
    net.cms[0].disconnect(active, net.now).unwrap();
    net.run(MS);
    assert_eq!(net.only(1), Event::DisconnectRequested(passive));
    replay(&mut net, &[REQ, REP, RTU, DREQ]);
    net.silent();
    net.cms[1].disconnect(passive, net.now).unwrap();
    net.run(MS);
    assert_eq!(net.only(0), Event::Disconnected(active));
    replay(&mut net, &[REQ, REP, RTU, DREQ, DREP, REJ]);
    net.silent();
    net.run(TIMEWAIT);
    net.told(0);
    net.told(1);
    // Timewait is over: but for the REQ nothing means anything.
    replay(&mut net, &[REP, RTU, DREP, REJ]);
    net.silent();
    net.nothing_is_left();
}
