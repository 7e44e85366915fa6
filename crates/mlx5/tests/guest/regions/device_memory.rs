//! The device's own memory: parts, keys over them, and operations by access.

use crate::driver::{Pair, pair};
use crate::support::numbers::{
    BAD_PARAMETER, BUSY, FETCH_ADD, READ, REMOTE_ACCESS, REQUEST, REQUEST_ERROR, WRITE,
};
use crate::support::verbs::{CREATE_MKEY, context, create_key, data, inline, remote};
use crate::support::{Driver, field};

const ALLOC: u16 = 0x205;
const DEALLOC: u16 = 0x206;
const MODIFY: u16 = 0x207;
const DESTROY_MKEY: u16 = 0x202;
const PAGE: u64 = 4096;

/// Where the memory begins in BAR 0, and how long it is.
fn window(driver: &mut Driver) -> (u64, u64) {
    let mut input = vec![0; 16];
    field(&mut input, 0x30, 16, 0xf << 1);
    let group = driver.command(0x100, input, 16 + 4096)[16..].to_vec();
    assert_eq!(group[0] >> 7, 1, "there is some");
    let number = |at: usize| u64::from_be_bytes(group[at..at + 8].try_into().unwrap());
    (number(8), number(16) >> 32)
}

/// A part of `len` bytes in the page at `start`; gives its address.
fn part(driver: &mut Driver, start: u64, len: u64) -> u64 {
    let mut input = vec![0; 0x20];
    field(&mut input, 0x80, 64, start);
    field(&mut input, 0xc0, 32, len.next_multiple_of(PAGE));
    field(&mut input, 0xe0, 32, len);
    let answer = driver.command(ALLOC, input, 16);
    u64::from_be_bytes(answer[8..16].try_into().unwrap())
}

/// A command with these fields.
fn about(fields: &[(usize, usize, u64)]) -> Vec<u8> {
    let mut input = vec![0; 0x40];
    fields.iter().for_each(|&(bit, width, value)| field(&mut input, bit, width, value));
    input
}

/// A key over `len` bytes from `start` on, with the right to atomics.
fn key(pd: u32, start: u64, len: u64) -> Vec<u8> {
    let mut context = context(5, pd, 3, start, len);
    field(&mut context, 0x10, 1, 0);
    field(&mut context, 0x11, 1, 1);
    create_key(&context, &[])
}

#[test]
fn peers_and_the_processor_reach_the_same_bytes() {
    let Pair { mut driver, mut cq, pd, key: host, mut one, .. } = pair("memic");
    let (start, len) = window(&mut driver);
    assert_eq!(len, 256 << 10);
    let part = part(&mut driver, start + 2 * PAGE, 4096 + 64);
    assert_eq!(part, start + 2 * PAGE);
    driver.function.write(part + 64, b"from the processor  ");
    // Addresses under the key count from 0.
    let own = driver.create(CREATE_MKEY, key(pd, part + 64, 4096)) << 8 | 3;
    let to = driver.page();
    one.post(&driver, READ, 0, &[&remote(5, own), &data(host, to, 13)]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(to, 13), b"the processor");
    one.post(&driver, WRITE, 0, &[&remote(0, own), &inline(b"to")]);
    cq.expect(&driver, REQUEST);
    let mut word = [0; 4];
    driver.function.read(part + 64, &mut word);
    assert_eq!(&word, b"toom");
    let operands = [&2u64.to_be_bytes()[..], &[0; 8]].concat();
    one.post(&driver, FETCH_ADD, 0, &[&remote(4088, own), &operands, &data(host, to, 8)]);
    cq.expect(&driver, REQUEST);
    driver.function.read(part + 64 + 4088, &mut word);
    assert_eq!(u32::from_le_bytes(word), 2);
    // Local, too.
    one.post(&driver, WRITE, 0, &[&remote(to, host), &data(own, 0, 8)]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(to, 8), b"toom the");
    one.post(&driver, WRITE, 0, &[&remote(4090, own), &inline(b"too long")]);
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], REMOTE_ACCESS);
}

#[test]
fn a_part_stays_while_a_key_is_over_it() {
    let Pair { mut driver, pd, .. } = pair("memicbusy");
    let (start, _) = window(&mut driver);
    let part = part(&mut driver, start, 128);
    for wrong in [
        key(pd, part, 129),
        key(pd, part + 128, 0),
        key(pd, part - 1, 1),
        key(pd, u64::MAX, 8),
        key(pd, part, u64::MAX),
    ] {
        assert_eq!(driver.status(CREATE_MKEY, wrong), BAD_PARAMETER);
    }
    // Requests would move it elsewhere.
    let movable = create_key(&context(5, pd, 3, part, 128), &[]);
    assert_eq!(driver.status(CREATE_MKEY, movable), BAD_PARAMETER);
    let mut listed = [key(pd, part, 128), vec![1; 16]].concat();
    field(&mut listed, 0x300, 32, 1);
    assert_eq!(driver.status(CREATE_MKEY, listed), BAD_PARAMETER);
    let index = driver.create(CREATE_MKEY, key(pd, part, 128));
    let dealloc = about(&[(0x80, 64, part), (0xc0, 32, 128)]);
    assert_eq!(driver.status(DEALLOC, dealloc.clone()), BUSY);
    driver.command(DESTROY_MKEY, about(&[(0x48, 24, index.into())]), 16);
    assert_eq!(driver.status(DEALLOC, dealloc), 0);
}

#[test]
fn an_operation_is_done_where_its_window_is_open() {
    let mut driver = Driver::new("memicops");
    let (start, _) = window(&mut driver);
    let part = part(&mut driver, start, 64);
    let window = |driver: &mut Driver, operation| {
        let open = about(&[(0x78, 8, operation), (0x80, 64, part)]);
        let answer = driver.command(MODIFY, open, 0x40);
        u64::from_be_bytes(answer[16..24].try_into().unwrap())
    };
    let (increment, test_and_set) = (window(&mut driver, 0), window(&mut driver, 1));
    driver.function.write(increment, &[1]);
    driver.function.write(increment, &[1]);
    let mut byte = [0];
    for before in [2, 1] {
        driver.function.read(test_and_set, &mut byte);
        assert_eq!(byte, [before]);
    }
    driver.function.reset();
    byte = [0];
    driver.function.read(part, &mut byte);
    assert_eq!(byte, [0], "no part is given out");
}
