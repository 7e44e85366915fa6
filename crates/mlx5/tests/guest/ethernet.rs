//! Two functions with ports on one Ethernet: frames and RoCE packets between them, as the drivers
//! of mlx5e and mlx5_ib set them up.

use crate::support::ethernet::{
    End, IN_A_VLAN, LOG_SIZE, connect, end, gid, headers, on_ethernet, queue, queue_with,
    roce_address, set_gid, steer, steer_with,
};
use crate::support::numbers::{
    BAD_PARAMETER, BAD_RESOURCE, REQUEST, REQUEST_ERROR, RESPONSE_ERROR, RESPONSE_SEND, SEND, WRITE,
};
use crate::support::verbs::{self, data, qp, remote};
use crate::support::{ALLOC_UAR, Driver, alone, field, word};
use std::time::{Duration, Instant};

const LARGE_SEND: u8 = 0x0e;
const BROADCAST: [u8; 6] = [0xff; 6];

#[test]
fn frames_go_to_who_they_are_for() {
    let options = alone("frames");
    let mut ends = ["left", "right"].map(|name| end(name, &options));
    let [left, right] = &mut ends;
    let mut sends = queue(&mut left.driver, 0x904, 0x905, left.pd, &left.cq);
    let mut receives = queue(&mut right.driver, 0x908, 0x909, right.pd, &right.cq);
    steer(&mut right.driver, receives.number);
    let pages: Vec<u64> = (0..4).map(|_| right.driver.page()).collect();
    for page in &pages {
        receives.post_receive(&right.driver, right.key, *page, 2048);
    }
    // A broadcast whose bytes are all elsewhere, short of the least length.
    let from = left.driver.page();
    let frame = [&BROADCAST[..], &left.mac, &[0x08, 0x06], b"who is there"].concat();
    left.driver.poke(from, &frame);
    sends.post(&left.driver, SEND, 0, &[], &data(left.key, from, frame.len() as u32));
    left.cq.expect(&left.driver, REQUEST);
    let entry = right.cq.expect(&right.driver, RESPONSE_SEND);
    assert_eq!(word(&entry, 0x2c), 60, "padded");
    assert_eq!(right.driver.peek(pages[0], frame.len()), frame);
    // A large send in three segments, with headers in the request.
    left.driver.poke(from, &[0x5a; 2500]);
    let headers = headers(right.mac, left.mac);
    sends.post(&left.driver, LARGE_SEND, 1000, &headers, &data(left.key, from, 2500));
    left.cq.expect(&left.driver, REQUEST);
    for (page, len) in pages[1..].iter().zip([1000, 1000, 500]) {
        let entry = right.cq.expect(&right.driver, RESPONSE_SEND);
        assert_eq!(word(&entry, 0x2c), headers.len() as u32 + len);
        assert_eq!(entry[0x1c] & 6, 6, "both checksums are right");
        assert_eq!(right.driver.peek(page + 54, 500), [0x5a; 500]);
    }
    // Without a request a frame is lost, and counted all the same.
    left.driver.poke(from, &frame);
    sends.post(&left.driver, SEND, 0, &[], &data(left.key, from, frame.len() as u32));
    left.cq.expect(&left.driver, REQUEST);
    let mut answer = vec![0; 16];
    field(&mut answer, 0, 16, 0x770);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let (_, counted) = right.driver.deliver(&answer, 528);
        if (word(&counted, 0x74), word(&counted, 0x94)) == (2, 3) {
            break;
        }
        assert!(Instant::now() < deadline, "the frames are not counted");
        std::thread::yield_now();
    }
    // What cannot be read ends its queue alone.
    sends.post(&left.driver, SEND, 0, &[], &data(left.key + 1, from, 64));
    assert_eq!(left.cq.expect(&left.driver, REQUEST_ERROR)[0x37], 4, "local protection");
}

