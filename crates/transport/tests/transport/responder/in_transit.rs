//! Packets whose payload is copied from where they came by, straight to its place.

use super::*;
use crate::support::TagQueue;

#[test]
fn what_arrives_is_as_if_it_were_at_hand() {
    let mut node = responder();
    let region = receives(&mut node, 1);
    assert!(node.feed_in_transit(&send(First, FIRST_PSN, 256))[0].is_ack());
    assert!(node.feed(&send(Middle, FIRST_PSN + 1, 256))[0].is_ack());
    assert!(node.feed_in_transit(&send(Last, FIRST_PSN + 2, 10))[0].is_ack());
    assert_eq!(node.told.received[0].byte_len, 522);
    assert_eq!(region.get(0, 522), [0xa5; 522]);
    let target = node.register(64);
    let packet = write(Only, FIRST_PSN + 3, 16).reth(target.iova + 8, target.key, 16);
    assert!(node.feed_in_transit(&packet)[0].is_ack());
    assert_eq!((target.get(0, 8), target.get(8, 16)), (vec![0; 8], vec![0xa5; 16]));
}

#[test]
fn its_length_is_checked_as_any() {
    let mut node = responder();
    receives(&mut node, 1);
    let out = node.feed_in_transit(&send(Only, FIRST_PSN, 257));
    let event = Some(EventType::QpReqErr);
    assert_fatal(&node, &out, FIRST_PSN, NakCode::InvalidRequest, event);
    let mut node = responder();
    let region = node.register(64);
    node.post_recv(1, &[region.sge(0, 64)]);
    let out = node.feed_in_transit(&send(Only, FIRST_PSN, 65));
    assert_eq!(node.told.received[0].status, WcStatus::LocLenErr);
    assert_fatal(&node, &out, FIRST_PSN, NakCode::InvalidRequest, None);
    assert_eq!(region.get(0, 64), [0; 64]);
}

/// A page that is not there is met in the midst of it.
#[test]
fn a_fault_leaves_the_message_as_it_was() {
    let mut node = responder();
    let region = node.register(1024);
    node.post_recv(1, &[region.sge(0, 1024)]);
    region.ram.absent.lock().unwrap().insert(0);
    let packet = send(Only, FIRST_PSN, 256);
    let out = node.feed_in_transit(&packet);
    assert!(matches!(out[0].headers.aeth.unwrap().syndrome, Syndrome::RnrNak(_)));
    assert!(node.told.received.is_empty());
    let fault = node.told.faults[0];
    node.serve(&fault, true);
    assert!(node.feed_in_transit(&packet)[0].is_ack());
    assert_eq!((node.told.received[0].byte_len, region.get(0, 256)), (256, vec![0xa5; 256]));
}

#[test]
fn a_list_of_tags_sees_all_of_it() {
    let queue = TagQueue::new();
    let mut node = Node::new(QpType::Rc, 11, Some(SharedQueue::Tags(queue.clone())));
    node.connect(&Setup::new(QpType::Rc));
    let region = node.register_as(crate::support::QUEUE_PD, 1024, Access::LOCAL_WRITE);
    queue.post(3, region.sge(0, 1024));
    assert!(node.feed_in_transit(&send(Only, FIRST_PSN, 100))[0].is_ack());
    assert_eq!(queue.told.lock().unwrap().len(), 1);
    assert_eq!(region.get(0, 100), [0xa5; 100]);
}
