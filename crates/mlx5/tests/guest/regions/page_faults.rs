//! Page faults: told by events, answered by commands, in both schemes; and what comes between.

use crate::driver::{Pair, pair};
use crate::support::numbers::{
    FETCH_ADD, LOCAL_PROTECTION, READ, REMOTE_ACCESS, REQUEST, REQUEST_ERROR, RESPONSE_ERROR,
    RESPONSE_SEND, SEND, UMR, WRITE,
};
use crate::support::verbs::{
    Eq, PAGE_FAULT, context, data, eq_for, free, free_key, inline, mask, remote, umr,
};
use crate::support::{Driver, field, word};
use std::sync::{Arc, Mutex};

const FLUSHED: u8 = 0x05;
const RESUME: u16 = 0x204;
const SET_HCA_CAP: u16 = 0x109;
const DESTROY_QP: u16 = 0x501;
const DESTROY_EQ: u16 = 0x302;
/// Where keys of such memory begin.
const START: u64 = 0x5000_0000;

/// A pair of queue pairs, a key over two pages of which none is there, and the queue of the events
/// that report faults.
struct Paging {
    pair: Pair,
    faults: Eq,
    key: u32,
    pages: [u64; 2],
    by_memory: bool,
}

/// What an event says.
#[derive(PartialEq, Debug)]
enum FaultReport {
    Memory { key: u32, addr: u64, pages: u32 },
    Request { kind: u8, queue: u32, index: u16, done: u32 },
    Remote { kind: u8, key: u32, addr: u64, len: u32, done: u32 },
}

fn paging(name: &str, by_memory: bool, log_faults: u32) -> Paging {
    let mut pair = pair(name);
    let driver = &mut pair.driver;
    let mut input = vec![0; 16 + 4096];
    field(&mut input, 0x30, 16, 2 << 1);
    field(&mut input, 128 + 0x600, 1, by_memory.into());
    driver.command(SET_HCA_CAP, input, 16);
    let faults = eq_for(driver, 1 << PAGE_FAULT, log_faults, 1);
    let key = free_key(driver, 1, pair.pd);
    let filled = context(1, pair.pd, 3, START, 0x2000);
    pair.two.post(&pair.driver, UMR, key, &[&umr(0, mask::ALL, &filled, &[0; 16])]);
    pair.cq.expect(&pair.driver, REQUEST);
    let pages = [pair.driver.page(), pair.driver.page()];
    Paging { pair, faults, key: key | 3, pages, by_memory }
}

impl Paging {
    /// The next fault and its token.
    fn fault(&mut self) -> (u64, FaultReport) {
        let driver = &self.pair.driver;
        let event = driver.poll("a page fault", || self.faults.poll(driver));
        assert_eq!(event[1], PAGE_FAULT);
        let data = &event[0x20..];
        let long = |at: usize| u64::from_be_bytes(data[at..at + 8].try_into().unwrap());
        match event[3] {
            2 => {
                assert_eq!(data[0], 0x80, "the last event of the fault");
                let (key, pages) = (word(data, 16), word(data, 12) >> 12);
                (long(4) & 0xffff_ffff_ffff, FaultReport::Memory { key, addr: long(20), pages })
            }
            1 => {
                let kind = data[24];
                let (key, len, done) = (word(data, 4), word(data, 12), word(data, 0));
                let token = word(data, 24) & 0xff_ffff;
                (token.into(), FaultReport::Remote { kind, key, addr: long(16), len, done })
            }
            kind => {
                assert_eq!(kind, 0);
                let index = u16::from_be_bytes([data[6], data[7]]);
                let (queue, done) = (word(data, 24) & 0xff_ffff, word(data, 0));
                (word(data, 12).into(), FaultReport::Request { kind: data[24], queue, index, done })
            }
        }
    }

    fn answer(&self, token: u64, error: bool) -> Vec<u8> {
        let mut input = vec![0; 16];
        field(&mut input, 0x40, 1, error.into());
        match self.by_memory {
            true => field(&mut input, 0x50, 48, token),
            false => field(&mut input, 0x68, 24, token),
        }
        input
    }

    fn resume(&mut self, token: u64, error: bool) {
        let input = self.answer(token, error);
        self.pair.driver.command(RESUME, input, 16);
    }

