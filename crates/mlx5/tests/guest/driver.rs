//! A driver in the order of Linux's, against the function: what each step must find.

use crate::support::numbers::{
    BAD_PARAMETER, BAD_RESOURCE, BUSY, FETCH_ADD, READ, REQUEST, REQUEST_ERROR, RESPONSE_ERROR,
    RESPONSE_SEND, SEND, WRITE,
};
use crate::support::verbs::{self, Qp, cq, data, eq, inline, key_over, physical_key, qp, remote};
use crate::support::{Driver, ENABLE_HCA, INIT_HCA, TEARDOWN_HCA, field, word};

const SEND_IMM: u8 = 0x0b;
const RESPONSE_SEND_IMM: u8 = 3;
const BAD_SYSTEM_STATE: u8 = 4;
const BAD_RESOURCE_STATE: u8 = 9;
const BAD_QP_STATE: u8 = 0x10;

fn about(number: u32) -> Vec<u8> {
    let mut input = vec![0; 16];
    field(&mut input, 0x48, 24, number.into());
    input
}

fn capability(driver: &mut Driver, op_mod: u16) -> Vec<u8> {
    let mut input = vec![0; 16];
    field(&mut input, 0x30, 16, op_mod.into());
    driver.command(0x100, input, 16 + 4096)[16..].to_vec()
}

#[test]
fn the_probe_of_a_driver_finds_an_infiniband_port() {
    let mut driver = Driver::new("probe");
    driver.command(0x103, vec![0; 16], 16);
    driver.command(0x105, vec![0; 16], 16);
    driver.command(0x104, vec![0; 16], 16);
    let issi = driver.command(0x10a, vec![0; 16], 0x70);
    assert_eq!(word(&issi, 0x6c), 3, "interface versions 0 and 1");
    let mut input = vec![0; 16];
    field(&mut input, 0x50, 16, 1);
    driver.command(0x10b, input, 16);
    let pages = driver.command(0x107, vec![0; 16], 16);
    assert_eq!(word(&pages, 12), 0, "software needs no pages");
    let most = capability(&mut driver, 0);
    let mut wanted = vec![0; 16 + 4096];
    wanted[16..].copy_from_slice(&most);
    driver.command(0x109, wanted, 16);
    let current = capability(&mut driver, 1);
    assert_eq!(current[..0x100], most[..0x100]);
    assert_eq!(current[0x36] & 3, 0, "the port's type is InfiniBand");
    driver.init();
    let (eqn, ring) = eq(&mut driver, 3);
    assert_eq!(driver.peek(ring + 63, 1), [1], "its own creation is no event");
    driver.arm_eq(eqn, 0);
    let context = driver.command(0x762, vec![0; 16], 16 + 512);
    assert_eq!(word(&context, 16 + 0x60) >> 16, u32::from(driver.lid));
    let event = driver.peek(ring, 64);
    assert_eq!((event[1], word(&event, 0x20), event[63]), (0xa, 1, 0), "command 0 is complete");
    assert_eq!(*driver.machine.interrupts.lock().unwrap(), [3]);
    let mut all = vec![0; 16];
    field(&mut all, 0x70, 16, 0xffff);
    let pkeys = driver.command(0x765, all, 16 + 128 * 4);
    assert_eq!(word(&pkeys, 16), 0xffff);
    assert!(pkeys[20..].iter().all(|byte| *byte == 0), "only one P_Key");
}

/// Two connected queue pairs of one function.
pub struct Pair {
    pub driver: Driver,
    /// The queue of events.
    pub ring: u64,
    pub cq: verbs::Cq,
    pub pd: u32,
    pub key: u32,
    pub one: Qp,
    pub two: Qp,
}

pub fn pair(name: &str) -> Pair {
    let mut driver = Driver::new(name);
    let (eqn, ring) = eq(&mut driver, 0);
    let cq = cq(&mut driver, eqn);
    let pd = driver.create(verbs::ALLOC_PD, vec![0; 16]);
    let key = physical_key(&mut driver, pd);
    let one = qp(&mut driver, 0, pd, &cq);
    let two = qp(&mut driver, 0, pd, &cq);
    let lid = driver.lid;
    one.connect(&mut driver, lid, two.number);
    two.connect(&mut driver, lid, one.number);
    Pair { driver, ring, cq, pd, key, one, two }
}

