//! Objects as a driver makes them.

use super::{ALLOC_UAR, Driver, field, word};

pub const CREATE_EQ: u16 = 0x301;
pub const CREATE_CQ: u16 = 0x400;
pub const CREATE_QP: u16 = 0x500;
pub const CREATE_MKEY: u16 = 0x200;
pub const ALLOC_PD: u16 = 0x800;
pub const CREATE_UMEM: u16 = 0xa08;

const LOG_CQ: u32 = 6;
/// Entries of a receive queue and basic blocks of a send queue, as logarithms.
const LOG_QUEUE: u32 = 4;
const RQ_STRIDE: u64 = 64;

/// Type of page faults among events.
pub const PAGE_FAULT: u8 = 0xc;

/// An event queue for commands, page requests and all else but page faults, of 64 entries.
pub fn eq(driver: &mut Driver, vector: u16) -> (u32, u64) {
    let queue = eq_for(driver, !(1 << PAGE_FAULT), 6, vector);
    (queue.number, queue.page)
}

/// An event queue for the types in `mask`, of 2^`log_size` entries.
pub fn eq_for(driver: &mut Driver, mask: u64, log_size: u32, vector: u16) -> Eq {
    let page = driver.page();
    for entry in 0..1 << log_size {
        driver.poke(page + entry * 64 + 63, &[1]);
    }
    let mut input = vec![0; 0x110 + 8];
    field(&mut input, 0x80 + 0x63, 5, log_size.into());
    field(&mut input, 0x80 + 0x68, 24, driver.uar.into());
    field(&mut input, 0x80 + 0xb4, 12, vector.into());
    field(&mut input, 0x2c0, 64, mask);
    field(&mut input, 0x880, 64, page);
    Eq { number: driver.create(CREATE_EQ, input), page, log_size, consumed: 0 }
}

/// An event queue and where the driver is in it.
pub struct Eq {
    pub number: u32,
    page: u64,
    log_size: u32,
    consumed: u32,
}

impl Eq {
    /// The next entry, if it is there; the device learns later that it was read.
    pub fn poll(&mut self, driver: &Driver) -> Option<Vec<u8>> {
        let index = u64::from(self.consumed & ((1 << self.log_size) - 1));
        let entry = driver.peek(self.page + index * 64, 64);
        let owner = (self.consumed >> self.log_size & 1) as u8;
        if entry[63] & 1 != owner {
            return None;
        }
        self.consumed += 1;
        Some(entry)
    }

    /// The device may use the room of what was read.
    pub fn update(&self, driver: &Driver) {
        driver.arm_eq(self.number, self.consumed);
    }
}

/// A completion queue and where the driver is in it.
pub struct Cq {
    pub number: u32,
    page: u64,
    record: u64,
    consumed: u32,
}

pub fn cq(driver: &mut Driver, eqn: u32) -> Cq {
    let uar = driver.uar;
    cq_of(driver, eqn, 0, uar)
}

/// A user's, with an event queue for completions alone.
pub fn user_cq(driver: &mut Driver, uid: u16) -> Cq {
    let mut page_of = vec![0; 16];
    field(&mut page_of, 0x10, 16, uid.into());
    let uar = driver.create(ALLOC_UAR, page_of);
    let eqn = eq_for(driver, 0, 6, 0).number;
    cq_of(driver, eqn, uid, uar)
}

fn cq_of(driver: &mut Driver, eqn: u32, uid: u16, uar: u32) -> Cq {
    let (page, record) = (driver.page(), driver.page());
    for entry in 0..1 << LOG_CQ {
        driver.poke(page + entry * 64 + 63, &[0xf1]);
    }
    let mut input = vec![0; 0x110 + 8];
    field(&mut input, 0x10, 16, uid.into());
    field(&mut input, 0x80 + 0x63, 5, LOG_CQ.into());
    field(&mut input, 0x80 + 0x68, 24, uar.into());
    field(&mut input, 0x80 + 0xa0, 32, eqn.into());
    field(&mut input, 0x80 + 0x1c0, 64, record);
    field(&mut input, 0x880, 64, page);
    Cq { number: driver.create(CREATE_CQ, input), page, record, consumed: 0 }
}

