//! What a driver reads of the port and of the function itself: its class, and registers
//! (`ACCESS_REG`) whose counters tell of one and the same traffic.

use crate::driver::{Pair, pair};
use crate::support::ethernet::{connect, end, gid, on_ethernet, queue, set_gid, steer};
use crate::support::numbers::{REQUEST, RESPONSE_SEND, SEND, WRITE};
use crate::support::verbs::{data, qp, remote};
use crate::support::{Driver, alone, field};
use std::time::{Duration, Instant};
use vfio_user::Function;

const ACCESS_REG: u16 = 0x805;
const QUERY_VPORT_COUNTER: u16 = 0x770;
const PAOS: u16 = 0x5006;
const PFCC: u16 = 0x5007;
const PPCNT: u16 = 0x5008;
/// Bytes of `ppcnt_reg`.
const PPCNT_LEN: usize = 0x100;
/// Lengths of a packet's parts.
const ETHERNET: u64 = 14;
const IPV4: u64 = 20;
const UDP: u64 = 8;
const LRH: u64 = 8;
const BTH: u64 = 12;
const RETH: u64 = 16;
const AETH: u64 = 4;
const ICRC: u64 = 4;
/// A WRITE of 1000 bytes, and its acknowledge, between GIDs of IPv4 addresses.
const WRITE_FRAME: u64 = ETHERNET + IPV4 + UDP + BTH + RETH + 1000 + ICRC;
const ACKNOWLEDGE_FRAME: u64 = ETHERNET + IPV4 + UDP + BTH + AETH + ICRC;
/// What is under way has arrived by then.
const SOON: Duration = Duration::from_secs(20);
/// Groups of counters.
const IEEE_802_3: u64 = 0;
const RFC_2863: u64 = 1;
const RFC_2819: u64 = 2;
const PER_PRIORITY: u64 = 0x10;
const PHYSICAL_LAYER: u64 = 0x12;
const INFINIBAND: u64 = 0x20;

/// Writes a register, or reads it with what `data` asks for.
fn register(driver: &mut Driver, number: u16, write: bool, data: &[u8]) -> Vec<u8> {
    let mut input = vec![0; 16];
    field(&mut input, 0x30, 16, u64::from(!write));
    field(&mut input, 0x50, 16, number.into());
    input.extend(data);
    driver.command(ACCESS_REG, input, 16 + data.len())[16..].to_vec()
}

/// A group of the port's counters.
struct Counters(Vec<u8>);

impl Counters {
    fn of(driver: &mut Driver, group: u64, priority: u64) -> Counters {
        let mut data = vec![0; PPCNT_LEN];
        field(&mut data, 0x8, 8, 1);
        field(&mut data, 0x1a, 6, group);
        field(&mut data, 0x3d, 3, priority);
        Counters(register(driver, PPCNT, false, &data)[8..].to_vec())
    }

