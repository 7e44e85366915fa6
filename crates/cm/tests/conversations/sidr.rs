//! How datagram services are asked for and answered (SIDR).

use crate::exact::{MS, pair};
use crate::net::*;
use cm::{Event, SidrReplyParams, SidrStatus};
use std::time::Duration;

fn ask(net: &mut Net) -> cm::ConnId {
    net.cms[0].sidr_request(path(0, 1), SERVICE, &[9; 216], net.now).unwrap()
}

#[track_caller]
fn asked(net: &mut Net) -> cm::ConnId {
    match net.only(1) {
        Event::SidrRequest(request) => {
            assert_eq!((request.service_id, &request.private[..]), (SERVICE, &[9; 216][..]));
            request.conn
        }
        other => panic!("{other:?}"),
    }
}

fn tell(net: &mut Net, conn: cm::ConnId) {
    let status = SidrStatus::SUCCESS;
    let params = SidrReplyParams { status, qpn: 77, qkey: 88, private: vec![6; 136] };
    net.cms[1].sidr_reply(conn, params).unwrap();
}

#[test]
fn a_datagram_service_is_asked_for_until_it_answers() {
    let mut net = pair();
    net.lose.insert(SIDR_REQ, 2);
    net.lose.insert(SIDR_REP, 1);
    let conn = ask(&mut net);
    net.run(2 * PASSIVE_PATIENCE + MS);
    let first = asked(&mut net);
    // The question is repeated before it is answered: it is one question.
    let question = net.last(SIDR_REQ).mad;
    net.forge(0, 1, &question);
    net.silent();
    tell(&mut net, first);
    // The answer is lost: the repeated question is a new one for the service.
    net.run(PASSIVE_PATIENCE);
    let second = asked(&mut net);
    tell(&mut net, second);
    net.run(MS);
    match net.only(0) {
        Event::SidrReply(reply) => {
            assert_eq!((reply.conn, reply.qpn, reply.qkey), (conn, 77, 88));
            assert_eq!(reply.private, [6; 136]);
        }
        other => panic!("{other:?}"),
    }
    // The answer comes twice.
    let answer = net.last(SIDR_REP).mad;
    net.forge(1, 0, &answer);
    net.silent();
    net.nothing_is_left();
}

#[test]
fn a_datagram_service_that_never_answers() {
    let mut net = pair();
    net.lose.insert(SIDR_REQ, u32::MAX);
    let begin = net.now;
    let conn = ask(&mut net);
    net.run(SENDINGS * PASSIVE_PATIENCE);
    assert_eq!(net.only(0), Event::SidrUnanswered(conn));
    let due: Vec<Duration> = (0..SENDINGS).map(|n| n * PASSIVE_PATIENCE).collect();
    assert_eq!(net.times(SIDR_REQ, begin), due);
    net.nothing_is_left();
}

#[test]
fn a_datagram_service_that_ends_says_so() {
    let mut net = pair();
    let conn = ask(&mut net);
    net.run(MS);
    let asked = asked(&mut net);
    net.cms[1].destroy(asked, net.now);
    net.run(MS);
    let refused = net.only(0);
    assert!(
        matches!(
            &refused,
            Event::SidrReply(reply) if (reply.conn, reply.status) == (conn, SidrStatus::REJECT)
        ),
        "{refused:?}"
    );
    net.nothing_is_left();
}