#[test]
fn sends_writes_reads_and_atomics_move_bytes() {
    let Pair { mut driver, mut cq, pd, key, mut one, mut two, .. } = pair("rc");
    let (from, to) = (driver.page(), driver.page());
    driver.poke(from, b"hello world");
    two.post_receive(&driver, key, to, 64);
    one.post(&driver, SEND_IMM, 0xabcd, &[&data(key, from, 11)]);
    let (mut sent, mut received) = (false, false);
    for _ in 0..2 {
        let entry = driver.poll("a completion", || cq.poll(&driver));
        match entry[63] >> 4 {
            REQUEST => {
                assert_eq!(word(&entry, 0x38), u32::from(SEND_IMM) << 24 | one.number);
                sent = true;
            }
            opcode => {
                assert_eq!(opcode, RESPONSE_SEND_IMM);
                assert_eq!((word(&entry, 0x24), word(&entry, 0x2c)), (0xabcd, 11));
                received = true;
            }
        }
    }
    assert!(sent && received);
    assert_eq!(driver.peek(to, 11), b"hello world");
    // A key over two pages that are apart, from the middle of the first.
    let (low, high) = (driver.page(), driver.page());
    let scattered = key_over(&mut driver, pd, 0x7800, 0x1800, &[high, low]);
    one.post(&driver, WRITE, 0, &[&remote(0x7ffc, scattered), &inline(b"across a border")]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(high + 0xffc, 4), b"acro");
    assert_eq!(driver.peek(low, 11), b"ss a border");
    one.post(&driver, READ, 0, &[&remote(0x7ffc, scattered), &data(key, from, 15)]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(from, 15), b"across a border");
    driver.poke(to, &40u64.to_ne_bytes());
    let operands = [&2u64.to_be_bytes()[..], &[0; 8]].concat();
    one.post(&driver, FETCH_ADD, 0, &[&remote(to, key), &operands, &data(key, from, 8)]);
    cq.expect(&driver, REQUEST);
    assert_eq!(driver.peek(to, 8), 42u64.to_ne_bytes());
    assert_eq!(driver.peek(from, 8), 40u64.to_ne_bytes());
}

#[test]
fn datagrams_find_queue_pairs_by_lid() {
    let mut driver = Driver::new("ud");
    let (eqn, _) = eq(&mut driver, 0);
    let mut cq = cq(&mut driver, eqn);
    let pd = driver.create(verbs::ALLOC_PD, vec![0; 16]);
    let key = physical_key(&mut driver, pd);
    let mut one = qp(&mut driver, 2, pd, &cq);
    one.open(&mut driver, 0x1111);
    let (from, to) = (driver.page(), driver.page());
    driver.poke(from, b"datagram");
    one.post_receive(&driver, key, to, 256);
    let mut address = vec![0; 48];
    address[..4].copy_from_slice(&0x1111u32.to_be_bytes());
    address[8..12].copy_from_slice(&(1 << 31 | one.number).to_be_bytes());
    address[14..16].copy_from_slice(&driver.lid.to_be_bytes());
    one.post(&driver, SEND, 0, &[&address, &data(key, from, 8)]);
    let mut seen =
        [driver.poll("one", || cq.poll(&driver)), driver.poll("two", || cq.poll(&driver))];
    seen.sort_by_key(|entry| entry[63]);
    let [sent, received] = seen;
    assert_eq!((sent[63] >> 4, received[63] >> 4), (REQUEST, RESPONSE_SEND));
    assert_eq!(word(&received, 0x2c), 48, "the payload behind the place of a GRH");
    assert_eq!(word(&received, 0x18) & 0xff_ffff, one.number);
    assert_eq!(received[0x16..0x18], driver.lid.to_be_bytes(), "from our own LID");
    assert_eq!(driver.peek(to + 40, 8), b"datagram");
}

/// Events in the ring that tell of completions at `cqn`.
fn told(driver: &Driver, ring: u64, cqn: u32) -> usize {
    let entries = (0..64).map(|index| driver.peek(ring + index * 64, 64));
    entries.filter(|entry| (entry[63], entry[1], word(entry, 0x38)) == (0, 0, cqn)).count()
}

#[test]
fn an_armed_queue_tells_once() {
    let Pair { mut driver, ring, mut cq, key, mut one, .. } = pair("armed");
    let to = driver.page();
    let write = |driver: &Driver, cq: &mut verbs::Cq, one: &mut Qp| {
        one.post(driver, WRITE, 0, &[&remote(to, key), &inline(b"x")]);
        cq.expect(driver, REQUEST);
    };
    write(&driver, &mut cq, &mut one);
    assert_eq!(told(&driver, ring, cq.number), 0, "nobody asked");
    driver.arm_cq(cq.number, cq.consumed());
    write(&driver, &mut cq, &mut one);
    write(&driver, &mut cq, &mut one);
    // The event is written right behind the entry that the write waited for.
    driver.poll("the event", || (told(&driver, ring, cq.number) == 1).then_some(()));
    driver.arm_cq(cq.number, cq.consumed() - 1);
    assert_eq!(told(&driver, ring, cq.number), 2, "one that was not seen tells at once");
    let before = driver.machine.interrupts.lock().unwrap().len();
    driver.arm_eq(0, 0);
    assert_eq!(driver.machine.interrupts.lock().unwrap().len(), before + 1);
}