/// A ring of requests that each become thousands of frames: whoever rang goes on, and so does who
/// wants to end it.
#[test]
fn a_ring_of_large_sends_holds_nobody_up() {
    const LOG_SIZE: u64 = 14;
    const RING: u64 = 0x30_0000;
    const LEN: u32 = 1 << 16;
    const QUERY_ISSI: u16 = 0x10a;
    let End { mut driver, cq, pd, key, mac, .. } = end("large", &alone("large"));
    let wq = 0x100 + 0x180;
    let size = [(wq + 0x11b, 5, LOG_SIZE), (wq + 0x113, 5, 8), (0x880, 64, RING)];
    let queue = queue_with(&mut driver, 0x904, 0x905, pd, &cq, &size);
    let mut request = queue.request(LARGE_SEND, 32, &headers([6; 6], mac), &data(key, 0, LEN));
    request.resize(128, 0);
    driver.poke(RING, &request.repeat(1 << (LOG_SIZE - 1)));
    driver.poke(queue.record + 4, &(1u32 << LOG_SIZE).to_be_bytes());
    let took = |what: &mut dyn FnMut(&mut Driver), driver: &mut Driver| {
        let begun = Instant::now();
        what(driver);
        begun.elapsed()
    };
    let times = [
        took(&mut |driver| driver.ring(queue.number), &mut driver),
        took(&mut |driver| drop(driver.command(QUERY_ISSI, vec![0; 16], 0x70)), &mut driver),
        took(&mut |driver| driver.ring(queue.number), &mut driver),
        took(&mut |driver| modify(driver, 0x905, queue.number, 1, 1), &mut driver),
        took(&mut |driver| driver.function.reset(), &mut driver),
    ];
    assert!(times.iter().all(|time| *time < Duration::from_secs(1)), "{times:?}");
}

/// Brings a queue to a state; both are numbers.
fn modify(driver: &mut Driver, opcode: u16, queue: u32, before: u64, after: u64) {
    let mut input = vec![0; 0x110];
    field(&mut input, 0x40, 4, before);
    field(&mut input, 0x48, 24, queue.into());
    field(&mut input, 0x108, 4, after);
    driver.command(opcode, input, 16);
}

#[test]
fn frames_come_back_to_other_transport_domains() {
    let End { mut driver, mut cq, pd, key, .. } = end("loop", &alone("loop"));
    let mut interface = vec![0; 0xc0];
    field(&mut interface, 0x100 + 0x128, 24, 1);
    let tis = driver.create(0x912, interface);
    // A queue's name for user space, and that it gives back what it does not do; the interface of
    // sends.
    let named = |name| (0x100 + 0x28, 24, name);
    let sends = [named(0x51), (0x103, 1, 1), (0x200, 16, 1), (0x268, 24, tis.into())];
    let mut sends = queue_with(&mut driver, 0x904, 0x905, pd, &cq, &sends);
    let receives = [named(0x52), (0x10d, 1, 1)];
    let mut receives = queue_with(&mut driver, 0x908, 0x909, pd, &cq, &receives);
    steer_with(&mut driver, receives.number, 2, 0x1234);
    let (from, to) = (driver.page(), driver.page());
    let frame = [&[2; 12][..], &[0x88, 0xb5], &[7; 46]].concat();
    driver.poke(from, &frame);
    for _ in 0..3 {
        receives.post_receive(&driver, key, to, 64);
    }
    sends.post(&driver, SEND, 0, &[], &data(key, from, 60));
    let received = cq.expect(&driver, RESPONSE_SEND);
    assert_eq!((word(&received, 0x20), word(&received, 0x38)), (0x52, 0x1234));
    assert_eq!(word(&cq.expect(&driver, REQUEST), 0x20), 0x51);
    assert_eq!(driver.peek(to, 60), frame);
    // The port keeps them away from now on.
    let mut vport = vec![0; 0x200];
    field(&mut vport, 0x60, 32, 1 << 11);
    field(&mut vport, 0x800 + 0x1d, 2, 1);
    driver.command(0x755, vport, 16);
    sends.post(&driver, SEND, 0, &[], &data(key, from, 60));
    cq.expect(&driver, REQUEST);
    // Queues that fail give back what waits in them.
    modify(&mut driver, 0x909, receives.number, 1, 3);
    for counter in [1, 2] {
        let entry = cq.expect(&driver, RESPONSE_ERROR);
        assert_eq!((entry[0x37], word(&entry, 0x20)), (5, 0x52));
        assert_eq!(entry[0x3c..0x3e], [0, counter]);
    }
    modify(&mut driver, 0x905, sends.number, 1, 3);
    sends.post(&driver, SEND, 0, &[], &data(key, from, 60));
    assert_eq!(cq.expect(&driver, REQUEST_ERROR)[0x37], 5);
    assert_eq!(driver.status(0x904, vec![0; 0x118]), BAD_PARAMETER, "no ring");
}