impl Cq {
    /// The next entry, if it is there.
    pub fn poll(&mut self, driver: &Driver) -> Option<Vec<u8>> {
        let index = u64::from(self.consumed & ((1 << LOG_CQ) - 1));
        let entry = driver.peek(self.page + index * 64, 64);
        let owner = (self.consumed >> LOG_CQ & 1) as u8;
        if entry[63] & 1 != owner || entry[63] >> 4 == 0xf {
            return None;
        }
        self.consumed += 1;
        driver.poke(self.record, &self.consumed.to_be_bytes());
        Some(entry)
    }

    /// The next entry; whether it is an error, and its syndrome, are checked.
    pub fn expect(&mut self, driver: &Driver, opcode: u8) -> Vec<u8> {
        let entry = driver.poll("a completion", || self.poll(driver));
        assert_eq!(entry[63] >> 4, opcode, "syndrome {:#x}", entry[0x37]);
        entry
    }

    pub fn consumed(&self) -> u32 {
        self.consumed
    }
}

/// A key over all memory.
pub fn physical_key(driver: &mut Driver, pd: u32) -> u32 {
    let mut input = vec![0; 0x110];
    for right in [0x12, 0x13, 0x14, 0x15, 0x11] {
        field(&mut input, 0x80 + right, 1, 1);
    }
    field(&mut input, 0x80 + 0x38, 8, 0x5a);
    field(&mut input, 0x80 + 0x60, 1, 1);
    field(&mut input, 0x80 + 0x68, 24, pd.into());
    driver.create(CREATE_MKEY, input) << 8 | 0x5a
}

/// A key over `pages` of 4 KiB from address `start` on, `len` bytes.
pub fn key_over(driver: &mut Driver, pd: u32, start: u64, len: u64, pages: &[u64]) -> u32 {
    let mut input = vec![0; 0x110 + pages.len().next_multiple_of(2) * 8];
    for right in [0x12, 0x13, 0x14, 0x15] {
        field(&mut input, 0x80 + right, 1, 1);
    }
    field(&mut input, 0x80 + 0x16, 2, 1);
    field(&mut input, 0x80 + 0x38, 8, 7);
    field(&mut input, 0x80 + 0x68, 24, pd.into());
    field(&mut input, 0x80 + 0x80, 64, start);
    field(&mut input, 0x80 + 0xc0, 64, len);
    field(&mut input, 0x80 + 0x1db, 5, 12);
    field(&mut input, 0x300, 32, pages.len().div_ceil(2) as u64);
    for (index, page) in pages.iter().enumerate() {
        field(&mut input, 0x880 + index * 64, 64, *page);
    }
    driver.create(CREATE_MKEY, input) << 8 | 7
}

/// A queue pair and where the driver is in its queues.
pub struct Qp {
    pub number: u32,
    page: u64,
    record: u64,
    /// Where the send queue is.
    sends: u64,
    sent: u16,
    received: u16,
    /// By which page it is rung for.
    pub uar: u32,
}

/// A program's pages, of 4 KiB.
pub fn user_memory(uid: u16, pages: &[u64]) -> Vec<u8> {
    let mut input = vec![0; 0x30 + pages.len() * 8];
    field(&mut input, 0x10, 16, uid.into());
    field(&mut input, 0x140, 64, pages.len() as u64);
    for (index, page) in pages.iter().enumerate() {
        field(&mut input, 0x180 + index * 64, 64, page | 3);
    }
    input
}

/// A reliable connection of a program, whose queues are in its memory.
pub fn user_qp(driver: &mut Driver, uid: u16, pd: u32, cq: &Cq) -> Qp {
    let (page, record) = (driver.page(), driver.page());
    let second = driver.page();
    let memory = driver.create(CREATE_UMEM, user_memory(uid, &[record, page, second]));
    let mut input = vec![0; 0x110];
    field(&mut input, 0x10, 16, uid.into());
    let mut page_of = vec![0; 16];
    field(&mut page_of, 0x10, 16, uid.into());
    let uar = driver.create(ALLOC_UAR, page_of);
    queues(&mut input, 0, pd, cq, uar);
    field(&mut input, 0x800, 64, 0x1000);
    field(&mut input, 0x840, 32, memory.into());
    field(&mut input, 0x860, 1, 1);
    field(&mut input, 0xc0 + 0x683, 1, 1);
    field(&mut input, 0xc0 + 0x720, 32, memory.into());
    let number = driver.create(CREATE_QP, input);
    Qp { number, page, record, sends: page + 1024, sent: 0, received: 0, uar }
}

