//! Each way a connection's conversation goes, message by message: who repeats what, how often,
//! when, and which events come of it.

use crate::net::*;
use cm::{Event, MAD_LEN, Reason, Refused};
use std::time::Duration;

pub const MS: Duration = Duration::from_millis(1);

pub fn pair() -> Net {
    Net::new(2, 1)
}

#[track_caller]
fn refused(event: Event) -> Refused {
    match event {
        Event::Refused(refused) => *refused,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_begins_and_ends() {
    let mut net = pair();
    let (active, passive) = net.connected(1);
    net.cms[0].disconnect(active, net.now).unwrap();
    net.run(MS);
    assert_eq!(net.only(1), Event::DisconnectRequested(passive));
    net.cms[1].disconnect(passive, net.now).unwrap();
    net.run(MS);
    assert_eq!(net.only(0), Event::Disconnected(active));
    net.run(TIMEWAIT - 2 * MS);
    net.silent();
    net.run(2 * MS);
    assert_eq!(net.only(0), Event::TimewaitExit(active));
    assert_eq!(net.only(1), Event::TimewaitExit(passive));
    assert_eq!(net.log.len(), 5, "REQ, REP, RTU, DREQ and DREP");
    net.nothing_is_left();
}

#[test]
fn a_request_is_repeated_as_often_and_as_late_as_it_says() {
    let mut net = pair();
    net.lose.insert(REQ, u32::MAX);
    let begin = net.now;
    let active = net.connect(0, 1, 1, &[]);
    net.run(SENDINGS * PATIENCE - MS);
    net.silent();
    let due: Vec<Duration> = (0..SENDINGS).map(|n| n * PATIENCE).collect();
    assert_eq!(net.times(REQ, begin), due);
    // Fields of the REQ: response timeouts and repetitions (IBA 12.6.5).
    let mad = net.last(REQ).mad;
    assert_eq!((mad[24 + 43] >> 3, mad[24 + 47] >> 3, mad[24 + 51] >> 4), (20, 20, 15));
    net.run(MS);
    assert_eq!(net.only(0), Event::Unreachable(active));
    assert_eq!(net.last(REJ).reason(), Reason::TIMEOUT.0);
    net.nothing_is_left();
}

/// A REQ that did not arrive, with a local response timeout of 2^18, 1024 ms, and so many
/// repetitions.
fn patient_req(net: &mut Net, repetitions: u8) -> [u8; MAD_LEN] {
    net.lose.insert(REQ, 1);
    net.connect(0, 1, 1, &[]);
    net.collect();
    let mut mad = net.last(REQ).mad;
    mad[24 + 47] = 18 << 3 | mad[24 + 47] & 7;
    mad[24 + 51] = repetitions << 4 | mad[24 + 51] & 15;
    mad
}

/// The passive side repeats its REP as the REQ says, not as it would itself.
#[test]
fn a_reply_is_repeated_as_the_request_says() {
    let mut net = pair();
    let mad = patient_req(&mut net, 3);
    net.forge(0, 1, &mad);
    let passive = net.request(1);
    net.lose.insert(REP, u32::MAX);
    let begin = net.now;
    net.reply(1, passive, 9).unwrap();
    net.run(Duration::from_secs(4));
    let due: Vec<Duration> = (0..4).map(|n| Duration::from_millis(n * 1024)).collect();
    assert_eq!(net.times(REP, begin), due);
    net.run(Duration::from_millis(97));
    assert_eq!(net.only(1), Event::Unreachable(passive));
}

#[test]
fn a_lost_reply_is_repeated_and_a_repeated_request_brings_it_too() {
    let mut net = pair();
    net.lose.insert(REP, 1);
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    let passive = net.request(1);
    net.reply(1, passive, 2).unwrap();
    net.run(MS);
    let req = net.last(REQ).mad;
    net.lose.insert(REP, 1);
    net.forge(0, 1, &req);
    assert_eq!(net.count(REP), 2, "at once");
    net.run(PASSIVE_PATIENCE + MS);
    assert!(matches!(net.only(0), Event::Reply(_)));
    net.cms[0].ready(active).unwrap();
    net.run(MS);
    assert_eq!(net.only(1), Event::Established(passive));
    // The REQ arrives once more, late.
    net.forge(0, 1, &req);
    net.silent();
}

#[test]
fn a_lost_rtu_is_made_good_by_the_repeated_reply() {
    let mut net = pair();
    net.lose.insert(RTU, 3);
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    let passive = net.request(1);
    net.reply(1, passive, 2).unwrap();
    net.run(MS);
    assert!(matches!(net.only(0), Event::Reply(_)));
    net.cms[0].ready(active).unwrap();
    net.run(3 * PASSIVE_PATIENCE - 10 * MS);
    net.silent();
    net.run(20 * MS);
    assert_eq!(net.only(1), Event::Established(passive));
    assert_eq!((net.count(REP), net.count(RTU)), (4, 4));
    net.run(10 * PATIENCE);
    assert_eq!(net.count(REP), 4, "nothing is repeated any more");
}

/// The first message of the connection says what the lost RTU would have said (`rdma_notify`).
#[test]
fn the_first_data_stands_for_a_lost_rtu() {
    let mut net = pair();
    net.lose.insert(RTU, 1);
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    let passive = net.request(1);
    assert!(net.cms[1].notify_established(passive).is_err(), "not accepted yet");
    net.reply(1, passive, 2).unwrap();
    net.run(MS);
    net.told(0);
    net.cms[0].ready(active).unwrap();
    net.run(MS);
    assert_eq!(net.cms[1].notify_established(passive), Ok(true));
    assert_eq!(net.only(1), Event::Established(passive));
    assert_eq!(net.cms[1].notify_established(passive), Ok(false));
    let rtu = net.last(RTU).mad;
    net.forge(0, 1, &rtu);
    net.run(2 * PATIENCE);
    net.silent();
    assert_eq!(net.count(REP), 1);
}

#[test]
fn requests_that_cross_are_two_connections() {
    let mut net = pair();
    let ours = net.connect(0, 1, 1, &[]);
    let theirs = net.connect(1, 0, 2, &[]);
    net.run(MS);
    let (at_0, at_1) = (net.request(0), net.request(1));
    // Over the queue pairs that asked, as a program that means one connection would answer.
    net.reply(0, at_0, 1).unwrap();
    net.reply(1, at_1, 2).unwrap();
    net.run(MS);
    // The queue pairs are those of the other connection: each is refused as stale.
    for node in [0, 1] {
        assert_eq!(refused(net.only(node)).reason, Reason::STALE_CONN);
    }
    for (node, conns) in [(0, [ours, at_0]), (1, [theirs, at_1])] {
        for conn in conns {
            net.cms[node].destroy(conn, net.now);
        }
    }
    net.nothing_is_left();

    let mut net = pair();
    let ours = net.connect(0, 1, 1, &[]);
    let theirs = net.connect(1, 0, 2, &[]);
    net.run(MS);
    let (at_0, at_1) = (net.request(0), net.request(1));
    net.reply(0, at_0, 3).unwrap();
    net.reply(1, at_1, 4).unwrap();
    net.run(MS);
    for (node, conn) in [(0, ours), (1, theirs)] {
        assert!(matches!(net.only(node), Event::Reply(reply) if reply.conn == conn));
        net.cms[node].ready(conn).unwrap();
    }
    net.run(MS);
    assert_eq!(net.only(0), Event::Established(at_0));
    assert_eq!(net.only(1), Event::Established(at_1));
}

#[test]
fn both_ends_disconnect_at_once() {
    let mut net = pair();
    let (active, passive) = net.connected(1);
    net.cms[0].disconnect(active, net.now).unwrap();
    net.cms[1].disconnect(passive, net.now).unwrap();
    net.run(MS);
    assert_eq!(net.only(0), Event::DisconnectRequested(active));
    assert_eq!(net.only(1), Event::DisconnectRequested(passive));
    net.run(TIMEWAIT);
    assert_eq!(net.only(0), Event::TimewaitExit(active));
    assert_eq!(net.only(1), Event::TimewaitExit(passive));
    assert_eq!((net.count(DREQ), net.count(DREP)), (2, 2));
    net.nothing_is_left();
}

#[test]
fn a_lost_drep_is_made_good_in_timewait_and_after_it() {
    for after in [MS, TIMEWAIT + 100 * MS] {
        let mut net = pair();
        let (active, passive) = net.connected(1);
        net.lose.insert(DREP, 1);
        net.cms[0].disconnect(active, net.now).unwrap();
        net.run(PATIENCE - after);
        net.told(1);
        net.cms[1].disconnect(passive, net.now).unwrap();
        net.run(after + MS);
        assert_eq!(net.told(0), [Event::Disconnected(active)]);
        net.told(1);
        net.run(TIMEWAIT);
        net.told(0);
        net.told(1);
        net.nothing_is_left();
        assert_eq!((net.count(DREQ), net.count(DREP)), (2, 2));
    }
}

#[test]
fn an_unanswered_disconnect_ends_in_time() {
    let mut net = pair();
    let (active, passive) = net.connected(1);
    net.lose.insert(DREQ, u32::MAX);
    let begin = net.now;
    net.cms[0].disconnect(active, net.now).unwrap();
    net.run(SENDINGS * PATIENCE - MS);
    net.silent();
    net.run(MS);
    assert_eq!(net.only(0), Event::DisconnectUnanswered(active));
    assert_eq!(net.times(DREQ, begin).len() as u32, SENDINGS);
    net.run(TIMEWAIT);
    assert_eq!(net.only(0), Event::TimewaitExit(active));
    // The other end still believes in it, until it disconnects too.
    net.lose.clear();
    net.cms[1].disconnect(passive, net.now).unwrap();
    net.run(MS);
    assert_eq!(net.only(1), Event::Disconnected(passive));
    net.cms[1].destroy(passive, net.now);
    net.nothing_is_left();
}

/// A disconnect that overtakes the RTU ends a connection that was never told of as established.
#[test]
fn a_disconnect_overtakes_the_rtu() {
    let mut net = pair();
    net.lose.insert(RTU, 1);
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    let passive = net.request(1);
    net.reply(1, passive, 2).unwrap();
    net.run(MS);
    net.told(0);
    net.cms[0].ready(active).unwrap();
    net.cms[0].disconnect(active, net.now).unwrap();
    net.run(MS);
    assert_eq!(net.only(1), Event::DisconnectRequested(passive));
    net.cms[1].disconnect(passive, net.now).unwrap();
    net.run(MS);
    assert_eq!(net.only(0), Event::Disconnected(active));
    let rtu = net.last(RTU).mad;
    net.forge(0, 1, &rtu);
    net.run(TIMEWAIT);
    net.told(0);
    assert_eq!(net.only(1), Event::TimewaitExit(passive));
    net.nothing_is_left();
}

/// A program that thinks is granted time once, by the answer to the first repetition, and each
/// repetition thereafter waits as long (kernel `ib_modify_mad`).
#[test]
fn who_thinks_is_given_time_but_not_for_ever() {
    let mut net = pair();
    let begin = net.now;
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    let passive = net.request(1);
    let longer = PATIENCE + THINKING;
    net.run(PATIENCE + 3 * longer);
    net.silent();
    assert_eq!(net.times(REQ, begin).len(), 5);
    assert_eq!(net.count(MRA), 4);
    let late = net.times(REQ, begin)[4] - net.times(REQ, begin)[3];
    assert!(late.abs_diff(longer) < MS, "{late:?}");
    // Any number of further ones grant nothing.
    for _ in 0..1000 {
        let mra = net.last(MRA).mad;
        net.forge(1, 0, &mra);
    }
    net.run(12 * longer);
    assert_eq!(net.only(0), Event::Unreachable(active));
    // The REJ that says so reaches the thinker, whose answer comes too late.
    assert_eq!(refused(net.only(1)).reason, Reason::TIMEOUT);
    assert!(net.reply(1, passive, 2).is_err());
    net.nothing_is_left();
}

#[test]
fn who_thinks_about_a_reply_is_given_time_too() {
    let mut net = pair();
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    let passive = net.request(1);
    net.reply(1, passive, 2).unwrap();
    net.run(PASSIVE_PATIENCE + THINKING);
    assert!(matches!(net.only(0), Event::Reply(_)));
    assert_eq!((net.count(REP), net.count(MRA)), (2, 1));
    net.cms[0].ready(active).unwrap();
    net.run(MS);
    assert_eq!(net.only(1), Event::Established(passive));
}

/// Every reason arrives as it was given, with its private data, in every state in which it may
/// come.
#[test]
fn every_reason_arrives() {
    for reason in (1..=35).map(Reason) {
        let mut net = pair();
        let active = net.connect(0, 1, 1, &[]);
        net.run(MS);
        let passive = net.request(1);
        net.cms[1].reject(passive, reason, &[7; 148], net.now).unwrap();
        net.run(MS);
        let told = refused(net.only(0));
        let expected = Refused { conn: active, reason, private: vec![7; 148] };
        // Without being asked the other side knows that a time out is about another message.
        if reason != Reason::TIMEOUT {
            assert_eq!(told, expected);
        }
        net.cms[0].destroy(active, net.now);
        net.nothing_is_left();

        // The active side refuses the reply.
        let mut net = pair();
        let active = net.connect(0, 1, 1, &[]);
        net.run(MS);
        let passive = net.request(1);
        net.reply(1, passive, 2).unwrap();
        net.run(MS);
        net.told(0);
        net.cms[0].reject(active, reason, &[], net.now).unwrap();
        net.run(MS);
        assert_eq!(refused(net.only(1)).reason, reason);
        net.cms[1].destroy(passive, net.now);
        net.nothing_is_left();

        // The passive side thinks better of it when all was done but for the RTU.
        let mut net = pair();
        net.lose.insert(RTU, 1);
        let active = net.connect(0, 1, 1, &[]);
        net.run(MS);
        let passive = net.request(1);
        net.reply(1, passive, 2).unwrap();
        net.run(MS);
        net.told(0);
        net.cms[0].ready(active).unwrap();
        net.run(MS);
        net.cms[1].reject(passive, reason, &[], net.now).unwrap();
        net.run(MS);
        assert_eq!(refused(net.only(0)).reason, reason);
        net.cms[1].destroy(passive, net.now);
        net.cms[0].destroy(active, net.now);
        net.nothing_is_left();
    }
}

#[test]
fn a_listener_dies_between_request_and_reply() {
    // It is ended, and says so.
    let mut net = pair();
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    let passive = net.request(1);
    net.cms[1].destroy(passive, net.now);
    net.run(MS);
    let told = refused(net.only(0));
    assert_eq!((told.conn, told.reason), (active, Reason::CONSUMER_DEFINED));
    net.nothing_is_left();

    // It is ended after its reply, which is lost: it says so too.
    let mut net = pair();
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    let passive = net.request(1);
    net.lose.insert(REP, 1);
    net.reply(1, passive, 2).unwrap();
    net.run(MS);
    net.cms[1].destroy(passive, net.now);
    net.run(MS);
    let told = refused(net.only(0));
    assert_eq!((told.conn, told.reason), (active, Reason::CONSUMER_DEFINED));
    net.nothing_is_left();

    // It is killed, and says nothing.
    let mut net = pair();
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    net.request(1);
    let begin = net.now;
    net.cms[1] = Net::new(2, 2).cms.remove(1);
    net.lose.insert(REQ, u32::MAX);
    while net.events.is_empty() {
        net.run(MS);
    }
    assert_eq!(net.only(0), Event::Unreachable(active));
    assert!(net.now - begin <= SENDINGS * PATIENCE);
    net.nothing_is_left();
}

#[test]
fn a_request_without_room_is_as_if_lost() {
    let mut net = pair();
    let active = net.connect(0, 1, 1, &[]);
    net.run(MS);
    for _ in 0..3 {
        let passive = net.request(1);
        net.cms[1].ignore(passive);
        assert_eq!(net.cms[1].conversations(), 0);
        net.run(PATIENCE);
    }
    let passive = net.request(1);
    net.reply(1, passive, 2).unwrap();
    net.run(MS);
    assert!(matches!(net.only(0), Event::Reply(reply) if reply.conn == active));
}

#[test]
fn private_data_beyond_its_room_is_refused_and_leaves_all_as_it_was() {
    let mut net = pair();
    let active = net.connect(0, 1, 1, &[5; 92]);
    net.run(MS);
    let passive = net.request(1);
    let params = cm::ReplyParams { private: vec![0; 197], ..cm::ReplyParams::default() };
    assert!(net.cms[1].reply(passive, params, net.now).is_err());
    assert!(net.cms[1].reject(passive, Reason(28), &[0; 149], net.now).is_err());
    net.reply(1, passive, 2).unwrap();
    net.run(MS);
    net.told(0);
    net.cms[0].ready(active).unwrap();
    net.run(MS);
    assert_eq!(net.only(1), Event::Established(passive));
}

/// Whoever forges the source of requests makes us send no faster for it; nobody's answer is left
/// out.
#[test]
fn answers_to_many_are_repeated_at_a_limited_rate() {
    const ASKED: u32 = 300;
    let mut net = pair();
    let mut mad = patient_req(&mut net, 1);
    net.lose.insert(REP, u32::MAX);
    let begin = net.now;
    for number in 0..ASKED {
        mad[24..28].copy_from_slice(&(0x1000 + number).to_be_bytes());
        mad[24 + 32..24 + 35].copy_from_slice(&(0x10 + number).to_be_bytes()[1..]);
        net.forge(0, 1, &mad);
        let passive = net.request(1);
        net.reply(1, passive, 0x10 + number).unwrap();
    }
    net.run(Duration::from_secs(2));
    assert_eq!(net.count(REP), ASKED as usize + 256);
    net.run(Duration::from_secs(2));
    assert_eq!(net.count(REP), 2 * ASKED as usize);
    let last = *net.times(REP, begin).last().unwrap();
    assert_eq!(last, Duration::from_millis(1024 + 1000));
}
