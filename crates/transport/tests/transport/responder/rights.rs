//! Rights that are taken away amid a message: the rest of it comes by what holds then.

use super::*;
use transport::keys::Mkey;
use transport::{Budget, Share};

/// A responder with memory under a key, and the key's registration.
fn granted() -> (Node, Region, Mkey) {
    let mut node = responder();
    let region = node.register(1 << 20);
    let mkey = node.keys.get(region.key).unwrap();
    (node, region, mkey)
}

fn first_of_write(node: &mut Node, region: &Region) {
    let Remote { addr, rkey } = region.remote(0);
    assert!(node.feed(&write(First, 1000, 256).reth(addr, rkey, 768).no_ack_req()).is_empty());
}

#[test]
fn a_write_goes_no_further_than_its_keys_rights() {
    for change in
        [|mkey: &mut Mkey| mkey.access = Access::LOCAL_WRITE, |mkey: &mut Mkey| mkey.pd = PdId(99)]
    {
        let (mut node, region, mut mkey) = granted();
        first_of_write(&mut node, &region);
        region.set(256, &[7; 512]);
        change(&mut mkey);
        node.keys.replace(region.key, mkey).unwrap();
        let out = node.feed(&write(Middle, 1001, 256));
        assert_eq!(out[0].nak(), Some(NakCode::RemoteAccess));
        assert_eq!(region.get(256, 256), [7; 256]);
    }
}

#[test]
fn a_write_goes_on_where_other_keys_change() {
    let (mut node, region, _) = granted();
    first_of_write(&mut node, &region);
    node.register(64);
    assert!(node.feed(&write(Middle, 1001, 256).no_ack_req()).is_empty());
    assert!(node.feed(&write(Last, 1002, 256))[0].is_ack());
}

#[test]
fn a_write_goes_no_further_than_the_queue_pairs_rights() {
    let (mut node, region, _) = granted();
    first_of_write(&mut node, &region);
    let attr = QpAttr { access: Access::REMOTE_READ, ..node.qp.query() };
    node.modify(&attr, AttrMask::ACCESS_FLAGS).unwrap();
    let out = node.feed(&write(Middle, 1001, 256));
    assert_eq!(out[0].nak(), Some(NakCode::InvalidRequest));
}

#[test]
fn a_read_is_answered_no_further_than_its_keys_rights() {
    let (mut node, region, mut mkey) = granted();
    node.budget = Budget::of(Share::new(2, u64::MAX));
    let Remote { addr, rkey } = region.remote(0);
    let out = node.feed(&read(1000, addr, rkey, 256 * 8));
    assert!(!out.is_empty() && out.len() < 8, "{} responses", out.len());
    mkey.access = Access::LOCAL_WRITE;
    node.keys.replace(region.key, mkey).unwrap();
    node.timer();
    node.with(|qp, cx| qp.transmit(cx));
    assert_eq!(node.qp.state(), QpState::Err);
}