/// What of a queue pair is not where its queues are.
fn queues(input: &mut [u8], service: u64, pd: u32, cq: &Cq, uar: u32) {
    let qpc = 0xc0;
    field(input, qpc + 0x8, 8, service);
    field(input, qpc + 0x28, 24, pd.into());
    field(input, qpc + 0x49, 4, LOG_QUEUE.into());
    field(input, qpc + 0x4d, 3, 2);
    field(input, qpc + 0x51, 4, LOG_QUEUE.into());
    field(input, qpc + 0x68, 24, uar.into());
    field(input, qpc + 0x3e8, 24, cq.number.into());
    field(input, qpc + 0x4e8, 24, cq.number.into());
}

/// A queue pair of `service` (0 RC, 2 UD).
pub fn qp(driver: &mut Driver, service: u64, pd: u32, cq: &Cq) -> Qp {
    qp_of(driver, service, pd, cq, None)
}

/// A reliable one whose receives are those of a shared queue.
pub fn qp_over(driver: &mut Driver, pd: u32, cq: &Cq, queue: u32) -> Qp {
    qp_of(driver, 0, pd, cq, Some(queue))
}

fn qp_of(driver: &mut Driver, service: u64, pd: u32, cq: &Cq, shared: Option<u32>) -> Qp {
    let (page, record) = (driver.page(), driver.page());
    let second = driver.page();
    let mut input = vec![0; 0x110 + 16];
    let uar = driver.uar;
    queues(&mut input, service, pd, cq, uar);
    // Drivers give it to their own.
    field(&mut input, 0xc0 + 0x394, 1, 1);
    field(&mut input, 0xc0 + 0x500, 64, record);
    field(&mut input, 0x880, 64, page);
    field(&mut input, 0x8c0, 64, second);
    if let Some(queue) = shared {
        field(&mut input, 0xc0 + 0x565, 3, 1);
        field(&mut input, 0xc0 + 0x568, 24, queue.into());
    }
    let number = driver.create(CREATE_QP, input);
    let sends = if shared.is_some() { page } else { page + 1024 };
    Qp { number, page, record, sends, sent: 0, received: 0, uar }
}

/// What a peer may do.
const RIGHTS: [(usize, usize, u64); 3] = [(0x490, 1, 1), (0x491, 1, 1), (0x492, 1, 1)];

impl Qp {
    fn transition(&self, driver: &mut Driver, opcode: u16, fields: &[(usize, usize, u64)]) {
        let mut input = vec![0; 0x110];
        field(&mut input, 0x48, 24, self.number.into());
        for &(bit, width, value) in fields {
            field(&mut input, 0xc0 + bit, width, value);
        }
        driver.command(opcode, input, 16);
    }

    /// RESET to RTS of a reliable connection to queue pair `peer` at `lid`.
    pub fn connect(&self, driver: &mut Driver, lid: u16, peer: u32) {
        self.connect_by(driver, &[(0xc0 + 0x30, 16, lid.into())], peer);
    }

    /// RESET to RTS of a reliable connection to itself; `at_init` is done on the way.
    pub fn connect_after(&self, driver: &mut Driver, lid: u16, at_init: impl FnOnce(&mut Driver)) {
        self.transition(driver, 0x502, &RIGHTS);
        at_init(driver);
        self.go_on(driver, &[(0xc0 + 0x30, 16, lid.into())], self.number);
    }

    /// The same along a path of these fields.
    pub fn connect_by(&self, driver: &mut Driver, path: &[(usize, usize, u64)], peer: u32) {
        self.transition(driver, 0x502, &RIGHTS);
        self.go_on(driver, path, peer);
    }

