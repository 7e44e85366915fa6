//! Doorbell pages: each rings for the queues that name it and for no other.

use crate::driver::{Pair, pair};
use crate::support::numbers::{BAD_RESOURCE, REQUEST, WRITE};
use crate::support::verbs::{
    CREATE_CQ, CREATE_EQ, CREATE_QP, cq, eq_for, inline, qp, remote, user_qp,
};
use crate::support::{ALLOC_UAR, field};

const DEALLOC_UAR: u16 = 0x803;
const CREATE_UCTX: u16 = 0xa04;
const QUERY_ISSI: u16 = 0x10a;

fn about(uid: u16, number: u32) -> Vec<u8> {
    let mut input = vec![0; 16];
    field(&mut input, 0x10, 16, uid.into());
    field(&mut input, 0x48, 24, number.into());
    input
}

#[test]
fn a_page_rings_for_no_queue_of_another() {
    let Pair { mut driver, mut cq, key, pd, .. } = pair("pages");
    let lid = driver.lid;
    let mut one = user_qp(&mut driver, 0, pd, &cq);
    one.connect(&mut driver, lid, one.number);
    let to = driver.page();
    let (own, foreign) = (one.uar, driver.uar);
    assert_ne!(own, foreign);
    // Requests wait while others ring for them: a stranger's page, one that nobody has.
    for uar in [foreign, own + 1] {
        one.uar = uar;
        one.post(&driver, WRITE, 0, &[&remote(to, key), &inline(b"rung")]);
        assert_eq!(one.state(&mut driver), 3);
        assert!(cq.poll(&driver).is_none());
        assert_eq!(driver.peek(to, 4), [0; 4]);
    }
    one.uar = own;
    one.post(&driver, WRITE, 0, &[&remote(to, key), &inline(b"rung")]);
    (0..3).for_each(|_| drop(cq.expect(&driver, REQUEST)));
    assert_eq!(driver.peek(to, 4), b"rung");
    // A page that was given back rings no more, nor does the next one of its number.
    driver.command(DEALLOC_UAR, about(0, own), 16);
    assert_eq!(driver.create(ALLOC_UAR, vec![0; 16]), own);
    one.post(&driver, WRITE, 0, &[&remote(to, key), &inline(b"late")]);
    assert!(cq.poll(&driver).is_none());
    assert_eq!(driver.peek(to, 4), b"rung");
}

#[test]
fn completion_and_event_queues_hear_their_own_page_only() {
    const VECTOR: u16 = 2;
    let Pair { mut driver, key, pd, .. } = pair("armed");
    let mut events = eq_for(&mut driver, 0, 6, VECTOR);
    let mut cq = cq(&mut driver, events.number);
    let mut one = qp(&mut driver, 0, pd, &cq);
    let lid = driver.lid;
    one.connect(&mut driver, lid, one.number);
    let uar = driver.create(ALLOC_UAR, vec![0; 16]);
    let to = driver.page();
    let write = [&remote(to, key)[..], &inline(b"seen")].concat();
    let machine = driver.machine.clone();
    let told = || machine.interrupts.lock().unwrap().iter().filter(|one| **one == VECTOR).count();
    // Whole, and in two halves of which the second is a stranger's.
    driver.arm_cq_by(uar, cq.number, 0);
    driver.function.write(u64::from(driver.uar) * 4096 + 0x20, &[0; 4]);
    driver.function.write(u64::from(uar) * 4096 + 0x24, &cq.number.to_be_bytes());
    one.post(&driver, WRITE, 0, &[&write]);
    cq.expect(&driver, REQUEST);
    assert!(events.poll(&driver).is_none());
    driver.arm_cq(cq.number, cq.consumed());
    driver.arm_eq_by(uar, events.number, 0);
    one.post(&driver, WRITE, 0, &[&write]);
    cq.expect(&driver, REQUEST);
    driver.poll("an event", || events.poll(&driver));
    assert_eq!(told(), 0);
    driver.arm_eq(events.number, 0);
    assert_eq!(told(), 1);
}

/// A consumer counter that a stranger writes would let the device overwrite entries that nobody
/// read.
#[test]
fn a_stranger_moves_no_consumer_counter() {
    let Pair { mut driver, ring, .. } = pair("consumer");
    let uar = driver.create(ALLOC_UAR, vec![0; 16]);
    let owner = |driver: &crate::support::Driver| driver.peek(ring + 63, 1)[0];
    // An event for each command, which nobody reads.
    (0..70).for_each(|_| drop(driver.command(QUERY_ISSI, vec![0; 16], 0x70)));
    driver.arm_eq_by(uar, 0, 64);
    driver.command(QUERY_ISSI, vec![0; 16], 0x70);
    assert_eq!(owner(&driver), 0, "the first entry is of the first round");
    driver.arm_eq(0, 64);
    driver.command(QUERY_ISSI, vec![0; 16], 0x70);
    assert_eq!(owner(&driver), 1);
}

#[test]
fn queues_name_a_page_that_is_theirs() {
    let Pair { mut driver, cq, .. } = pair("named");
    let user = |driver: &mut crate::support::Driver| driver.create(CREATE_UCTX, vec![0; 0x40]);
    let (one, two) = (user(&mut driver) as u16, user(&mut driver) as u16);
    let own = driver.create(0x800, about(one, 0));
    let uars = [driver.create(ALLOC_UAR, about(two, 0)), 0x1f00];
    for uar in uars {
        let mut input = about(one, 0);
        input.resize(0x118, 0);
        field(&mut input, 0xc0 + 0x28, 24, own.into());
        field(&mut input, 0xc0 + 0x68, 24, uar.into());
        field(&mut input, 0xc0 + 0x3e8, 24, cq.number.into());
        assert_eq!(driver.status(CREATE_QP, input), BAD_RESOURCE, "{uar:#x}");
        let mut input = about(one, 0);
        input.resize(0x118, 0);
        field(&mut input, 0x80 + 0x68, 24, uar.into());
        assert_eq!(driver.status(CREATE_CQ, input), BAD_RESOURCE, "{uar:#x}");
    }
    let mut input = vec![0; 0x118];
    field(&mut input, 0x80 + 0x68, 24, 0x1f00);
    assert_eq!(driver.status(CREATE_EQ, input), BAD_RESOURCE);
}
