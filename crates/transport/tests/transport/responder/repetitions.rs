//! Requests that come again: answered again, and not done again.

use super::*;
use transport::{Budget, Share};

#[test]
fn a_repeated_write_is_acknowledged_and_not_done() {
    let mut node = responder();
    let region = node.register(256);
    let packet = write(Only, FIRST_PSN, 16).reth(region.iova, region.key, 16);
    node.feed(&packet);
    region.set(0, &[1; 16]);
    let out = node.feed(&packet);
    assert!(out[0].is_ack());
    assert_eq!((out[0].psn(), out[0].msn()), (FIRST_PSN, 1));
    assert_eq!(region.get(0, 16), [1; 16]);
    assert_eq!(node.counted(Counter::DuplicateRequest), 1);
}

#[test]
pub fn a_repeated_atomic_gives_the_saved_result() {
    let mut node = responder();
    let region = node.register(64);
    region.set(8, &41u64.to_ne_bytes());
    let packet = fetch_add(FIRST_PSN, region.iova + 8, region.key);
    for _ in 0..3 {
        let out = node.feed(&packet);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].operation(), Operation::AtomicAcknowledge);
        assert_eq!((out[0].psn(), out[0].headers.atomic_ack), (FIRST_PSN, Some(41)));
    }
    assert_eq!(region.word(8), 42);
    assert_eq!(region.ram.atomics.load(Relaxed), 1);
    // Four responder resources: the fifth atomic pushes the first result out, and its repetition
    // stays unanswered.
    for i in 1..=4 {
        node.feed(&fetch_add(FIRST_PSN + i, region.iova + 8, region.key));
    }
    assert!(node.feed(&packet).is_empty());
    let out = node.feed(&fetch_add(FIRST_PSN + 1, region.iova + 8, region.key));
    assert_eq!(out[0].headers.atomic_ack, Some(42));
    assert_eq!(region.word(8), 46);
}

#[test]
fn a_repeated_read_starts_where_it_asks() {
    let mut node = responder();
    let region = node.register(1000);
    let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
    region.set(0, &bytes);
    let out = node.feed(&read(FIRST_PSN, region.iova, region.key, 1000));
    let positions: Vec<_> = out.iter().map(Packet::position).collect();
    assert_eq!(positions, [First, Middle, Middle, Last]);
    let psns: Vec<_> = out.iter().map(Packet::psn).collect();
    assert_eq!(psns, [FIRST_PSN, FIRST_PSN + 1, FIRST_PSN + 2, FIRST_PSN + 3]);
    assert_eq!(out.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), bytes);
    assert!(out[0].headers.aeth.is_some() && out[1].headers.aeth.is_none());
    assert_eq!(out[3].msn(), 1);
    let out = node.feed(&read(FIRST_PSN + 2, region.iova + 512, region.key, 488));
    let positions: Vec<_> = out.iter().map(Packet::position).collect();
    assert_eq!(positions, [First, Last]);
    assert_eq!(out[0].psn(), FIRST_PSN + 2);
    assert_eq!(out.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), bytes[512..]);
    // A repetition that reaches beyond what was asked for stays unanswered.
    assert!(node.feed(&read(FIRST_PSN + 2, region.iova, region.key, 1000)).is_empty());
    // One whose memory is gone is refused, and the connection stays: the requester may have had the
    // data.
    region.ram.broken.store(true, Relaxed);
    let out = node.feed(&read(FIRST_PSN, region.iova, region.key, 1000));
    assert_eq!(
        (out.len(), out[0].nak(), out[0].psn()),
        (1, Some(NakCode::RemoteOperational), FIRST_PSN)
    );
    node.keys.remove(region.key, || ()).unwrap();
    let out = node.feed(&read(FIRST_PSN + 1, region.iova + 256, region.key, 744));
    assert_eq!(
        (out.len(), out[0].nak(), out[0].psn()),
        (1, Some(NakCode::RemoteAccess), FIRST_PSN + 1)
    );
    assert_eq!((node.qp.state(), node.told.events.len()), (QpState::Rts, 0));
    // The next request takes the PSN after the READ's.
    receives(&mut node, 1);
    assert!(node.feed(&send(Only, FIRST_PSN + 4, 8))[0].is_ack());
}