    /// INIT to RTS.
    fn go_on(&self, driver: &mut Driver, path: &[(usize, usize, u64)], peer: u32) {
        let mut fields = vec![
            (0x40, 3, 5),
            (0xa8, 24, peer.into()),
            (0x488, 3, 2),
            (0x4a3, 5, 12),
            (0x4a8, 24, 100),
        ];
        fields.extend(path);
        self.transition(driver, 0x503, &fields);
        let sends =
            [(0xc0 + 0x40, 5, 14), (0x388, 3, 2), (0x38d, 3, 7), (0x390, 3, 7), (0x3c8, 24, 100)];
        self.transition(driver, 0x504, &sends);
    }

    /// RESET to RTS for datagrams with Q_Key `qkey`.
    pub fn open(&self, driver: &mut Driver, qkey: u32) {
        self.transition(driver, 0x502, &[(0x540, 32, qkey.into())]);
        self.transition(driver, 0x503, &[]);
        self.transition(driver, 0x504, &[]);
    }

    pub fn to_error(&self, driver: &mut Driver) {
        self.transition(driver, 0x507, &[]);
    }

    pub fn post_receive(&mut self, driver: &Driver, key: u32, addr: u64, len: u32) {
        let at = self.page + u64::from(self.received % (1 << LOG_QUEUE)) * RQ_STRIDE;
        driver.poke(at, &data(key, addr, len));
        driver.poke(at + 16, &data(0x100, 0, 0));
        self.received += 1;
        driver.poke(self.record, &u32::from(self.received).to_be_bytes());
    }

    /// Posts a request of `segments` behind the control segment, and rings.
    pub fn post(&mut self, driver: &Driver, opcode: u8, imm: u32, segments: &[&[u8]]) {
        self.post_entry(driver, (0, opcode), imm, &segments.concat());
    }

    /// The same with a modifier of the opcode.
    pub fn post_modified(&mut self, driver: &Driver, modifier: u8, opcode: u8, body: &[u8]) {
        self.post_entry(driver, (modifier, opcode), 0, body);
    }

    fn post_entry(&mut self, driver: &Driver, code: (u8, u8), imm: u32, body: &[u8]) {
        self.place(driver, code, imm, body);
        self.ring(driver);
    }

    /// Rings for what was placed.
    pub fn ring(&self, driver: &Driver) {
        driver.ring_by(self.uar, self.number);
    }

    /// Posts a request, and leaves it to others to ring.
    pub fn place(&mut self, driver: &Driver, (modifier, code): (u8, u8), imm: u32, body: &[u8]) {
        let units = 1 + body.len().div_ceil(16) as u32;
        let mut entry = vec![0; 16];
        let first = u32::from(modifier) << 24 | u32::from(self.sent) << 8 | u32::from(code);
        entry[..4].copy_from_slice(&first.to_be_bytes());
        entry[4..8].copy_from_slice(&(self.number << 8 | units).to_be_bytes());
        entry[11] = 2 << 2;
        entry[12..].copy_from_slice(&imm.to_be_bytes());
        entry.extend(body);
        for (step, block) in (0u16..).zip(entry.chunks(64)) {
            let index = self.sent.wrapping_add(step) % (1 << LOG_QUEUE);
            driver.poke(self.sends + u64::from(index) * 64, block);
        }
        self.sent = self.sent.wrapping_add(entry.len().div_ceil(64) as u16);
        driver.poke(self.record + 4, &u32::from(self.sent).to_be_bytes());
    }

    /// The state that a query gives.
    pub fn state(&self, driver: &mut Driver) -> u32 {
        let mut input = vec![0; 16];
        field(&mut input, 0x48, 24, self.number.into());
        word(&driver.command(0x50b, input, 0x110), 0x18) >> 28
    }
}

/// A data segment.
pub fn data(key: u32, addr: u64, len: u32) -> Vec<u8> {
    [&len.to_be_bytes()[..], &key.to_be_bytes(), &addr.to_be_bytes()].concat()
}

/// A remote address segment.
pub fn remote(addr: u64, key: u32) -> Vec<u8> {
    [&addr.to_be_bytes()[..], &key.to_be_bytes(), &[0; 4]].concat()
}

/// Bytes in the request itself.
pub fn inline(bytes: &[u8]) -> Vec<u8> {
    let head = (1u32 << 31 | bytes.len() as u32).to_be_bytes();
    let mut segment = [&head[..], bytes].concat();
    segment.resize(segment.len().next_multiple_of(16), 0);
    segment
}

