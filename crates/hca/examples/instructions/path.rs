//! Pieces of the path between two queue pairs, by packets and through shared memory: posts, polls,
//! a whole SEND; and what memory costs.

use super::count;
use super::ends::{End, memory, options};
use hca::keys::KeyTable;
use hca::{Access, PdId, QpType, RecvWr, SendOp, WcStatus};
use std::hint::black_box;
use std::time::{Duration, Instant};
use transport::Counter;
use umem::Umem;

const MESSAGE_BYTES: u32 = 8;
const REGION_BYTES: usize = 4096;

pub fn count_all() {
    let options = options();
    let pair = [End::new("one", &options, QpType::Rc), End::new("two", &options, QpType::Rc)];
    let [a, b] = &pair;
    a.connect(b);
    b.connect(a);
    pause(&pair);
    posts_and_polls(a, b);
    registrations(a);
    keys(a);
    let pair =
        [End::beside("three", &options, QpType::Rc), End::beside("four", &options, QpType::Rc)];
    through_shared_memory(&pair);
}

fn pause(pair: &[End; 2]) {
    for end in pair {
        end.device.pause(Instant::now() + Duration::from_secs(10));
    }
}

fn through_shared_memory(pair: &[End; 2]) {
    let [a, b] = pair;
    a.connect(b);
    b.connect(a);
    // Packets go by sockets until the other's thread has attached the ring.
    while [a, b].iter().any(|end| end.counted(Counter::RingPackets) == 0) {
        for (from, to) in [(a, b), (b, a)] {
            receive(to);
            send(from);
            to.completion();
            from.completion();
        }
    }
    pause(pair);
    post("post of a SEND of 8 bytes through shared memory", a, b);
    empty_poll("poll of an empty completion queue beside shared memory", a);
    whole_send("SEND of 8 bytes through shared memory, from its post to both completions", a, b);
}

fn posts_and_polls(a: &End, b: &End) {
    post("post of a SEND of 8 bytes", a, b);
    empty_poll("poll of an empty completion queue", a);
    count("poll that takes a completion", |run| {
        (0..2).for_each(|_| receive(b));
        (0..2).for_each(|_| send(a));
        (0..2).for_each(|_| assert_eq!(poll(b), 1));
        // This one makes progress, and both are there.
        assert_eq!(poll(a), 1);
        run(&mut || assert_eq!(poll(a), 1));
    });
    whole_send("SEND of 8 bytes by packets, from its post to both completions", a, b);
}

fn post(name: &str, a: &End, b: &End) {
    count(name, |run| {
        receive(b);
        run(&mut || send(a));
        assert_eq!((poll(b), poll(a)), (1, 1));
    });
}

fn empty_poll(name: &str, a: &End) {
    count(name, |run| {
        run(&mut || assert_eq!(poll(a), 0));
    });
}

fn whole_send(name: &str, a: &End, b: &End) {
    count(name, |run| {
        receive(b);
        run(&mut || {
            send(a);
            assert_eq!((poll(b), poll(a)), (1, 1));
        });
    });
}

fn send(end: &End) {
    end.post(SendOp::Send, 0, MESSAGE_BYTES);
}

fn receive(end: &End) {
    let wr = RecvWr { wr_id: 9, scatter: [end.sge(0, MESSAGE_BYTES)].into_iter().collect() };
    end.qp.post_recv(&mut [Ok(wr)].into_iter()).expect("room for a request");
}

/// One poll for one completion; answers how many came.
fn poll(end: &End) -> usize {
    let polled = end.cq.poll(1, &mut |done| assert_eq!(done.status, WcStatus::Success));
    polled.expect("a queue that lives")
}

fn registrations(end: &End) {
    let space = mm::AddressSpace::process();
    let platform = pcie::Platform::default();
    let hca = platform.with_role(pcie::Role::Hca).next().expect("an adapter");
    let buffer = vec![0; REGION_BYTES];
    count("registration and deregistration of 4 KiB", |run| {
        run(&mut || {
            let access = umem::AccessFlags::LOCAL_WRITE;
            let umem = Umem::from_user(&space, memory(&buffer), access, hca, &platform);
            let umem = umem.expect("memory that is there");
            let rights = Access::LOCAL_WRITE;
            let mr = end.device.reg_mr(&end.pd, umem, buffer.as_ptr() as u64, rights);
            drop(mr.expect("room for a key"));
        });
    });
}

fn keys(end: &End) {
    let keys = KeyTable::new();
    let space = mm::AddressSpace::process();
    let platform = pcie::Platform::default();
    let hca = platform.with_role(pcie::Role::Hca).next().expect("an adapter");
    let at = end.buffer.as_ptr() as u64;
    let access = umem::AccessFlags::LOCAL_WRITE;
    let umem = Umem::from_user(&space, memory(&end.buffer), access, hca, &platform);
    let umem = umem.expect("memory that is there");
    let key = keys.insert(PdId(1), umem, at, Access::LOCAL_WRITE).expect("room for a key");
    count("look-up of a memory key", |run| {
        run(&mut || {
            let found = keys.resolve(PdId(1), black_box(key), at, 4096, Access::LOCAL_WRITE);
            drop(black_box(found.expect("a key that is there")));
        });
    });
}
