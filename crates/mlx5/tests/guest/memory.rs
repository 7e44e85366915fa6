//! What a guest can make this process remember: no more than it is allowed, and nothing of what has
//! ended.

use crate::driver::{Pair, pair};
use crate::support::ethernet::{
    CREATE_FLOW_GROUP, CREATE_FLOW_TABLE, CREATE_TIR, SET_FLOW_TABLE_ENTRY, flow_entry, flow_group,
    interface, ring,
};
use crate::support::numbers::UMR;
use crate::support::verbs::{
    ALLOC_PD, CREATE_CQ, CREATE_EQ, CREATE_MKEY, CREATE_UMEM, context, cq, create_key, data, eq,
    free_key, qp, umr, user_memory,
};
use crate::support::{Driver, apart, field};
use crate::tags;
use hca::Network;

const NO_RESOURCES: u8 = 0xf;
const ALLOC_XRCD: u16 = 0x80e;
const ALLOC_TRANSPORT_DOMAIN: u16 = 0x816;
const CREATE_RQT: u16 = 0x916;
const MODIFY_RQT: u16 = 0x917;
const MAX_MEMORY: u64 = 24 << 20;
/// What the process takes besides: of the allocator, of threads and of the kernel's pages.
const SLACK: u64 = 16 << 20;

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    sizes.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Makes things until the function has no room for more, while the process has no more than `most`
/// bytes; how many.
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

/// Makes objects of a command, each of which takes `each` bytes of the limit at least besides what
/// the command lists. Where there is no number for as many as the limit allows, it is reached by
/// their number, which is `numbers`.
fn objects(driver: &mut Driver, most: u64, create: (u16, Vec<u8>), each: u64, numbers: u64) {
    let (opcode, input) = create;
    let made = u64::from(until_refused(most, || driver.status(opcode, input.clone())));
    let allowed = MAX_MEMORY / (each + 2 * input.len() as u64);
    assert!((1..=allowed.min(numbers)).contains(&made), "{made} of {opcode:#x}, not {allowed}");
}

/// Least that an object takes of the limit.
const LEAST: u64 = 1 << 10;
const EVENT_QUEUES: u64 = 64;
/// A datagram queue pair, which keeps its peers.
const DATAGRAM_QUEUE_PAIR: u64 = 96 << 10;
/// A queue that matches tags.
const TAGGED_QUEUE: u64 = 2 << 20;

fn event_queues(driver: &mut Driver, most: u64) {
    let mut input = vec![0; 0x118];
    field(&mut input, 0x80 + 0x63, 5, 6);
    field(&mut input, 0x80 + 0x68, 24, driver.uar.into());
    let page = driver.page();
    field(&mut input, 0x880, 64, page);
    objects(driver, most, (CREATE_EQ, input), LEAST, EVENT_QUEUES);
}

fn shared_queues(driver: &mut Driver, most: u64) {
    let (eqn, _) = eq(driver, 0);
    let cq = cq(driver, eqn);
    let pd = driver.create(ALLOC_PD, vec![0; 16]);
    let xrcd = driver.create(ALLOC_XRCD, vec![0; 16]);
    let page = driver.page();
    let mut input = vec![0; 0x118];
    field(&mut input, 0x80 + 0x4, 4, 3);
    field(&mut input, 0x80 + 0x25, 3, 1);
    field(&mut input, 0x80 + 0x28, 24, xrcd.into());
    field(&mut input, 0x80 + 0x48, 24, cq.number.into());
    field(&mut input, 0x80 + 0xc8, 24, pd.into());
    field(&mut input, 0x80 + 0x140, 64, page);
    field(&mut input, 0x880, 64, page);
    objects(driver, most, (0x705, input), LEAST, u64::MAX);
}

fn pools(driver: &mut Driver, most: u64) {
    let pd = driver.create(ALLOC_PD, vec![0; 16]);
    let page = driver.page();
    let mut input = vec![0; 0x118];
    let wq = 0x280;
    field(&mut input, wq + 0x48, 24, pd.into());
    field(&mut input, wq + 0x80, 64, page);
    field(&mut input, wq + 0x10c, 4, 5);
    field(&mut input, wq + 0x11b, 5, 3);
    field(&mut input, 0x880, 64, page);
    objects(driver, most, (0x90c, input), LEAST, u64::MAX);
}

fn tag_queues(driver: &mut Driver, most: u64) {
    let (eqn, _) = eq(driver, 0);
    let cq = cq(driver, eqn);
    let pd = driver.create(ALLOC_PD, vec![0; 16]);
    let (input, ..) = tags::create(driver, pd, &cq, 4);
    objects(driver, most, (tags::CREATE, input), TAGGED_QUEUE, u64::MAX);
}

/// Makes queue pairs of a service until one is refused; how many.
fn queue_pairs_of(driver: &mut Driver, service: u64, most: u64) -> u32 {
    let (eqn, _) = eq(driver, 0);
    let cq = cq(driver, eqn);
    let pd = driver.create(ALLOC_PD, vec![0; 16]);
    driver.forgiving = true;
    let mut before = 0;
    let made = until_refused(most, || {
        let number = qp(driver, service, pd, &cq).number;
        let refused = number == 0 || number == before;
        before = number;
        if refused { NO_RESOURCES } else { 0 }
    });
    driver.forgiving = false;
    made
}

fn datagram_queue_pairs(driver: &mut Driver, most: u64) {
    let made = queue_pairs_of(driver, 2, most);
    assert!((100..=MAX_MEMORY / DATAGRAM_QUEUE_PAIR).contains(&made.into()), "{made}");
}