const QKEY: u32 = 0x1111;

/// An address vector.
fn address(qpn: u32, mac: [u8; 6], gid: [u8; 16], index: u32, priority: u8) -> Vec<u8> {
    let mut address = vec![0; 48];
    address[..4].copy_from_slice(&QKEY.to_be_bytes());
    address[8..12].copy_from_slice(&(1 << 31 | qpn).to_be_bytes());
    address[12] = priority << 1;
    address[20..26].copy_from_slice(&mac);
    address[27] = 9;
    address[28..32].copy_from_slice(&(1 << 30 | index << 20).to_be_bytes());
    address[32..].copy_from_slice(&gid);
    address
}

#[test]
fn queue_pairs_meet_by_hardware_address_and_gid() {
    let options = alone("roce");
    let mut ends = ["left", "right"].map(|name| end(name, &options));
    let macs = ends.each_ref().map(|end| end.mac);
    for (end, low) in ends.iter_mut().zip([1, 2]) {
        set_gid(&mut end.driver, gid(low), end.mac);
    }
    let [left, right] = &mut ends;
    let mut one = qp(&mut left.driver, 0, left.pd, &left.cq);
    let mut two = qp(&mut right.driver, 0, right.pd, &right.cq);
    connect(left, &one, two.number, gid(2), macs[1]);
    connect(right, &two, one.number, gid(1), macs[0]);
    let (from, to) = (left.driver.page(), right.driver.page());
    left.driver.poke(from, b"over the ether");
    let segments = [remote(to, right.key), data(left.key, from, 14)];
    one.post(&left.driver, WRITE, 0, &[&segments[0], &segments[1]]);
    left.cq.expect(&left.driver, REQUEST);
    assert_eq!(right.driver.peek(to, 14), b"over the ether");
    two.to_error(&mut right.driver);
    // Datagrams show who sent them, and how.
    let mut one = qp(&mut left.driver, 2, left.pd, &left.cq);
    two = qp(&mut right.driver, 2, right.pd, &right.cq);
    one.open(&mut left.driver, QKEY);
    two.open(&mut right.driver, QKEY);
    two.post_receive(&right.driver, right.key, to, 256);
    let address = address(two.number, macs[1], gid(2), 0, 0);
    one.post(&left.driver, SEND, 0, &[&address, &data(left.key, from, 14)]);
    left.cq.expect(&left.driver, REQUEST);
    let entry = right.cq.expect(&right.driver, RESPONSE_SEND);
    assert_eq!(word(&entry, 0x18), 0x1a00_0000 | one.number, "behind an IPv4 header");
    let header = right.driver.peek(to + 20, 20);
    assert_eq!(header[12..], [10, 9, 8, 1, 10, 9, 8, 2]);
    assert_eq!(header[8], 9, "its time to live");
}

