//! What a guest can make this process remember: no more than it is allowed, and nothing of what has ended.

use crate::driver::{Pair, pair};
use crate::support::Driver;
use crate::support::field;
use crate::support::verbs::{
    ALLOC_PD, CREATE_CQ, CREATE_MKEY, CREATE_UMEM, context, cq, create_key, data, eq, free_key, qp,
    umr, user_memory,
};
use std::process::Command;

const NO_RESOURCES: u8 = 0xf;
const UMR: u8 = 0x25;
const MAX_MEMORY: u64 = 24 << 20;
/// What the process takes besides: of the allocator, of threads and of the kernel's pages.
const SLACK: u64 = 16 << 20;

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    sizes.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Runs a test in a process of its own, where nobody else takes memory.
fn apart(name: &str, body: impl FnOnce()) {
    const CHILD: &str = "PEERDMA_MEMORY_TEST";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let own = std::env::current_exe().unwrap();
    let name = format!("memory::{name}");
    let child = Command::new(own).args(["--exact", &name, "--nocapture"]).env(CHILD, "1").output();
    let child = child.unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(said.contains("1 passed"), "{said}");
}

/// Makes things until the function has no room for more, while the process has no more than `most` bytes; how many.
fn until_refused(most: u64, mut make: impl FnMut() -> u8) -> u32 {
    for made in 0..100_000 {
        assert!(made % 16 != 0 || resident() <= most, "{made} are too many");
        match make() {
            0 => {}
            NO_RESOURCES => return made,
            status => panic!("status {status:#x} after {made}"),
        }
    }
    panic!("nothing is refused");
}

fn page_lists(driver: &mut Driver, most: u64) {
    let input = user_memory(0, &[0x20_0000; 30_000]);
    let made = until_refused(most, || driver.status(CREATE_UMEM, input.clone()));
    assert!(made > 30, "{made}");
}

fn long_lists(driver: &mut Driver, most: u64) {
    let (eqn, _) = eq(driver, 0);
    let mut cq = cq(driver, eqn);
    let pd = driver.create(ALLOC_PD, vec![0; 16]);
    let mut pair = qp(driver, 0, pd, &cq);
    let lid = driver.lid;
    pair.connect(driver, lid, pair.number);
    let mut long = context(3, pd, 0, 0, 0);
    field(&mut long, 0x1a0, 32, 1 << 22);
    let key = driver.create(CREATE_MKEY, create_key(&long, &[])) << 8;
    // An entry here and there; each takes its surroundings along.
    let mut at = 0u64;
    until_refused(most, || {
        let mut request = umr(1 << 4, 0, &[0; 64], &data(7, 0x1000, 0));
        request[6..8].copy_from_slice(&(at as u16).to_be_bytes());
        request[16..20].copy_from_slice(&((at >> 16) as u32).to_be_bytes());
        at += 512;
        pair.post(driver, UMR, key, &[&request]);
        let entry = driver.poll("a completion", || cq.poll(driver));
        if entry[63] >> 4 == 0 { 0 } else { NO_RESOURCES }
    });
}

fn queue_pairs(driver: &mut Driver, most: u64) {
    let (eqn, _) = eq(driver, 0);
    let cq = cq(driver, eqn);
    let pd = driver.create(ALLOC_PD, vec![0; 16]);
    driver.forgiving = true;
    let mut before = 0;
    let made = until_refused(most, || {
        let number = qp(driver, 0, pd, &cq).number;
        let refused = number == 0 || number == before;
        before = number;
        if refused { NO_RESOURCES } else { 0 }
    });
    driver.forgiving = false;
    assert!(made > 500, "{made}");
}

fn completion_queues(driver: &mut Driver, most: u64) {
    let (eqn, _) = eq(driver, 0);
    let page = driver.page();
    let mut input = vec![0; 0x118];
    field(&mut input, 0x80 + 0x68, 24, driver.uar.into());
    field(&mut input, 0x80 + 0xa0, 32, eqn.into());
    field(&mut input, 0x80 + 0x1c0, 64, page);
    field(&mut input, 0x880, 64, page);
    until_refused(most, || driver.status(CREATE_CQ, input.clone()));
}

fn keys(driver: &mut Driver, most: u64) {
    let pd = driver.create(ALLOC_PD, vec![0; 16]);
    for mode in [1, 2] {
        let input = create_key(&context(mode, pd, 0, 0, 0), &[]);
        until_refused(most, || driver.status(CREATE_MKEY, input.clone()));
        if mode == 1 {
            driver.restart();
            driver.create(ALLOC_PD, vec![0; 16]);
        }
    }
}

#[test]
fn a_guest_is_remembered_within_its_limit() {
    apart("a_guest_is_remembered_within_its_limit", || {
        let mut driver = Driver::within("limit", MAX_MEMORY);
        let before = resident();
        for (name, fill) in [
            ("page lists", page_lists as fn(&mut Driver, u64)),
            ("long lists", long_lists),
            ("queue pairs", queue_pairs),
            ("completion queues", completion_queues),
            ("keys", keys),
        ] {
            fill(&mut driver, before + MAX_MEMORY + SLACK);
            println!("{name}: {} MiB", resident().saturating_sub(before) >> 20);
            driver.restart();
        }
        // All of it was given back.
        page_lists(&mut driver, before + MAX_MEMORY + SLACK);
    });
}

/// A queue pair that has failed flushes what is posted to it, as often as its driver likes.
#[test]
fn nothing_is_kept_of_requests_that_are_flushed() {
    apart("nothing_is_kept_of_requests_that_are_flushed", || {
        let Pair { mut driver, mut cq, pd, mut one, .. } = pair("flushed");
        let key = free_key(&mut driver, 2, pd);
        one.to_error(&mut driver);
        let list = [data(key, 0, 16), vec![0; 512]].concat();
        let request = umr(0, 0, &[0; 64], &list);
        let before = resident();
        for _ in 0..40_000 {
            one.post(&driver, UMR, key, &[&request]);
            cq.expect(&driver, 13);
        }
        let grown = resident().saturating_sub(before);
        assert!(grown < 8 << 20, "{grown}");
    });
}
