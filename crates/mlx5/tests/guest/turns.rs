//! How much of a guest's work one doorbell carries out before others get their turn: counted in
//! what the thread that rings reads of memory meanwhile.

use crate::support::numbers::{REQUEST, UMR, WRITE};
use crate::support::verbs::{
    self, Cq, Qp, context, cq, data, eq, free_key, mask, physical_key, qp, remote, repeated, umr,
};
use crate::support::{Driver, RAM_LEN, Ram, alone, field};
use hca::Network;
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use umem::{AccessError, AtomicOp, DmaSpace};

const COPY: u8 = 0x2f;

/// Memory that counts how often, and how much, each thread reads of it.
struct Counted(Ram);

thread_local! {
    static READS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl DmaSpace for Counted {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let (times, bytes) = READS.get();
        READS.set((times + 1, bytes + dst.len() as u64));
        self.0.read(addr, dst)
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.0.write(addr, src)
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.0.atomic(addr, op)
    }
}

struct Guest {
    driver: Driver,
    cq: Cq,
    pd: u32,
    key: u32,
    /// A reliable connection to itself that may copy memory.
    qp: Qp,
}

fn guest(name: &str) -> Guest {
    let ram = Arc::new(Counted(Ram(Mutex::new(vec![0; RAM_LEN]))));
    let mut driver = Driver::over(ram, name, &alone(name), Network::Subnet);
    let (eqn, _) = eq(&mut driver, 0);
    let cq = cq(&mut driver, eqn);
    let pd = driver.create(verbs::ALLOC_PD, vec![0; 16]);
    let key = physical_key(&mut driver, pd);
    let qp = qp(&mut driver, 0, pd, &cq);
    let lid = driver.lid;
    qp.connect_after(&mut driver, lid, |driver| {
        let mut input = vec![0; 0x200];
        field(&mut input, 0x48, 24, qp.number.into());
        field(&mut input, 0x40, 1, 1);
        field(&mut input, 0x840, 64, 1 << 3);
        field(&mut input, 0x882, 1, 1);
        driver.command(0x50e, input, 16);
    });
    Guest { driver, cq, pd, key, qp }
}

impl Guest {
    /// Rings for what was placed; how often, and how much, the thread read meanwhile.
    fn ring(&self) -> (u64, u64) {
        READS.set((0, 0));
        self.qp.ring(&self.driver);
        READS.get()
    }

    /// A key that shows the byte at `addr` under `below` again and again.
    fn byte_over_and_over(&mut self, below: u32, addr: u64, times: u32) -> u32 {
        let key = free_key(&mut self.driver, 2, self.pd);
        let shown = context(2, self.pd, 0, 0, times.into());
        let list = repeated(times, &[(0, 1, below, addr)]);
        let changes = mask::LEN | mask::START | mask::FREE;
        self.qp.post(&self.driver, UMR, key, &[&umr(0, changes, &shown, &list)]);
        self.cq.expect(&self.driver, REQUEST);
        key
    }
}

fn copy(from: &[u8], to: &[u8]) -> Vec<u8> {
    [&[0; 16], from, to].concat()
}

#[test]
fn copies_leave_others_their_turn() {
    const COPIES: usize = 12;
    const LEN: u32 = 512 << 10;
    let mut it = guest("copies");
    let [from, to] = [0x30_0000, 0x38_0000];
    it.driver.poke(from + u64::from(LEN) - 6, b"copied");
    let body = copy(&data(it.key, from, LEN), &data(it.key, to, LEN));
    (0..COPIES).for_each(|_| it.qp.place(&it.driver, (1, COPY), 0, &body));
    let (_, bytes) = it.ring();
    (0..COPIES).for_each(|_| drop(it.cq.expect(&it.driver, REQUEST)));
    assert_eq!(it.driver.peek(to + u64::from(LEN) - 6, 6), b"copied");
    assert!(bytes < 2 << 20, "{bytes} of {}", COPIES as u64 * u64::from(LEN));
}

/// Some bytes that are each somewhere else are as much work as many that are together.
#[test]
fn parts_count_as_bytes_do() {
    const LEN: u32 = 1 << 17;
    const MOST: u64 = 16 << 10;
    let mut it = guest("parts");
    let bottom = it.driver.page();
    let mut key = (it.key, bottom);
    for _ in 0..3 {
        key = (it.byte_over_and_over(key.0, key.1, LEN), 0);
    }
    let all = data(key.0, 0, LEN);
    it.qp.place(&it.driver, (1, COPY), 0, &copy(&all, &all));
    let (times, _) = it.ring();
    it.cq.expect(&it.driver, REQUEST);
    assert!(times < MOST, "a copy reads {times} times");
    it.qp.place(&it.driver, (0, WRITE), 0, &[remote(0, key.0), all].concat());
    let (times, _) = it.ring();
    it.cq.expect(&it.driver, REQUEST);
    assert!(times < MOST, "a WRITE reads {times} times");
}

/// A list that a request brings must not be a way to read without end.
#[test]
fn a_list_in_too_many_parts_changes_nothing() {
    const LIST: u32 = 1 << 20;
    const MW_BIND: u8 = 0x06;
    const REQUEST_ERROR: u8 = 13;
    let mut it = guest("lists");
    let bottom = it.driver.page();
    let list = it.byte_over_and_over(it.key, bottom, LIST);
    let key = free_key(&mut it.driver, 2, it.pd);
    let mut request = umr(0, 0, &[0; 64], &[]);
    request[0] = 0;
    request[4..6].copy_from_slice(&0xffffu16.to_be_bytes());
    request.extend(data(list, 0, LIST - 16));
    it.qp.place(&it.driver, (0, UMR), key, &request);
    let (times, _) = it.ring();
    assert_eq!(it.cq.expect(&it.driver, REQUEST_ERROR)[0x37], MW_BIND);
    assert!(times < 100_000, "{times} reads");
}