/// Frames are a user's to send only where the driver granted it, by his own queue and interface.
#[test]
fn frames_are_sent_by_whom_the_driver_lets() {
    const CREATE_UCTX: u16 = 0xa04;
    const CREATE_SQ: u16 = 0x904;
    const RAW_TX: u64 = 1;
    const BAD_OPERATION: u8 = 2;
    let End { mut driver, cq: drivers, pd: drivers_pd, .. } = end("granted", &alone("granted"));
    let mut general = vec![0; 16];
    field(&mut general, 0x30, 16, 1);
    let caps = driver.command(0x100, general, 16 + 4096);
    assert_eq!(word(&caps, 16 + 0x6a0 / 8), RAW_TX as u32);
    let user = |capabilities: u64| {
        let mut input = vec![0; 0x40];
        field(&mut input, 0x80, 32, capabilities);
        input
    };
    assert_eq!(driver.status(CREATE_UCTX, user(RAW_TX | 2)), BAD_PARAMETER);
    let [granted, other] = [RAW_TX, 0].map(|may| driver.create(CREATE_UCTX, user(may)) as u16);
    let (page, record) = (driver.page(), driver.page());
    let create = |uid: u16, pd: u32, cq: u32, uar: u32| {
        let mut input = vec![0; 0x110 + 8];
        let wq = 0x100 + 0x180;
        field(&mut input, 0x10, 16, uid.into());
        field(&mut input, 0x100 + 0x48, 24, cq.into());
        field(&mut input, wq, 4, 1);
        field(&mut input, wq + 0x48, 24, pd.into());
        field(&mut input, wq + 0x68, 24, uar.into());
        field(&mut input, wq + 0x80, 64, record);
        field(&mut input, wq + 0x10c, 4, 6);
        field(&mut input, wq + 0x11b, 5, LOG_SIZE);
        field(&mut input, 0x880, 64, page);
        input
    };
    for (uid, own, drivers_cq) in [(granted, 0, BAD_RESOURCE), (other, BAD_OPERATION, 2)] {
        let mut about = vec![0; 16];
        field(&mut about, 0x10, 16, uid.into());
        let pd = driver.create(verbs::ALLOC_PD, about.clone());
        let uar = driver.create(ALLOC_UAR, about);
        let cq = verbs::user_cq(&mut driver, uid);
        assert_eq!(driver.status(CREATE_SQ, create(uid, pd, cq.number, uar)), own);
        assert_eq!(driver.status(CREATE_SQ, create(uid, pd, drivers.number, uar)), drivers_cq);
        // Whoever receives has frames that were steered to him.
        for (queue, status) in [(cq.number, 0), (drivers.number, BAD_RESOURCE)] {
            assert_eq!(driver.status(0x908, create(uid, pd, queue, uar)), status);
        }
    }
    let uar = driver.uar;
    assert_eq!(driver.status(CREATE_SQ, create(0, drivers_pd, drivers.number, uar)), 0);
}

#[test]
fn interfaces_are_in_domains_of_their_users() {
    const CREATE_UCTX: u16 = 0xa04;
    const INTERFACES: [u16; 2] = [0x900, 0x912];
    let mut driver = on_ethernet("domains", &alone("domains"));
    let [one, two] = [(); 2].map(|()| driver.create(CREATE_UCTX, vec![0; 0x40]));
    let about = |uid: u32| {
        let mut input = vec![0; 0x110];
        field(&mut input, 0x10, 16, uid.into());
        input
    };
    let domains = [one, two, 0].map(|uid| driver.create(0x816, about(uid)));
    for create in INTERFACES {
        for (domain, status) in domains.into_iter().zip([0, BAD_RESOURCE, BAD_RESOURCE]) {
            let mut input = about(one);
            field(&mut input, 0x100 + 0x128, 24, domain.into());
            assert_eq!(driver.status(create, input), status, "{create:#x} {domain}");
        }
    }
}