    /// Lists the pages anew: those for which there is a right (1 to read, 2 to write).
    fn list(&mut self, rights: [u64; 2]) {
        let Pair { driver, two, cq, pd, .. } = &mut self.pair;
        let mut list = Vec::new();
        for (page, right) in self.pages.iter().zip(rights) {
            let entry = if right == 0 { 0 } else { page | right };
            list.extend(entry.to_be_bytes());
        }
        two.post(driver, UMR, self.key, &[&umr(0, 0, &context(1, *pd, 3, 0, 0), &list)]);
        cq.expect(driver, REQUEST);
    }

    /// The first page comes and the fault is answered.
    fn serve(&mut self, token: u64) {
        self.list([3, 0]);
        self.resume(token, false);
    }
}

/// A list of two parts of one length whose first is `key` from `addr` on, as an implicit region of
/// Linux's has them.
fn listing(it: &mut Paging, list: u32, mask: u64, key: u32, addr: u64) {
    let Pair { driver, two, cq, pd, .. } = &mut it.pair;
    let parts = [data(key, addr, 0), vec![0; 48]].concat();
    two.post(driver, UMR, list, &[&umr(0, mask, &context(3, *pd, 3, 0, 0x1000), &parts)]);
    cq.expect(driver, REQUEST);
}

/// The driver forgets a key before it takes it out of the list above, and refuses what it hears
/// of it meanwhile.
#[test]
fn a_key_in_a_list_is_refused_until_another_takes_its_place() {
    let mut it = paging("listed", true, 4);
    let list = free_key(&mut it.pair.driver, 3, it.pair.pd);
    let child = it.key;
    listing(&mut it, list, mask::ALL, child, START);
    let list = list | 3;
    let (steady, plain) = (it.pair.driver.page(), it.pair.key);
    let page = it.pages[0];
    it.pair.driver.poke(page, b"paged in");
    let local = data(list, 0, 8);
    for work in [[remote(steady, plain), local], [remote(0, list), data(plain, steady, 8)]] {
        it.pair.one.post(&it.pair.driver, WRITE, 0, &[&work[0], &work[1]]);
        for _ in 0..3 {
            let (token, told) = it.fault();
            assert_eq!(told, first_page(child));
            it.resume(token, true);
        }
        let (token, _) = it.fault();
        listing(&mut it, list, 0, plain, page);
        it.resume(token, true);
        it.pair.cq.expect(&it.pair.driver, REQUEST);
        listing(&mut it, list, 0, child, START);
    }
    assert_eq!(it.pair.driver.peek(steady, 8), b"paged in");
    assert_eq!(it.pair.driver.peek(page, 8), b"paged in");
}

/// A fault of the memory scheme is at the key's first page.
fn first_page(key: u32) -> FaultReport {
    FaultReport::Memory { key, addr: START, pages: 1 }
}

#[test]
fn faults_by_memory_are_served_on_every_side() {
    let mut it = paging("memory", true, 4);
    let (key, page) = (it.key, it.pages[0]);
    it.pair.driver.poke(page, b"paged in");
    let (steady, plain) = (it.pair.driver.page(), it.pair.key);
    // The payload of a request, and where a peer writes.
    it.pair.one.post(&it.pair.driver, WRITE, 0, &[&remote(steady, plain), &data(key, START, 8)]);
    let (token, told) = it.fault();
    assert_eq!(told, first_page(key));
    assert!(token > 0xffff_ffff, "a token of 48 bits");
    it.serve(token);
    it.pair.cq.expect(&it.pair.driver, REQUEST);
    assert_eq!(it.pair.driver.peek(steady, 8), b"paged in");
    it.list([0, 0]);
    it.pair.one.post(&it.pair.driver, WRITE, 0, &[&remote(START + 8, key), &inline(b"written")]);
    let (token, told) = it.fault();
    assert_eq!(told, first_page(key));
    it.serve(token);
    it.pair.cq.expect(&it.pair.driver, REQUEST);
    assert_eq!(it.pair.driver.peek(page, 15), b"paged inwritten");
    // What a peer reads, where a fetched answer goes, and an atomic.
    it.list([0, 0]);
    it.pair.one.post(&it.pair.driver, READ, 0, &[&remote(START, key), &data(plain, steady, 15)]);
    let (token, _) = it.fault();
    it.serve(token);
    it.pair.cq.expect(&it.pair.driver, REQUEST);
    assert_eq!(it.pair.driver.peek(steady, 15), b"paged inwritten");
    it.list([0, 0]);
    it.pair.one.post(
        &it.pair.driver,
        READ,
        0,
        &[&remote(steady, plain), &data(key, START + 64, 15)],
    );
    let (token, told) = it.fault();
    assert_eq!(told, first_page(key));
    it.serve(token);
    it.pair.cq.expect(&it.pair.driver, REQUEST);
    assert_eq!(it.pair.driver.peek(page + 64, 15), b"paged inwritten");
    // A receive, over two pages of which the second is for reading only.
    it.list([3, 1]);
    it.pair.two.post_receive(&it.pair.driver, key, START + 0xffc, 8);
    it.pair.one.post(&it.pair.driver, SEND, 0, &[&inline(b"received")]);
    let (token, told) = it.fault();
    assert_eq!(told, FaultReport::Memory { key, addr: START + 0x1000, pages: 1 });
    it.list([3, 3]);
    it.resume(token, false);
    let mut seen = [(); 2].map(|()| {
        let Pair { driver, cq, .. } = &mut it.pair;
        driver.poll("a completion", || cq.poll(driver))[63] >> 4
    });
    seen.sort();
    assert_eq!(seen, [REQUEST, RESPONSE_SEND]);
    assert_eq!(it.pair.driver.peek(page + 0xffc, 4), b"rece");
    assert_eq!(it.pair.driver.peek(it.pages[1], 4), b"ived");
    assert!(it.faults.poll(&it.pair.driver).is_none());
}