    /// The counter `bit` bits from the first.
    fn at(&self, bit: usize, width: usize) -> u64 {
        let bytes = &self.0[bit / 8..(bit + width) / 8];
        bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn pair(&self, frames: usize, bytes: usize) -> (u64, u64) {
        (self.at(frames, 64), self.at(bytes, 64))
    }
}

#[test]
fn the_class_is_that_of_the_network() {
    let class = |driver: Driver| driver.function.description().identity.class >> 8;
    assert_eq!(class(Driver::new("class")), 0x0207, "an InfiniBand controller");
    assert_eq!(class(on_ethernet("class", &alone("class"))), 0x0200, "an Ethernet controller");
}

#[test]
fn what_is_settled_of_pauses_is_found_again() {
    let mut driver = on_ethernet("pauses", &alone("pauses"));
    let mut settled = vec![0; 16];
    // Of port 1: pauses sent and honoured, by all frames (pptx, pprx) and by priority (pfctx,
    // pfcrx).
    for (bit, width, value) in
        [(0x8, 8, 1), (0x40, 1, 1), (0x60, 1, 1), (0x48, 8, 0x0c), (0x68, 8, 0x30)]
    {
        field(&mut settled, bit, width, value);
    }
    let mut asked = vec![0; 16];
    field(&mut asked, 0x8, 8, 1);
    assert_eq!(register(&mut driver, PFCC, false, &asked), asked, "as after power-on");
    register(&mut driver, PFCC, true, &settled);
    assert_eq!(register(&mut driver, PFCC, false, &asked), settled);
}

/// Both ends of what one port sent and the other received, in each group that counts it.
#[test]
fn each_group_of_an_ethernet_counts_the_same_traffic() {
    let options = alone("counted");
    let mut ends = ["left", "right"].map(|name| end(name, &options));
    let macs = ends.each_ref().map(|end| end.mac);
    for (end, low) in ends.iter_mut().zip([1, 2]) {
        set_gid(&mut end.driver, gid(low), end.mac);
    }
    let [left, right] = &mut ends;
    let mut sends = queue(&mut left.driver, 0x904, 0x905, left.pd, &left.cq);
    let mut receives = queue(&mut right.driver, 0x908, 0x909, right.pd, &right.cq);
    steer(&mut right.driver, receives.number);
    let (from, to) = (left.driver.page(), right.driver.page());
    // A frame to one station, in priority 5 of VLAN 7, and one to all.
    let tagged = [&macs[1][..], &macs[0], &[0x81, 0, 0xa0, 7, 0x88, 0xb5], &[1; 182]].concat();
    let plain = [&[0xff; 6][..], &macs[0], &[0x88, 0xb5], &[2; 86]].concat();
    for frame in [&tagged, &plain] {
        receives.post_receive(&right.driver, right.key, to, 2048);
        left.driver.poke(from, frame);
        sends.post(&left.driver, SEND, 0, &[], &data(left.key, from, frame.len() as u32));
        left.cq.expect(&left.driver, REQUEST);
        right.cq.expect(&right.driver, RESPONSE_SEND);
    }
    let mut one = qp(&mut left.driver, 0, left.pd, &left.cq);
    let two = qp(&mut right.driver, 0, right.pd, &right.cq);
    connect(left, &one, two.number, gid(2), macs[1]);
    connect(right, &two, one.number, gid(1), macs[0]);
    let segments = [remote(to, right.key), data(left.key, from, 1000)];
    one.post(&left.driver, WRITE, 0, &[&segments[0], &segments[1]]);
    left.cq.expect(&left.driver, REQUEST);

    let (tagged, plain) = (tagged.len() as u64, plain.len() as u64);
    // On a busy machine the WRITE is sent again, and answered again, which may be under way still.
    let started = Instant::now();
    let (received, answered) = loop {
        let [of_left, of_right] = [&mut left.driver, &mut right.driver]
            .map(|driver| Counters::of(driver, IEEE_802_3, 0))
            .map(|counters| [counters.pair(0x0, 0x100), counters.pair(0x40, 0x140)]);
        if of_left[0] == of_right[1] && of_right[0] == of_left[1] {
            break (of_left[0], of_right[0]);
        }
        assert!(started.elapsed() < SOON, "{of_left:?} and {of_right:?} never agree");
    };
    let writes = received.0 - 2;
    assert!(writes >= 1 && answered.0 >= 1, "two frames and a WRITE, which is acknowledged");
    assert_eq!(received.1, tagged + plain + writes * WRITE_FRAME);
    assert_eq!(answered.1, answered.0 * ACKNOWLEDGE_FRAME);

    let of_interface = Counters::of(&mut right.driver, RFC_2863, 0);
    assert_eq!(of_interface.at(0x0, 64), received.1);
    assert_eq!(of_interface.at(0x40, 64), received.0 - 1, "to one station");
    assert_eq!(of_interface.at(0x280, 64), 1, "to all");
    let of_sender = Counters::of(&mut left.driver, RFC_2863, 0);
    assert_eq!((of_sender.at(0x140, 64), of_sender.at(0x300, 64)), (received.1, 1));
    assert_eq!(of_sender.at(0x180, 64), received.0 - 1);

    // Of frames as such, with the 4 bytes of their checks.
    let monitored = Counters::of(&mut right.driver, RFC_2819, 0);
    assert_eq!(monitored.pair(0x80, 0x40), (2, tagged + plain + 8));
    assert_eq!(monitored.at(0x300, 64), 1, "65 to 127 bytes");
    assert_eq!(monitored.at(0x340, 64), 1, "128 to 255 bytes");

    let fifth = Counters::of(&mut right.driver, PER_PRIORITY, 5);
    assert_eq!(fifth.pair(0x100, 0x0), (1, tagged));
    let lowest = Counters::of(&mut right.driver, PER_PRIORITY, 0);
    assert_eq!(lowest.pair(0x100, 0x0), (received.0 - 1, received.1 - tagged));
    let fifth = Counters::of(&mut left.driver, PER_PRIORITY, 5);
    assert_eq!(fifth.pair(0x240, 0x140), (1, tagged));

    // Of the transport's packets, in words of 4 bytes.
    let packets = Counters::of(&mut right.driver, INFINIBAND, 0);
    let words = writes * WRITE_FRAME / 4;
    assert_eq!((packets.at(0x100, 32), packets.at(0xc0, 32)), (writes, words));
    let packets = Counters::of(&mut left.driver, INFINIBAND, 0);
    assert_eq!((packets.at(0xe0, 32), packets.at(0xa0, 32)), (writes, words));
}

#[test]
fn an_infiniband_port_counts_packets_and_words() {
    let Pair { mut driver, mut cq, key, mut one, .. } = pair("words");
    let before = Counters::of(&mut driver, INFINIBAND, 0);
    let (from, to) = (driver.page(), driver.page());
    one.post(&driver, WRITE, 0, &[&remote(to, key), &data(key, from, 4096)]);
    cq.expect(&driver, REQUEST);
    // On a busy machine the packet is sent again, and answered again, which may be under way still.
    let started = Instant::now();
    let [packets, words] = loop {
        let now = Counters::of(&mut driver, INFINIBAND, 0);
        let grown = |bit| now.at(bit, 32) - before.at(bit, 32);
        let both = [[0xe0, 0xa0], [0x100, 0xc0]].map(|bits| bits.map(grown));
        if both[0] == both[1] {
            break both[0];
        }
        assert!(started.elapsed() < SOON, "{both:?} never agree");
    };
    // Sent again, it may be answered once for both, or its answer may be on its way.
    let (write, acknowledge) = (LRH + BTH + RETH + 4096 + ICRC, LRH + BTH + AETH + ICRC);
    let of = |writes: u64| (writes * write + (packets - writes) * acknowledge) / 4;
    assert!((1..packets).any(|writes| words == of(writes)), "{words} words, {packets} packets");
    // What Linux shows in `counters/port_xmit_data` and `port_rcv_data`, in bytes.
    let counted = driver.command(QUERY_VPORT_COUNTER, vec![0; 16], 0x210);
    let bytes = |bit: usize| Counters(counted.clone()).at(bit, 64);
    let now = Counters::of(&mut driver, INFINIBAND, 0);
    assert_eq!([bytes(0x240) / 4, bytes(0x1c0) / 4], [0xa0, 0xc0].map(|bit| now.at(bit, 32)));
    let none = Counters::of(&mut driver, IEEE_802_3, 0);
    assert!(none.0.iter().all(|byte| *byte == 0), "there are no frames");
}

#[test]
fn each_end_of_a_link_is_counted() {
    const UP: u64 = 1;
    const DOWN: u64 = 2;
    let mut driver = on_ethernet("link", &alone("link"));
    let mut set = |status: u64| {
        let mut data = vec![0; 16];
        field(&mut data, 0x8, 8, 1);
        field(&mut data, 0x14, 4, status);
        register(&mut driver, PAOS, true, &data);
        Counters::of(&mut driver, PHYSICAL_LAYER, 0).at(0x600, 32)
    };
    let counts = [UP, DOWN, DOWN, UP, DOWN].map(&mut set);
    assert_eq!(counts, [0, 1, 1, 1, 2]);
}