/// Nothing is written into a completion queue that a driver took back, and it takes none back that
/// something completes to.
#[test]
fn a_completion_queue_stays_while_a_work_queue_is_there() {
    const DESTROY_CQ: u16 = 0x401;
    const DESTROY: [u16; 2] = [0x906, 0x90a];
    const BAD_RESOURCE_STATE: u8 = 9;
    let End { mut driver, cq, pd, .. } = end("cqinuse", &alone("cqinuse"));
    let about = |number: u32| {
        let mut input = vec![0; 16];
        field(&mut input, 0x48, 24, number.into());
        input
    };
    let sends = queue(&mut driver, 0x904, 0x905, pd, &cq);
    let receives = queue(&mut driver, 0x908, 0x909, pd, &cq);
    for (queue, destroy) in [sends, receives].iter().zip(DESTROY) {
        assert_eq!(driver.status(DESTROY_CQ, about(cq.number)), BAD_RESOURCE_STATE);
        driver.command(destroy, about(queue.number), 16);
    }
    assert_eq!(driver.status(DESTROY_CQ, about(cq.number)), 0);
}

#[test]
fn a_vlan_is_an_ethernet_of_its_own() {
    let options = alone("vlan");
    let mut ends = ["left", "right"].map(|name| end(name, &options));
    let macs = ends.each_ref().map(|end| end.mac);
    for (end, low) in ends.iter_mut().zip([1, 2]) {
        set_gid(&mut end.driver, gid(low), end.mac);
        let tagged = roce_address(1, gid(low + 2), end.mac, IN_A_VLAN | 5);
        end.driver.command(0x761, tagged, 16);
    }
    let [left, right] = &mut ends;
    let mut one = qp(&mut left.driver, 2, left.pd, &left.cq);
    let mut two = qp(&mut right.driver, 2, right.pd, &right.cq);
    one.open(&mut left.driver, QKEY);
    two.open(&mut right.driver, QKEY);
    let (from, to) = (left.driver.page(), right.driver.page());
    for place in 0..2 {
        two.post_receive(&right.driver, right.key, to + place * 256, 256);
    }
    left.driver.poke(from, b"without a tag, with a tag, and so again");
    // From the wrong network to each address, then from the right ones.
    for (index, low, at, len) in [(0, 4, 0, 13), (1, 2, 0, 13), (1, 4, 15, 10), (0, 2, 0, 13)] {
        let address = address(two.number, macs[1], gid(low), index, 3);
        let data = data(left.key, from + at, len);
        one.post(&left.driver, SEND, 0, &[&address, &data]);
        left.cq.expect(&left.driver, REQUEST);
    }
    let tagged = right.cq.expect(&right.driver, RESPONSE_SEND);
    assert_eq!((tagged[0x1d] & 1, &tagged[0x1e..0x20]), (1, &[0x60, 5][..]), "priority and VLAN");
    assert_eq!(right.driver.peek(to + 40, 10), b"with a tag");
    let plain = right.cq.expect(&right.driver, RESPONSE_SEND);
    assert_eq!((plain[0x1d] & 1, &plain[0x1e..0x20]), (0, &[0, 0][..]));
    assert_eq!(right.driver.peek(to + 256 + 40, 13), b"without a tag");
    for id in [0, 0xfff] {
        let wrong = roce_address(2, gid(5), macs[0], IN_A_VLAN | id);
        assert_eq!(left.driver.status(0x761, wrong), BAD_PARAMETER, "VLAN {id}");
    }
    // The host is in no VLAN.
    let host = address(two.number, [2, 0x50, 0x44, 0x4d, 0, 0], gid(4), 1, 0);
    one.post(&left.driver, SEND, 0, &[&host, &data(left.key, from, 1)]);
    assert_eq!(left.cq.expect(&left.driver, REQUEST_ERROR)[0x37], 2);
}

