//! Receive requests: missing, too short, or of memory that cannot be written.

use super::*;

#[test]
pub fn without_a_receive_the_peer_is_told_to_wait() {
    let mut node = responder_with(|setup| setup.min_rnr_timer = 17);
    let rnr = Some(Syndrome::RnrNak(17));
    let out = node.feed(&send(First, FIRST_PSN, 256));
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].headers.aeth.map(|aeth| aeth.syndrome), rnr);
    assert_eq!(out[0].psn(), FIRST_PSN);
    // What follows is neither done nor answered.
    assert!(node.feed(&send(Last, FIRST_PSN + 1, 8)).is_empty());
    assert_eq!(node.counted(Counter::OutOfBuffer), 1);
    let region = receives(&mut node, 1);
    assert!(node.feed(&send(First, FIRST_PSN, 256))[0].is_ack());
    assert!(node.feed(&send(Last, FIRST_PSN + 1, 8))[0].is_ack());
    assert_eq!(node.told.received.len(), 1);
    assert_eq!(region.get(0, 264), [0xa5; 264]);
}

#[test]
fn an_immediate_without_a_receive_waits_with_its_data() {
    let mut node = responder();
    let region = node.register(1024);
    let only = write(Only, FIRST_PSN, 16).reth(region.iova, region.key, 16).imm(5);
    let out = node.feed(&only);
    assert!(matches!(out[0].headers.aeth.unwrap().syndrome, Syndrome::RnrNak(_)));
    assert_eq!(region.get(0, 16), [0; 16]);
    node.post_recv(1, &[]);
    assert!(node.feed(&only)[0].is_ack());
    assert_eq!(region.get(0, 16), [0xa5; 16]);
    let done = node.told.received[0];
    assert_eq!((done.opcode, done.byte_len, done.imm_or_key), (WcOpcode::RecvRdmaWithImm, 16, 5));
    // In a longer message only the last packet has to wait.
    assert!(
        node.feed(&write(First, FIRST_PSN + 1, 256).reth(region.iova, region.key, 300))[0].is_ack()
    );
    let last = write(Last, FIRST_PSN + 2, 44).imm(6);
    let out = node.feed(&last);
    assert!(matches!(out[0].headers.aeth.unwrap().syndrome, Syndrome::RnrNak(_)));
    assert_eq!(out[0].psn(), FIRST_PSN + 2);
    node.post_recv(2, &[]);
    assert!(node.feed(&last)[0].is_ack());
    assert_eq!(node.told.received[1].byte_len, 300);
}

#[test]
fn a_receive_too_short_is_a_local_length_error() {
    for first in [true, false] {
        let mut node = responder();
        let region = node.register(1024);
        node.post_recv(1, &[region.sge(0, 200), region.sge(512, if first { 0 } else { 100 })]);
        node.post_recv(2, &[region.sge(0, 1024)]);
        let mut psn = FIRST_PSN;
        let mut out = node.feed(&send(First, psn, 256));
        if !first {
            psn += 1;
            out = node.feed(&send(Last, psn, 45));
        }
        assert_fatal(&node, &out, psn, NakCode::InvalidRequest, None);
        let told: Vec<_> =
            node.told.received.iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(told, [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]);
    }
}

#[test]
fn a_receive_without_access_is_a_local_protection_error() {
    type Spoil = fn(&mut Node) -> Sge;
    let cases: [(&str, Spoil); 5] = [
        ("unknown key", |node| Sge { lkey: 0, ..node.register(256).sge(0, 256) }),
        ("read-only key", |node| node.register_as(PD, 256, Access::REMOTE_READ).sge(0, 256)),
        ("foreign domain", |node| {
            node.register_as(PdId(PD.0 + 1), 256, Access::LOCAL_WRITE).sge(0, 256)
        }),
        ("beyond the end", |node| node.register(256).sge(1, 256)),
        ("memory gone", |node| {
            let region = node.register(256);
            region.ram.broken.store(true, Relaxed);
            region.sge(0, 256)
        }),
    ];
    for (name, spoil) in cases {
        println!("{name}");
        let mut node = responder();
        let sge = spoil(&mut node);
        node.post_recv(1, &[sge]);
        let out = node.feed(&send(Only, FIRST_PSN, 8));
        assert_fatal(&node, &out, FIRST_PSN, NakCode::RemoteOperational, None);
        assert_eq!(node.told.received[0].status, WcStatus::LocProtErr);
    }
}

#[test]
fn a_bad_entry_that_no_byte_reaches_does_no_harm() {
    let mut node = responder();
    let region = node.register(256);
    node.post_recv(1, &[region.sge(0, 8), Sge { addr: 0, length: 8, lkey: 0 }]);
    assert!(node.feed(&send(Only, FIRST_PSN, 8))[0].is_ack());
}