/// Bits of the mask of a request that changes a key.
pub mod mask {
    pub const LEN: u64 = 1;
    pub const PAGE_SIZE: u64 = 1 << 1;
    pub const START: u64 = 1 << 6;
    pub const PD: u64 = 1 << 7;
    pub const TAG: u64 = 1 << 13;
    pub const RIGHTS: u64 = 0b1_1110 << 17;
    pub const FREE: u64 = 1 << 29;
    pub const ALL: u64 = LEN | PAGE_SIZE | START | PD | TAG | RIGHTS | FREE;
}

/// A memory key context: `mode` (1 pages, 2 parts of other keys, 3 of one length, 6 crossing), all
/// rights but atomics, pages of 4 KiB.
pub fn context(mode: u64, pd: u32, tag: u8, start: u64, len: u64) -> [u8; 64] {
    let mut context = [0; 64];
    for right in [0x10, 0x12, 0x13, 0x14, 0x15] {
        field(&mut context, right, 1, 1);
    }
    field(&mut context, 0x3, 3, mode >> 2);
    field(&mut context, 0x16, 2, mode & 3);
    field(&mut context, 0x20, 24, 0xff_ffff);
    field(&mut context, 0x38, 8, tag.into());
    field(&mut context, 0x68, 24, pd.into());
    field(&mut context, 0x80, 64, start);
    field(&mut context, 0xc0, 64, len);
    field(&mut context, 0x1a0, 32, 8);
    field(&mut context, 0x1db, 5, 12);
    context
}

/// A context of a key that is free.
pub fn free(mut context: [u8; 64]) -> [u8; 64] {
    field(&mut context, 1, 1, 1);
    context
}

/// A key without memory, for requests to fill.
pub fn free_key(driver: &mut Driver, mode: u64, pd: u32) -> u32 {
    let mut input = vec![0; 0x110];
    input[16..80].copy_from_slice(&free(context(mode, pd, 0, 0, 0)));
    driver.create(CREATE_MKEY, input) << 8
}

/// The command that makes a key of `context` with `list`.
pub fn create_key(context: &[u8; 64], list: &[u8]) -> Vec<u8> {
    let mut input = vec![0; 0x110];
    input[16..80].copy_from_slice(context);
    field(&mut input, 0x300, 32, list.len() as u64 / 16);
    input.extend(list);
    input
}

/// The context of a key that crosses into the domain of `target`.
pub fn crossing(pd: u32, target: u32, len: u64) -> [u8; 64] {
    let mut context = context(6, pd, 0, 0, len);
    field(&mut context, 0x1a0, 32, target.into());
    context
}

/// A request that changes a key: what of `context` is meant, and the new list in the request
/// itself.
pub fn umr(flags: u8, mask: u64, context: &[u8; 64], list: &[u8]) -> Vec<u8> {
    let mut segments = vec![0; 48];
    segments[0] = flags | 1 << 7;
    segments[4..6].copy_from_slice(&(list.len() as u16 / 16).to_be_bytes());
    segments[8..16].copy_from_slice(&mask.to_be_bytes());
    segments.extend(context);
    segments.extend(list);
    segments
}

/// The same with a description of block signatures behind the list.
pub fn umr_signing(mask: u64, context: &[u8; 64], list: &[u8], format: &[u8; 64]) -> Vec<u8> {
    let mut segments = umr(0, mask, context, list);
    segments[6..8].copy_from_slice(&4u16.to_be_bytes());
    segments.extend(format);
    segments
}

/// A request's body that repeats runs (distance, bytes, key, address) so often.
pub fn repeated(turns: u32, runs: &[(u16, u16, u32, u64)]) -> Vec<u8> {
    let turn = runs.iter().map(|run| u32::from(run.1)).sum::<u32>();
    let mut list = [turn, 0x400, turns, runs.len() as u32].map(u32::to_be_bytes).concat();
    for (distance, bytes, key, addr) in runs {
        list.extend([distance.to_be_bytes(), bytes.to_be_bytes()].concat());
        list.extend(key.to_be_bytes());
        list.extend(addr.to_be_bytes());
    }
    list.resize(list.len().next_multiple_of(64), 0);
    list
}