#[test]
fn faults_by_request_name_the_request() {
    let mut it = paging("request", false, 4);
    let (key, page, plain) = (it.key, it.pages[0], it.pair.key);
    let steady = it.pair.driver.page();
    let (one, two) = (it.pair.one.number, it.pair.two.number);
    it.pair.driver.poke(steady, b"12345678");
    it.pair.one.post(&it.pair.driver, WRITE, 0, &[&remote(steady, plain), &data(plain, steady, 4)]);
    it.pair.cq.expect(&it.pair.driver, REQUEST);
    it.pair.one.post(&it.pair.driver, SEND, 0, &[&data(key, START, 8)]);
    let (token, told) = it.fault();
    assert_eq!(told, FaultReport::Request { kind: 1, queue: one, index: 1, done: 0 });
    it.pair.two.post_receive(&it.pair.driver, key, START + 0x800, 8);
    it.list([1, 0]);
    it.resume(token, false);
    let (token, told) = it.fault();
    assert_eq!(told, FaultReport::Request { kind: 2, queue: two, index: 0, done: 0 });
    it.serve(token);
    it.pair.cq.poll(&it.pair.driver);
    let (driver, cq) = (&it.pair.driver, &mut it.pair.cq);
    while cq.consumed() < 6 {
        driver.poll("a completion", || cq.poll(driver));
    }
    it.list([0, 0]);
    let add = 5u64.to_be_bytes();
    let atomic = [&add[..], &[0; 8]].concat();
    let to = remote(steady, plain);
    it.pair.one.post(&it.pair.driver, FETCH_ADD, 0, &[&to, &atomic, &data(key, START, 8)]);
    let (token, told) = it.fault();
    assert_eq!(told, FaultReport::Request { kind: 3, queue: one, index: 2, done: 0 });
    it.serve(token);
    it.pair.cq.expect(&it.pair.driver, REQUEST);
    assert_eq!(it.pair.driver.peek(page, 8), b"12345678");
    it.list([0, 0]);
    it.pair.one.post(&it.pair.driver, WRITE, 0, &[&remote(START + 2, key), &inline(b"far")]);
    let (token, told) = it.fault();
    assert_eq!(told, FaultReport::Remote { kind: 6, key, addr: START + 2, len: 3, done: 0 });
    it.serve(token);
    it.pair.cq.expect(&it.pair.driver, REQUEST);
    it.list([0, 0]);
    it.pair.one.post(&it.pair.driver, READ, 0, &[&remote(START, key), &data(plain, steady, 8)]);
    let (token, told) = it.fault();
    assert_eq!(told, FaultReport::Remote { kind: 4, key, addr: START, len: 8, done: 0 });
    it.serve(token);
    it.pair.cq.expect(&it.pair.driver, REQUEST);
    assert_eq!(it.pair.driver.peek(steady, 8), b"12far678");
}