#[test]
fn a_group_reaches_who_is_attached() {
    let options = alone("group");
    let mut ends = ["left", "right"].map(|name| end(name, &options));
    for (end, low) in ends.iter_mut().zip([1, 2]) {
        set_gid(&mut end.driver, gid(low), end.mac);
    }
    let mut group = gid(1);
    group[12..].copy_from_slice(&[239, 1, 2, 3]);
    let pairs = ends.each_mut().map(|end| {
        let mut pair = qp(&mut end.driver, 2, end.pd, &end.cq);
        pair.open(&mut end.driver, QKEY);
        let to = end.driver.page();
        pair.post_receive(&end.driver, end.key, to, 256);
        let mut attach = vec![0; 32];
        field(&mut attach, 0x48, 24, pair.number.into());
        attach[16..].copy_from_slice(&group);
        end.driver.command(0x806, attach.clone(), 16);
        (pair, to, attach)
    });
    let [left, right] = &mut ends;
    let [(mut one, own, _), (two, to, attach)] = pairs;
    let from = left.driver.page();
    left.driver.poke(from, b"to all of you");
    let address = address(0xff_ffff, [1, 0, 0x5e, 1, 2, 3], group, 0, 0);
    one.post(&left.driver, SEND, 0, &[&address, &data(left.key, from, 13)]);
    left.cq.expect(&left.driver, REQUEST);
    for (end, place) in [(&mut *left, own), (&mut *right, to)] {
        end.cq.expect(&end.driver, RESPONSE_SEND);
        assert_eq!(end.driver.peek(place + 40, 13), b"to all of you");
    }
    assert_ne!(two.number, one.number);
    right.driver.command(0x807, attach.clone(), 16);
    assert_ne!(right.driver.status(0x807, attach), 0, "it is not attached");
}

#[test]
fn packets_leave_from_the_port_that_is_set() {
    const STATION: [u8; 6] = [6; 6];
    let options = alone("port");
    let mut ends = ["left", "right"].map(|name| end(name, &options));
    let [left, right] = &mut ends;
    set_gid(&mut left.driver, gid(1), left.mac);
    let mut one = qp(&mut left.driver, 0, left.pd, &left.cq);
    // To a station that nobody has: its packets are frames for the other port.
    connect(left, &one, 0x77, gid(2), STATION);
    let mut input = vec![0; 0x110];
    field(&mut input, 0x48, 24, one.number.into());
    field(&mut input, 0xc0 + 0xc0 + 0x110, 16, 0xd903);
    field(&mut input, 0x840, 64, 1 << 2);
    left.driver.command(0x505, input, 16);
    let mut receives = queue(&mut right.driver, 0x908, 0x909, right.pd, &right.cq);
    steer(&mut right.driver, receives.number);
    let to = right.driver.page();
    receives.post_receive(&right.driver, right.key, to, 2048);
    let from = left.driver.page();
    one.post(&left.driver, SEND, 0, &[&data(left.key, from, 8)]);
    right.cq.expect(&right.driver, RESPONSE_SEND);
    let frame = right.driver.peek(to, 38);
    assert_eq!((&frame[..6], &frame[34..]), (&STATION[..], &[0xd9, 0x03, 0x12, 0xb7][..]));
    one.to_error(&mut left.driver);
}

#[test]
fn what_is_wrong_is_refused() {
    let mut driver = on_ethernet("refused", &alone("refused"));
    let mut version_1 = vec![0; 48];
    version_1[16] = 1;
    assert_eq!(driver.status(0x761, version_1), BAD_PARAMETER);
    assert_eq!(driver.status(0x902, vec![0; 16]), BAD_RESOURCE);
    assert_eq!(driver.status(0x908, vec![0; 0x110]), BAD_PARAMETER, "no ring");
    let mut transmit = vec![0; 64];
    field(&mut transmit, 0x80, 8, 1);
    assert_eq!(driver.status(0x930, transmit), BAD_PARAMETER, "only received frames are steered");
    let mut register = vec![0; 16 + 64];
    field(&mut register, 0x50, 16, 0x5004);
    field(&mut register, 0x30, 16, 1);
    assert_eq!(driver.status(0x805, register), BAD_PARAMETER, "speeds of InfiniBand");
}