#[test]
fn wrong_requests_end_their_queue_pair_alone() {
    let Pair { mut driver, mut cq, key, mut one, mut two, .. } = pair("wrong");
    one.post_receive(&driver, key, 0x20_0000, 64);
    one.post(&driver, 0x3f, 0, &[]);
    cq.expect(&driver, RESPONSE_ERROR);
    let entry = cq.expect(&driver, REQUEST_ERROR);
    assert_eq!(entry[0x37], 2, "local queue pair operation error");
    assert_eq!(one.state(&mut driver), 6);
    assert_eq!(two.state(&mut driver), 3);
    // Posting in the error state tells nobody, and is flushed all the same.
    one.post_receive(&driver, key, 0x20_0000, 64);
    assert_eq!(cq.expect(&driver, RESPONSE_ERROR)[0x37], 5);
    two.post(&driver, SEND, 0, &[&data(key + 1, 0x20_0000, 8)]);
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], 4, "local protection error");
}

#[test]
fn objects_in_use_stay_and_unknown_ones_are_refused() {
    let Pair { mut driver, cq, pd, one, two, .. } = pair("objects");
    assert_eq!(driver.status(0x401, about(cq.number)), BAD_RESOURCE_STATE);
    assert_eq!(driver.status(0x801, about(pd)), BUSY);
    assert_eq!(driver.status(0x501, about(0xff_fff0)), BAD_RESOURCE);
    assert_eq!(driver.status(0x502, about(one.number)), BAD_QP_STATE, "it is past RESET");
    assert_eq!(driver.status(0x100, about(0x4000)), 0);
    let mut unknown = about(0);
    field(&mut unknown, 0x30, 16, 0x66);
    assert_eq!(driver.status(0x100, unknown), BAD_PARAMETER);
    two.to_error(&mut driver);
    for qpn in [one.number, two.number] {
        driver.command(0x501, about(qpn), 16);
    }
    driver.command(0x401, about(cq.number), 16);
}

/// The order in which a driver brings the function up and down, and that nothing is left of what
/// was there before.
#[test]
fn the_function_is_enabled_initialized_torn_down_and_disabled() {
    const DISABLE: u16 = 0x105;
    const QUERY_CAPS: u16 = 0x100;
    let Pair { mut driver, key, mut one, .. } = pair("stages");
    let to = driver.page();
    assert_eq!(driver.status(INIT_HCA, vec![0; 16]), BAD_SYSTEM_STATE, "twice");
    let mut forced = vec![0; 16];
    field(&mut forced, 0x50, 16, 1);
    assert_eq!(driver.status(TEARDOWN_HCA, forced), BAD_PARAMETER, "it cannot");
    driver.command(TEARDOWN_HCA, vec![0; 16], 16);
    // The request stands in memory, and nobody reads it.
    one.post(&driver, WRITE, 0, &[&remote(to, key), &inline(b"late")]);
    assert_eq!(driver.peek(to, 4), [0; 4]);
    assert_eq!(driver.status(verbs::ALLOC_PD, vec![0; 16]), BAD_SYSTEM_STATE);
    assert_eq!(driver.status(TEARDOWN_HCA, vec![0; 16]), BAD_SYSTEM_STATE);
    assert_eq!(driver.status(QUERY_CAPS, vec![0; 16]), 0);
    driver.init();
    assert_eq!(driver.status(0x50b, about(one.number)), BAD_RESOURCE);
    assert_eq!(driver.create(verbs::ALLOC_PD, vec![0; 16]), 1, "numbers begin anew");
    driver.command(DISABLE, vec![0; 16], 16);
    assert_eq!(driver.status(QUERY_CAPS, vec![0; 16]), BAD_SYSTEM_STATE);
    assert_eq!(driver.status(INIT_HCA, vec![0; 16]), BAD_SYSTEM_STATE);
    driver.command(ENABLE_HCA, vec![0; 16], 16);
    driver.init();
    // A driver that finds another's leavings begins without them.
    driver.create(verbs::ALLOC_PD, vec![0; 16]);
    driver.command(ENABLE_HCA, vec![0; 16], 16);
    driver.init();
    assert_eq!(driver.create(verbs::ALLOC_PD, vec![0; 16]), 1);
}

#[test]
fn two_functions_are_one_subnet() {
    let port = std::net::UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let name_suffix = Some(format!("mlx5-subnet-{port}"));
    let options = registry::Options { port, name_suffix };
    let mut ends = ["left", "right"].map(|name| {
        let mut driver = Driver::on(name, &options);
        let (eqn, _) = eq(&mut driver, 0);
        let cq = cq(&mut driver, eqn);
        let pd = driver.create(verbs::ALLOC_PD, vec![0; 16]);
        let key = physical_key(&mut driver, pd);
        let qp = qp(&mut driver, 0, pd, &cq);
        (driver, cq, key, qp)
    });
    let names = ends.each_ref().map(|(driver, _, _, qp)| (driver.lid, qp.number));
    for (end, peer) in ends.iter_mut().zip([names[1], names[0]]) {
        end.3.connect(&mut end.0, peer.0, peer.1);
    }
    let [(left, left_cq, left_key, one), (right, _, right_key, _)] = &mut ends;
    let (from, to) = (left.page(), right.page());
    left.poke(from, b"over the wire");
    one.post(left, WRITE, 0, &[&remote(to, *right_key), &data(*left_key, from, 13)]);
    left_cq.expect(left, REQUEST);
    assert_eq!(right.peek(to, 13), b"over the wire");
}
