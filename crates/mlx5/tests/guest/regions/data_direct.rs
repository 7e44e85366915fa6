//! Keys of the Data Direct function, as Linux stacks them: one over all that it reaches, one over
//! parts of that, one that crosses into the program's domain.

use crate::driver::{Pair, pair};
use crate::support::numbers::{
    BAD_PARAMETER, CHECK_NOT_FREE, READ, REQUEST, REQUEST_ERROR, UMR, WRITE,
};
use crate::support::verbs::{
    ALLOC_PD, CREATE_MKEY, context, create_key, crossing, data, free, free_key, inline, mask, qp,
    remote, umr,
};
use crate::support::{Driver, field, word};
use std::sync::atomic::Ordering;
use umem::DmaSpace;

const QUERY_VUID: u16 = 0xb22;

/// The command for a key over all that the function reaches.
fn physical(pd: u32) -> Vec<u8> {
    let mut command = create_key(&[0; 64], &[]);
    field(&mut command, 0x62, 1, 1);
    for right in [0x11, 0x12, 0x13, 0x14, 0x15] {
        field(&mut command, 0x80 + right, 1, 1);
    }
    field(&mut command, 0x80 + 0x20, 24, 0xff_ffff);
    field(&mut command, 0x80 + 0x60, 1, 1);
    field(&mut command, 0x80 + 0x68, 24, pd.into());
    command
}

/// Reads the memory that the function reaches.
fn side(driver: &Driver, addr: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    driver.machine.side.read(addr, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_adapter_says_by_which_name_its_function_is_found() {
    let Pair { mut driver, .. } = pair("vuid");
    let mut query = vec![0; 16];
    field(&mut query, 0x61, 1, 1);
    let answer = driver.command(QUERY_VUID, query, 192);
    assert_eq!(word(&answer, 60), 1);
    assert_eq!(&answer[64..71], b"MT2446\0");
    let mut of_another = vec![0; 16];
    field(&mut of_another, 0x70, 16, 5);
    assert_eq!(driver.status(QUERY_VUID, of_another), BAD_PARAMETER);
}

#[test]
fn what_such_a_key_reaches_is_reached_by_the_function() {
    let Pair { mut driver, mut cq, pd, key, mut one, .. } = pair("direct");
    let own = driver.create(ALLOC_PD, vec![0; 16]);
    // A driver changes keys of its own domain by a queue pair there.
    let mut own_qp = qp(&mut driver, 0, own, &cq);
    let lid = driver.lid;
    own_qp.connect(&mut driver, lid, own_qp.number);
    let physical = driver.create(CREATE_MKEY, physical(own)) << 8;
    let (low, high) = (driver.page(), driver.page());
    let even = free_key(&mut driver, 3, own);
    let list = [data(physical, high, 0), data(physical, low, 0)].concat();
    let filled = context(3, own, 0, 0x4_0000, 0x2000);
    own_qp.post(&driver, UMR, even, &[&umr(CHECK_NOT_FREE, mask::ALL, &filled, &list)]);
    cq.expect(&driver, REQUEST);
    let crossed = create_key(&crossing(pd, even, 0x4_2000), &[]);
    let crossed = driver.create(CREATE_MKEY, crossed) << 8;
    one.post(&driver, WRITE, 0, &[&remote(0x4_0ffc, crossed), &inline(b"directly")]);
    cq.expect(&driver, REQUEST);
    assert_eq!(side(&driver, high + 0xffc, 4), b"dire");
    assert_eq!(side(&driver, low, 4), b"ctly");
    assert_eq!(driver.peek(low, 4), [0; 4], "the adapter's own requests would go here");
    let machine = driver.machine.clone();
    assert_eq!(machine.side_route.written_bytes(), 8);
    let to = driver.page();
    one.post(&driver, READ, 0, &[&remote(0x4_0ffc, crossed), &data(key, to, 8)]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(to, 8), b"directly");
    // A READ whose answer is late is asked for again, and reads again.
    let read_bytes = machine.side_route.read_bytes();
    assert!(read_bytes > 0 && read_bytes.is_multiple_of(8), "{read_bytes}");
    assert_eq!(machine.route.written_bytes(), 8);
    // The driver is unbound: it takes the parts away, then its own key; the program's key stays.
    let none = [data(0, 0, 0), data(0, 0, 0)].concat();
    own_qp.post(&driver, UMR, even, &[&umr(2 << 5, 0, &free(filled), &none)]);
    cq.expect(&driver, REQUEST);
    let mut destroy = vec![0; 16];
    field(&mut destroy, 0x48, 24, u64::from(physical >> 8));
    driver.command(0x202, destroy, 16);
    one.post(&driver, WRITE, 0, &[&remote(0x4_0ffc, crossed), &inline(b"too late")]);
    cq.expect(&driver, REQUEST_ERROR);
    assert_eq!(side(&driver, low, 4), b"ctly");
}

#[test]
fn reserved_fields_and_a_missing_function_are_refused() {
    let Pair { mut driver, pd, .. } = pair("reserved");
    // Modes, a free key, requests that change it, one queue pair, peers that invalidate, a list,
    // pages, hints, reserved bits.
    let reserved =
        [0x81, 0x85, 0x97, 0x90, 0xe7, 0x23f, 0x25f, 0x265, 0x60, 0x61, 0x7f, 0x80, 0x280, 0x300];
    for bit in reserved {
        let mut command = physical(pd);
        field(&mut command, bit, 1, 1);
        assert_eq!(driver.status(CREATE_MKEY, command), BAD_PARAMETER, "bit {bit:#x}");
    }
    let mut bound = physical(pd);
    field(&mut bound, 0x80 + 0x20, 24, 5);
    assert_eq!(driver.status(CREATE_MKEY, bound), BAD_PARAMETER, "of one queue pair");
    assert_eq!(driver.status(CREATE_MKEY, physical(pd)), 0);
    driver.machine.data_direct.store(false, Ordering::Relaxed);
    assert_eq!(driver.status(CREATE_MKEY, physical(pd)), BAD_PARAMETER);
}