#[test]
fn a_fault_that_cannot_be_served_ends_its_request() {
    for by_memory in [false, true] {
        let mut it = paging("unserved", by_memory, 4);
        let (key, plain, steady) = (it.key, it.pair.key, it.pair.driver.page());
        it.pair.one.post(
            &it.pair.driver,
            WRITE,
            0,
            &[&remote(steady, plain), &data(key, START, 8)],
        );
        let (token, _) = it.fault();
        it.resume(token, true);
        let status = it.pair.cq.expect(&it.pair.driver, REQUEST_ERROR)[0x37];
        assert_eq!(status, LOCAL_PROTECTION);
        let mut it = paging("remote", by_memory, 4);
        it.pair.one.post(&it.pair.driver, WRITE, 0, &[&remote(START, it.key), &inline(b"no")]);
        let (token, _) = it.fault();
        it.resume(token, true);
        let status = it.pair.cq.expect(&it.pair.driver, REQUEST_ERROR)[0x37];
        assert_eq!(status, REMOTE_ACCESS);
        let mut it = paging("receive", by_memory, 4);
        it.pair.two.post_receive(&it.pair.driver, it.key, START, 8);
        it.pair.one.post(&it.pair.driver, SEND, 0, &[&inline(b"no")]);
        let (token, _) = it.fault();
        it.resume(token, true);
        let mut seen = [(); 2].map(|()| {
            let Pair { driver, cq, .. } = &mut it.pair;
            driver.poll("a completion", || cq.poll(driver))
        });
        seen.sort_by_key(|entry| entry[63]);
        assert_eq!(seen.map(|entry| entry[63] >> 4), [REQUEST_ERROR, RESPONSE_ERROR]);
    }
}

#[test]
fn without_a_queue_for_faults_memory_is_just_not_there() {
    let mut it = paging("nobody", true, 4);
    let mut input = vec![0; 16];
    field(&mut input, 0x58, 8, it.faults.number.into());
    it.pair.driver.command(DESTROY_EQ, input, 16);
    it.pair.one.post(&it.pair.driver, SEND, 0, &[&data(it.key, START, 8)]);
    let status = it.pair.cq.expect(&it.pair.driver, REQUEST_ERROR)[0x37];
    assert_eq!(status, LOCAL_PROTECTION);
}

fn about(number: u32) -> Vec<u8> {
    let mut input = vec![0; 16];
    field(&mut input, 0x48, 24, number.into());
    input
}

/// Whatever becomes of a queue pair that waits, the driver's answer does no harm.
#[test]
fn an_answer_may_come_after_its_queue_pair() {
    for (name, opcode) in [("error", 0x507), ("reset", 0x50a), ("destroyed", DESTROY_QP)] {
        let mut it = paging(name, true, 4);
        let one = it.pair.one.number;
        it.pair.one.post(&it.pair.driver, SEND, 0, &[&data(it.key, START, 8)]);
        let (token, _) = it.fault();
        it.pair.driver.command(opcode, about(one), 16);
        if name == "error" {
            let status = it.pair.cq.expect(&it.pair.driver, REQUEST_ERROR)[0x37];
            assert_eq!(status, FLUSHED);
        }
        it.serve(token);
        it.resume(token, true);
        let Paging { pair: Pair { driver, cq, .. }, .. } = &mut it;
        assert!(cq.poll(driver).is_none(), "{name}");
    }
    let mut it = paging("never", true, 4);
    let input = it.answer(7, false);
    assert_ne!(it.pair.driver.status(RESUME, input), 0, "nobody asked");
}

#[test]
fn a_full_queue_loses_no_fault() {
    let mut it = paging("full", true, 0);
    it.pair.one.post(&it.pair.driver, SEND, 0, &[&data(it.key, START, 8)]);
    it.pair.two.post(&it.pair.driver, SEND, 0, &[&data(it.key, START + 0x1000, 8)]);
    let (first, told) = it.fault();
    assert_eq!(told, first_page(it.key));
    assert!(it.faults.poll(&it.pair.driver).is_none());
    it.pair.driver.machine.interrupts.lock().unwrap().clear();
    it.faults.update(&it.pair.driver);
    assert_eq!(*it.pair.driver.machine.interrupts.lock().unwrap(), [1]);
    let (second, told) = it.fault();
    assert_eq!(told, FaultReport::Memory { key: it.key, addr: START + 0x1000, pages: 1 });
    it.resume(first, true);
    it.resume(second, true);
    for _ in 0..2 {
        it.pair.cq.expect(&it.pair.driver, REQUEST_ERROR);
    }
}

