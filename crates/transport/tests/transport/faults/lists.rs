//! Memory below a list of keys: what is refused there is looked up again a little later.

use super::*;

/// Memory below a list of keys: what is refused there is looked up again when this is over.
fn below() -> (Node, Region) {
    let (node, region) = node();
    region.ram.below.store(true, Relaxed);
    (node, region)
}

/// The fault at hand is refused, and its wait passes; how long that was.
fn refuse_for_now(node: &mut Node) -> Duration {
    let fault = fault(node);
    assert!(fault.missing.below);
    assert!(node.answer(&fault, Verdict::RefusedBelow).is_empty());
    let (now, until) = (node.now, node.qp.deadline().expect("it looks again"));
    assert!(node.timer().is_empty() && node.told.faults.is_empty(), "not yet");
    node.now = until;
    until - now
}

#[test]
fn a_list_may_change_while_what_it_named_is_refused() {
    for served in [true, false] {
        let (mut node, region) = below();
        take(&region, 0);
        node.post_send(send_wr(1, SendOp::Send, &[region.sge(0, 8)]));
        let begun = node.now;
        let waits: Vec<u128> = (0..11)
            .map(|_| {
                let wait = refuse_for_now(&mut node).as_millis();
                assert!(node.timer().is_empty() && node.told.sent.is_empty());
                wait
            })
            .collect();
        assert_eq!(
            (&waits[..4], node.now - begun),
            (&[1, 2, 4, 8][..], Duration::from_millis(2047))
        );
        let fault = fault(&mut node);
        if served {
            assert_eq!(node.serve(&fault, true).len(), 1);
            // The next time begins anew.
            take(&region, 1);
            node.post_send(send_wr(2, SendOp::Send, &[region.sge(PAGE, 8)]));
            assert_eq!(refuse_for_now(&mut node), Duration::from_millis(1));
        } else {
            node.answer(&fault, Verdict::RefusedBelow);
            assert_eq!(node.told.sent[0].status, WcStatus::LocProtErr);
            assert_eq!(node.qp.state(), QpState::Err);
        }
    }
}

#[test]
fn every_side_looks_again() {
    // What a peer writes and reads.
    let (mut one, region) = below();
    let Remote { addr, rkey } = region.remote(0);
    let [first, _] = write_packets(&region);
    let rest = read(FIRST_PSN + 2, addr, rkey, 8);
    take(&region, 0);
    for request in [&first, &rest] {
        assert!(waits(&one.feed(request)));
        refuse_for_now(&mut one);
        assert!(one.timer().is_empty() && one.told.faults.is_empty(), "the peer comes again");
        assert!(waits(&one.feed(request)));
        refuse_for_now(&mut one);
        one.timer();
        assert!(waits(&one.feed(request)));
        let fault = fault(&mut one);
        one.serve(&fault, true);
        if request.psn() == FIRST_PSN {
            assert!(one.feed(request).iter().all(Packet::is_ack));
            one.feed(&write(Last, FIRST_PSN + 1, 44));
            take(&region, 0);
        }
    }
    assert_eq!(one.feed(&rest)[0].payload, region.get(0, 8));
    // What its own READ brings.
    let (mut one, region) = below();
    take(&region, 0);
    one.post_send(send_wr(1, SendOp::Read(region.remote(0)), &[region.sge(0, 8)]));
    one.emitted();
    one.feed(&read_response(Only, FIRST_SENT, vec![7; 8]));
    refuse_for_now(&mut one);
    assert_eq!(one.timer()[0].operation(), Operation::ReadRequest);
    one.feed(&read_response(Only, FIRST_SENT, vec![7; 8]));
    let fault = fault(&mut one);
    one.serve(&fault, true);
    one.feed(&read_response(Only, FIRST_SENT, vec![7; 8]));
    assert_eq!((one.told.sent.len(), region.get(0, 8)), (1, vec![7; 8]));
}