#[test]
fn a_repetition_before_a_read_is_acknowledged_no_further_than_itself() {
    let mut node = responder();
    let region = node.register(64);
    let packet = write(Only, FIRST_PSN, 16).reth(region.iova, region.key, 16);
    node.feed(&packet);
    node.feed(&read(FIRST_PSN + 1, region.iova, region.key, 16));
    // An ACK of the READ's PSN would tell the requester that its response was lost.
    assert_eq!(node.feed(&packet)[0].psn(), FIRST_PSN);
}

/// PSNs and positions of READ responses.
fn answers(out: &[Packet]) -> Vec<(u32, wire::Position)> {
    assert!(out.iter().all(|packet| packet.operation() == Operation::ReadResponse));
    out.iter().map(|packet| (packet.psn() - FIRST_PSN, packet.position())).collect()
}

#[test]
fn a_repeated_read_is_answered_before_those_after_it() {
    let mut node = responder();
    node.budget = Budget::of(Share::new(2, u64::MAX));
    let region = node.register(1000);
    let first = read(FIRST_PSN, region.iova, region.key, 512);
    assert_eq!(answers(&node.feed(&first)), [(0, First), (1, Last)]);
    let second = read(FIRST_PSN + 2, region.iova, region.key, 1000);
    assert_eq!(answers(&node.feed(&second)), [(2, First), (3, Middle)]);
    // The peer took nothing of the second one, since it misses the first.
    assert_eq!(answers(&node.feed(&first)), [(0, First), (1, Last)]);
    assert_eq!(answers(&node.feed(&second)), [(2, First), (3, Middle)]);
    assert_eq!(answers(&node.timer()), [(4, Middle), (5, Last)]);
    assert!(node.timer().is_empty());
}

#[test]
fn an_answer_on_its_way_goes_back_to_what_is_asked_for_again() {
    let mut node = responder();
    node.budget = Budget::of(Share::new(3, u64::MAX));
    let region = node.register(1280);
    let out = node.feed(&read(FIRST_PSN, region.iova, region.key, 1280));
    assert_eq!(answers(&out), [(0, First), (1, Middle), (2, Middle)]);
    let rest = |va| read(FIRST_PSN + 1, va, region.key, 1024);
    let out = node.feed(&rest(region.iova + 256));
    assert_eq!(answers(&out), [(1, Middle), (2, Middle), (3, Middle)]);
    assert_eq!(answers(&node.timer()), [(4, Last)]);
    assert!(node.timer().is_empty());
    // What names other memory is another answer.
    node.feed(&read(FIRST_PSN + 5, region.iova, region.key, 1280));
    let out = node.feed(&read(FIRST_PSN + 6, region.iova, region.key, 512));
    assert_eq!(answers(&out), [(8, Middle), (9, Last), (6, First)]);
}

/// The peer completes its READs in order, so it has more under way than it may only where the
/// oldest of them came after all.
#[test]
fn a_new_read_takes_the_place_of_the_oldest_that_comes_again() {
    let mut node = responder();
    node.budget = Budget::of(Share::new(1, u64::MAX));
    // More packets each than leave while all of them are asked for.
    let (most, packets) = (u32::from(node.qp.query().max_dest_rd_atomic), 40);
    let region = node.register(u64::from(packets) * 256);
    let nth = |nth| read(FIRST_PSN + packets * nth, region.iova, region.key, packets * 256);
    let left = |node: &mut Node| {
        let outs = std::iter::repeat_with(|| node.timer()).take_while(|out| !out.is_empty());
        outs.flat_map(|out| answers(&out)).map(|(psn, _)| psn).collect::<Vec<_>>()
    };
    for n in 0..most {
        node.feed(&nth(n));
        left(&mut node);
    }
    for n in 0..most {
        assert!(answers(&node.feed(&nth(n))).iter().all(|(psn, _)| *psn < packets));
    }
    node.feed(&nth(most));
    assert_eq!(left(&mut node), (packets..packets * (most + 1)).skip(1).collect::<Vec<_>>());
    // What was dropped comes when it is asked for once more.
    assert_eq!(answers(&node.feed(&nth(0))), [(0, First)]);
}