/// A driver that answers faults which it never read about lets more of them wait than there is room
/// for. The next one is an error at once, said once; those before it are reported when there
/// is room.
#[test]
fn a_fault_that_finds_no_room_ends_its_request() {
    const WAITING: u64 = 1 << 15;
    let mut it = paging("overrun", true, 0);
    let wrongs = Arc::new(Mutex::new(Vec::new()));
    let sink = wrongs.clone();
    it.pair
        .driver
        .function
        .on_guest_error(move |wrong| sink.lock().unwrap().push(wrong.to_owned()));
    let one = it.pair.one.number;
    let token = |given: u64| ((given * 0x9e_3779) & 0xff_ffff) << 24 | u64::from(one);
    it.pair.one.post(&it.pair.driver, SEND, 0, &[&data(it.key, START, 8)]);
    let (first, _) = it.fault();
    assert_eq!(first, token(1), "the driver can foresee what a fault is called");
    for given in 1..=WAITING {
        it.resume(token(given), false);
    }
    assert!(it.pair.cq.poll(&it.pair.driver).is_none());
    let lost = "an event of type 0xc is lost: its queue is full";
    let told = || wrongs.lock().unwrap().iter().filter(|wrong| wrong.starts_with(lost)).count();
    assert_eq!(told(), 0);
    it.resume(token(WAITING + 1), false);
    let status = it.pair.cq.expect(&it.pair.driver, REQUEST_ERROR)[0x37];
    assert_eq!(status, LOCAL_PROTECTION);
    it.pair.two.post(&it.pair.driver, SEND, 0, &[&data(it.key, START, 8)]);
    it.pair.cq.expect(&it.pair.driver, REQUEST_ERROR);
    assert_eq!(told(), 1, "{:?}", wrongs.lock().unwrap());
    it.faults.update(&it.pair.driver);
    assert_eq!(it.fault().0, token(2), "what waited is told");
}

/// The driver goes while faults are open, and comes back.
#[test]
fn a_reset_forgets_what_is_open() {
    let mut it = paging("gone", true, 4);
    it.pair.one.post(&it.pair.driver, SEND, 0, &[&data(it.key, START, 8)]);
    let (token, _) = it.fault();
    it.pair.driver.function.reset();
    it.pair.driver.function.write(0x10, &0u32.to_be_bytes());
    it.pair.driver.function.write(0x14, &0x1000u32.to_be_bytes());
    let input = it.answer(token, false);
    assert_ne!(it.pair.driver.status(RESUME, input), 0);
}

/// A key that ends or is freed while somebody waits for its memory: then the access finds no key.
#[test]
fn a_key_may_end_meanwhile() {
    let mut it = paging("freed", true, 4);
    it.pair.one.post(&it.pair.driver, SEND, 0, &[&data(it.key, START, 8)]);
    let (token, _) = it.fault();
    let none = free(context(1, it.pair.pd, 3, 0, 0));
    it.pair.two.post(&it.pair.driver, UMR, it.key, &[&umr(0, mask::FREE, &none, &[])]);
    it.pair.cq.expect(&it.pair.driver, REQUEST);
    it.resume(token, false);
    let status = it.pair.cq.expect(&it.pair.driver, REQUEST_ERROR)[0x37];
    assert_eq!(status, LOCAL_PROTECTION);
}

#[test]
fn both_schemes_are_offered_and_one_is_chosen() {
    let mut driver = Driver::new("schemes");
    let mut query = |op_mod: u64| {
        let mut input = vec![0; 16];
        field(&mut input, 0x30, 16, op_mod);
        driver.command(0x100, input, 16 + 4096)[16..].to_vec()
    };
    let (most, now) = (query(4), query(5));
    assert_eq!((most[0xc0], now[0xc0]), (0x80, 0), "the newer one is off at first");
    for scheme in [0, 0x40] {
        assert_eq!(now[scheme + 0x10], 0b1111_1100, "RC does everything");
        assert_eq!(now[scheme + 0x14], 0, "UC nothing");
    }
}