fn work_queues(driver: &mut Driver, most: u64) {
    for create in [0x904, 0x908] {
        let (eqn, _) = eq(driver, 0);
        let cq = cq(driver, eqn);
        let pd = driver.create(ALLOC_PD, vec![0; 16]);
        let [page, record] = [(); 2].map(|()| driver.page());
        let input = ring(driver, pd, &cq, page, record);
        objects(driver, most, (create, input), LEAST, u64::MAX);
        driver.restart();
    }
}

fn interfaces(driver: &mut Driver, most: u64) {
    objects(driver, most, (CREATE_TIR, interface(1, 0)), LEAST, u64::MAX);
}

/// A table of so many queues, as it is made and as it is changed.
fn indirection_table(queues: u16) -> Vec<u8> {
    let mut input = vec![0; 0x110 + usize::from(queues) * 4];
    field(&mut input, 0x100 + 0xb0, 16, queues.into());
    field(&mut input, 0x100 + 0xd0, 16, queues.into());
    input
}

fn indirection_tables(driver: &mut Driver, most: u64) {
    objects(driver, most, (CREATE_RQT, indirection_table(128)), LEAST, u64::MAX);
}

/// Tables that are short when they are made, and are replaced by long ones.
fn longer_tables(driver: &mut Driver, most: u64) {
    const TABLES: usize = 10_000;
    let tables: Vec<u32> =
        (0..TABLES).map(|_| driver.create(CREATE_RQT, indirection_table(1))).collect();
    let mut left = tables.iter();
    let changed = until_refused(most, || {
        let mut input = indirection_table(128);
        field(&mut input, 0x48, 24, u64::from(*left.next().expect("a table that is refused")));
        field(&mut input, 0x80 + 0x3f, 1, 1);
        driver.status(MODIFY_RQT, input)
    });
    assert!(changed > 1000, "{changed}");
}

/// Objects that are a number and little else.
fn plain_objects(driver: &mut Driver, most: u64) {
    for create in [ALLOC_PD, ALLOC_TRANSPORT_DOMAIN, ALLOC_XRCD] {
        objects(driver, most, (create, vec![0; 16]), LEAST, u64::MAX);
        driver.restart();
    }
}

/// What groups, and entries, take of the limit.
const FLOW_GROUP: u64 = 512;
const FLOW_ENTRY: u64 = 2048;

fn flow_groups(driver: &mut Driver, most: u64) {
    const OF_A_TABLE: u32 = 1 << 10;
    let mut made = 0;
    let mut table = 0;
    until_refused(most, || {
        if made % OF_A_TABLE == 0 {
            table = driver.create(CREATE_FLOW_TABLE, vec![0; 64]);
        }
        let status = driver.status(CREATE_FLOW_GROUP, flow_group(table, made));
        made += u32::from(status == 0);
        status
    });
    assert!((1..=MAX_MEMORY / FLOW_GROUP).contains(&made.into()), "{made} groups");
}

fn flow_entries(driver: &mut Driver, most: u64) {
    let table = driver.create(CREATE_FLOW_TABLE, vec![0; 64]);
    let mut all = flow_group(table, 0);
    field(&mut all, 0x120, 32, u32::MAX.into());
    let group = driver.create(CREATE_FLOW_GROUP, all);
    let mut index = 0;
    let made = until_refused(most, || {
        index += 1;
        driver.status(SET_FLOW_TABLE_ENTRY, flow_entry(table, group, index, 1))
    });
    assert!((1..=MAX_MEMORY / FLOW_ENTRY).contains(&made.into()), "{made} entries");
}

fn queue_pairs(driver: &mut Driver, most: u64) {
    let made = queue_pairs_of(driver, 0, most);
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
    apart("memory::a_guest_is_remembered_within_its_limit", || {
        let mut driver = Driver::within("limit", Network::Subnet, MAX_MEMORY);
        let before = resident();
        for (name, fill) in [
            ("page lists", page_lists as fn(&mut Driver, u64)),
            ("long lists", long_lists),
            ("queue pairs", queue_pairs),
            ("completion queues", completion_queues),
            ("keys", keys),
            ("event queues", event_queues),
            ("shared queues", shared_queues),
            ("pools", pools),
            ("queues with tags", tag_queues),
            ("datagram queue pairs", datagram_queue_pairs),
            ("plain objects", plain_objects),
        ] {
            fill(&mut driver, before + MAX_MEMORY + SLACK);
            println!("{name}: {} MiB", resident().saturating_sub(before) >> 20);
            driver.restart();
        }
        // All of it was given back.
        page_lists(&mut driver, before + MAX_MEMORY + SLACK);
    });
}

#[test]
fn a_guest_on_an_ethernet_is_remembered_within_its_limit() {
    apart("memory::a_guest_on_an_ethernet_is_remembered_within_its_limit", || {
        let network = Network::Ethernet { host_addresses: Vec::new() };
        let mut driver = Driver::within("limit", network, MAX_MEMORY);
        let before = resident();
        for (name, fill) in [
            ("work queues", work_queues as fn(&mut Driver, u64)),
            ("interfaces", interfaces),
            ("indirection tables", indirection_tables),
            ("longer tables", longer_tables),
            ("flow groups", flow_groups),
            ("flow entries", flow_entries),
        ] {
            fill(&mut driver, before + MAX_MEMORY + SLACK);
            println!("{name}: {} MiB", resident().saturating_sub(before) >> 20);
            driver.restart();
        }
        // All of it was given back.
        interfaces(&mut driver, before + MAX_MEMORY + SLACK);
    });
}

/// A queue pair that has failed flushes what is posted to it, as often as its driver likes.
#[test]
fn nothing_is_kept_of_requests_that_are_flushed() {
    apart("memory::nothing_is_kept_of_requests_that_are_flushed", || {
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
