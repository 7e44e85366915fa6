//! WRITEs and READs between two queue pairs of one device, which go from memory to memory: nothing
//! else about them changes, and what was taken back is touched no more.

mod ends;

use dmabuf::{AttachRequest, Hold, LocalControls, Placement, Storage, memfd_name};
use ends::{End, RIGHTS, options, registration};
use hca::*;
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::{MemfdFlags, SealFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use transport::Counter;
use umem::{AccessFlags, DmabufRange, Umem};

const MIB: usize = 1 << 20;

/// Whether requests may go directly.
const WAYS: [bool; 2] = [true, false];

/// Two ends of one device.
fn two(directly: bool) -> (End, End) {
    let options = options();
    let a = match directly {
        true => End::beside("home", &options, QpType::Rc),
        false => End::new("home", &options, QpType::Rc),
    };
    let b = a.another();
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

fn went_directly(end: &End) -> u64 {
    end.counted(Counter::DirectRequests)
}

fn post(end: &End, op: SendOp, payload: Payload) {
    let (wr_id, flags, datagram) = (1, SendFlags::SIGNALED, None);
    let wr = SendWr { wr_id, op, payload, flags, datagram, xrc_srqn: 0 };
    end.qp.post_send(&mut [Ok(wr)].into_iter()).unwrap();
}

fn paint(buffer: &mut [u8], seed: usize) {
    for (i, byte) in buffer.iter_mut().enumerate() {
        *byte = (i * 31 + (i >> 8) * 7 + seed) as u8;
    }
}

fn reset(end: &End) {
    end.qp.modify(&QpAttr { qp_state: QpState::Reset, ..end.qp.query() }, AttrMask::STATE).unwrap();
}

#[test]
fn bytes_of_all_lengths_and_places_arrive() {
    for directly in WAYS {
        let (mut a, b) = two(directly);
        let mut requests = 0;
        let lengths = [1, 2, 7, 8, 9, 511, 513, 4095, 4096, 4097, 65_537, 300_001, MIB];
        for (round, length) in lengths.into_iter().enumerate() {
            for (from, to) in [(0, 0), (3, 8), (8, 5), (1, 1)] {
                paint(&mut a.buffer[..2 * MIB], round + from + 1);
                let expected = a.buffer[from..from + length].to_vec();
                let before = (b.buffer[MIB + to - 1], b.buffer[MIB + to + length]);
                a.post(SendOp::Write(b.remote((MIB + to) as u64)), from, length as u32);
                assert_eq!(a.completion().status, WcStatus::Success);
                assert!(b.buffer[MIB + to..][..length] == expected, "{length} {from} {to}");
                assert_eq!((b.buffer[MIB + to - 1], b.buffer[MIB + to + length]), before);
                a.post(SendOp::Read(b.remote((MIB + to) as u64)), 2 * MIB + from, length as u32);
                assert_eq!(a.completion().status, WcStatus::Success);
                assert!(a.buffer[2 * MIB + from..][..length] == expected, "{length} {from} {to}");
                requests += 2;
            }
        }
        assert_eq!(went_directly(&a), if directly { requests } else { 0 });
        assert_eq!(a.counted(Counter::RingPackets), 0, "nor by any packet");
    }
}

/// The bytes of a request are in four places, or come with it.
#[test]
fn lists_and_inline_data_arrive() {
    let (mut a, b) = two(true);
    paint(&mut a.buffer, 5);
    for length in [40_u32, 4000, 5000, 70_000] {
        let at = |i: usize| i * 100_003;
        let entries = (0..4).map(|i| a.sge(at(i), length / 4)).collect();
        let payload = Payload::Gather(entries);
        post(&a, SendOp::Write(b.remote(9)), payload);
        assert_eq!(a.completion().byte_len, length);
        let part = length as usize / 4;
        for i in 0..4 {
            assert!(b.buffer[9 + i * part..][..part] == a.buffer[at(i)..][..part]);
        }
    }
    post(&a, SendOp::Write(b.remote(77)), Payload::Inline(vec![3; 33].into()));
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(b.buffer[77..110], [3; 33]);
    assert_eq!(went_directly(&a), 5);
}

/// A queue pair that is connected to itself is its own peer.
#[test]
fn a_queue_pair_reaches_itself() {
    let mut a = End::beside("home", &options(), QpType::Rc);
    a.connect(&a);
    paint(&mut a.buffer[..MIB], 1);
    for length in [8, 100_000] {
        a.post(SendOp::Write(a.remote(2 << 20)), 0, length);
        assert_eq!(a.completion().status, WcStatus::Success);
        assert!(a.buffer[2 * MIB..].starts_with(&a.buffer[..length as usize]));
    }
    assert_eq!(went_directly(&a), 2);
    a.qp.modify(&QpAttr { access: Access::empty(), ..a.qp.query() }, AttrMask::ACCESS_FLAGS)
        .unwrap();
    a.post(SendOp::Write(a.remote(2 << 20)), 0, 8);
    // Its own refusal ends it.
    assert_ne!(a.completion().status, WcStatus::Success);
    assert_eq!(went_directly(&a), 2);
}

/// Where source and target are the same memory, a short request leaves in the target what the
/// source held; a long one is as packets make it.
#[test]
fn memory_may_lie_over_itself() {
    let mut a = End::beside("home", &options(), QpType::Rc);
    a.connect(&a);
    for (length, by) in [(8, 3), (4096, 1), (600_000, 5), (600_000, 599_999), (MIB, MIB)] {
        for (from, to) in [(0, by), (by, 0)] {
            for op in [SendOp::Write as fn(Remote) -> SendOp, SendOp::Read] {
                paint(&mut a.buffer[..4096 + 3], by + 3);
                let expected = a.buffer[from..][..length].to_vec();
                let before = went_directly(&a);
                let (here, there) = match op(a.remote(0)) {
                    SendOp::Write(_) => (from, to),
                    _ => (to, from),
                };
                a.post(op(a.remote(there as u64)), here, length as u32);
                assert_eq!(a.completion().status, WcStatus::Success);
                let directly = length <= 4096 || by >= length;
                let found = &a.buffer[to..][..length];
                assert!(!directly || found == expected, "{length} from {from} to {to}");
                assert_eq!(went_directly(&a) - before, u64::from(directly), "{length} {by}");
            }
        }
    }
}

/// Both hold their own lock, and want at the other's memory.
#[test]
fn two_threads_write_to_each_other() {
    let (a, b) = two(true);
    std::thread::scope(|scope| {
        for (from, to) in [(&a, &b), (&b, &a)] {
            scope.spawn(move || {
                for round in 0..2000 {
                    let length = if round % 4 == 0 { 300_000 } else { 8 };
                    from.post(SendOp::Write(to.remote(1 << 20)), 0, length);
                    assert_eq!(from.completion().status, WcStatus::Success);
                    from.post(SendOp::Read(to.remote(0)), 2 << 20, length);
                    assert_eq!(from.completion().status, WcStatus::Success);
                }
            });
        }
    });
    assert_eq!(went_directly(&a), 8000, "none was in the way of another");
}

/// What a request counts at both ends, and on the way to both memories.
fn counted(directly: bool, write: bool, length: u32) -> Vec<u64> {
    let (a, b) = two(directly);
    let op = |at| if write { SendOp::Write(b.remote(at)) } else { SendOp::Read(b.remote(at)) };
    a.post(op(64), 64, length);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(went_directly(&a), u64::from(directly));
    let reader = a.device.directory().reader().unwrap();
    let traffic = |end: &End| {
        let entry = reader.qps().into_iter().find(|qp| qp.number == end.qp.number()).unwrap();
        [entry.tx_bytes, entry.rx_bytes]
    };
    let route = |end: &End| {
        let umem = end.mr.umem().unwrap();
        let route = &umem.segments()[0].route;
        [route.read_bytes(), route.written_bytes()]
    };
    let counters =
        [Counter::SentBytes, Counter::RcvdBytes, Counter::RxWriteRequests, Counter::RxReadRequests]
            .map(|counter| a.counted(counter));
    [&counters[..], &traffic(&a), &traffic(&b), &route(&a), &route(&b)].concat()
}

#[test]
fn it_counts_as_by_packets() {
    for write in [true, false] {
        for length in [1, 8, 4096, 5001] {
            let [direct, packets] = WAYS.map(|directly| counted(directly, write, length));
            assert_eq!(direct, packets, "{write} {length}");
        }
    }
}

/// Makes something wrong at either end, and says where the request goes.
type Prepare<'a> = dyn Fn(&End, &End) -> Remote + 'a;

/// How a request to `remote` fares after `prepare`, and whether it changed a byte there.
fn outcome(
    directly: bool,
    op: fn(Remote) -> SendOp,
    prepare: &Prepare<'_>,
) -> (WcStatus, bool, QpState, QpState) {
    let (mut a, mut b) = two(directly);
    a.buffer.fill(7);
    b.buffer.fill(9);
    let remote = prepare(&a, &b);
    a.post(op(remote), 0, 5000);
    let status = a.completion().status;
    let changed = b.buffer.iter().any(|byte| *byte != 9);
    (status, changed, a.qp.query().qp_state, b.qp.query().qp_state)
}

#[test]
fn what_is_refused_is_refused_as_by_packets() {
    let size = 4 << 20;
    let no_right = |end: &End, access| {
        end.mr.rereg(None, None, Some(access)).unwrap();
        end.device.settle_requests();
        end.remote(0)
    };
    let flaws: [&Prepare<'_>; 12] = [
        &|_, b| b.remote(0),
        &|_, b| Remote { rkey: b.mr.key() ^ 1, ..b.remote(0) },
        &|_, b| Remote { rkey: b.mr.key() ^ 0x100, ..b.remote(0) },
        &|_, b| b.remote(size - 4999),
        &|_, b| Remote { addr: b.remote(0).addr - 1, ..b.remote(0) },
        &|_, b| Remote { addr: u64::MAX - 8, ..b.remote(0) },
        &|_, b| no_right(b, Access::LOCAL_WRITE | Access::REMOTE_READ),
        &|_, b| no_right(b, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        &|_, b| {
            b.mr.rereg(Some(&b.device.alloc_pd().unwrap()), None, None).unwrap();
            b.remote(0)
        },
        &|_, b| {
            let remote = b.remote(0);
            b.mr.dereg().unwrap();
            remote
        },
        &|_, b| {
            let attr = QpAttr { access: Access::REMOTE_READ, ..b.qp.query() };
            b.qp.modify(&attr, AttrMask::ACCESS_FLAGS).unwrap();
            b.remote(0)
        },
        &|a, b| {
            a.mr.dereg().unwrap();
            b.remote(0)
        },
    ];
    for (number, flaw) in flaws.into_iter().enumerate() {
        for op in [SendOp::Write as fn(Remote) -> SendOp, SendOp::Read] {
            let [direct, packets] = WAYS.map(|directly| outcome(directly, op, flaw));
            assert_eq!(direct, packets, "flaw {number}");
            assert_eq!(direct.0 == WcStatus::Success, direct.2 == QpState::Rts);
        }
    }
}

/// Memory windows, pages on demand and what else is not plain goes by packets.
#[test]
fn what_is_not_plain_goes_by_packets() {
    let (a, b) = two(true);
    let window = b.device.alloc_mw(&b.pd, MwType::Two).unwrap();
    let bind = Bind {
        window: window.key(),
        key: window.key() ^ 5,
        region: b.mr.key(),
        addr: b.remote(0).addr,
        len: 4096,
        access: (Access::REMOTE_WRITE | Access::REMOTE_READ).bits(),
    };
    b.post(SendOp::BindMw(bind), 0, 0);
    assert_eq!(b.completion().status, WcStatus::Success);
    a.post(SendOp::Write(Remote { rkey: bind.key, ..b.remote(0) }), 0, 8);
    assert_eq!(a.completion().status, WcStatus::Success);
    a.post(SendOp::WriteImm(b.remote(0), 5), 0, 0);
    assert_eq!(went_directly(&a), 0);
}

/// A thread pounds memory until its queue pair fails; meanwhile `take_back` takes it away.
fn taken_back(rounds: u32, write: bool, take_back: &dyn Fn(&mut End)) -> u32 {
    let mut successes = 0;
    for round in 0..rounds {
        let (a, mut b) = two(true);
        let remote = b.remote(0);
        b.buffer.fill(0);
        let (begun, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (shown, done) = std::thread::scope(|scope| {
            let (a, begun, is_over) = (&a, &begun, &is_over);
            let pounder = scope.spawn(move || {
                let (mut done, mut late) = (0, 0);
                loop {
                    late += u32::from(is_over.load(Relaxed));
                    assert!(late < 100, "it succeeds all the same");
                    let op = if write { SendOp::Write(remote) } else { SendOp::Read(remote) };
                    a.post(op, 0, MIB as u32);
                    if a.completion().status != WcStatus::Success {
                        let shown = a.buffer[..MIB].contains(&0xff);
                        return (shown, done);
                    }
                    done += 1;
                    begun.store(true, Relaxed);
                }
            });
            while !begun.load(Relaxed) {
                std::hint::spin_loop();
            }
            (0..round * 2000).for_each(|_| std::hint::spin_loop());
            take_back(&mut b);
            b.buffer[..MIB].fill(0xff);
            is_over.store(true, Relaxed);
            pounder.join().unwrap()
        });
        assert!(b.buffer[..MIB].iter().all(|byte| *byte == 0xff), "written in round {round}");
        assert!(!shown, "read in round {round}");
        successes += done;
    }
    successes
}

#[test]
fn what_was_taken_back_is_touched_no_more() {
    let reregister = |b: &mut End, access: Option<Access>, pd: bool| {
        let pd = pd.then(|| b.device.alloc_pd().unwrap());
        b.mr.rereg(pd.as_ref(), None, access).unwrap();
        b.device.settle_requests();
    };
    let ways: [&(dyn Fn(&mut End) + Sync); 7] = [
        &|b| b.mr.dereg().unwrap(),
        &|b| reregister(b, Some(Access::LOCAL_WRITE), false),
        &|b| reregister(b, None, true),
        &|b| {
            let attr = QpAttr { access: Access::empty(), ..b.qp.query() };
            b.qp.modify(&attr, AttrMask::ACCESS_FLAGS).unwrap();
        },
        &|b| {
            let attr = QpAttr { qp_state: QpState::Err, ..b.qp.query() };
            b.qp.modify(&attr, AttrMask::STATE).unwrap();
        },
        &|b| reset(b),
        &|b| b.qp.destroy(),
    ];
    // At once: who is not answered any more waits for that.
    std::thread::scope(|scope| {
        for way in ways {
            for write in [true, false] {
                scope.spawn(move || assert!(taken_back(4, write, way) > 0));
            }
        }
    });
}

/// Its memory becomes other memory under the same key, and then nothing.
#[test]
fn new_memory_under_the_key_is_reached_at_once() {
    let (mut a, b) = two(true);
    let other = vec![0_u8; 4 * MIB];
    a.buffer.fill(6);
    a.post(SendOp::Write(b.remote(0)), 0, 8);
    assert_eq!(a.completion().status, WcStatus::Success);
    let addr = other.as_ptr() as u64;
    b.mr.rereg(None, Some((registration(&other), addr)), Some(RIGHTS)).unwrap();
    a.post(SendOp::Write(Remote { addr, ..b.remote(0) }), 0, MIB as u32);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert!(other[..MIB].iter().all(|byte| *byte == 6) && b.buffer[8] == 0);
    assert_eq!(went_directly(&a), 2);
}

/// Order with messages: a WRITE behind a SEND that nobody takes waits, and a SEND finds the WRITE
/// before it.
#[test]
fn requests_are_done_in_their_order() {
    let (mut a, b) = two(true);
    let receive = || {
        let wr = RecvWr { wr_id: 9, scatter: [b.sge(3 << 20, 8)].into_iter().collect() };
        b.qp.post_recv(&mut [Ok(wr)].into_iter()).unwrap();
    };
    for round in 1..100_u8 {
        let length = if round % 2 == 0 { 8 } else { 200_000 };
        a.buffer[..length as usize].fill(round);
        a.post(SendOp::Send, 0, 8);
        a.post(SendOp::Write(b.remote(0)), 0, length);
        for _ in 0..20 {
            assert_eq!(a.cq.poll(1, &mut |_| ()).unwrap(), 0);
        }
        assert!(b.buffer[length as usize - 1] != round, "it overtook the message");
        receive();
        receive();
        for _ in 0..2 {
            assert_eq!(a.completion().status, WcStatus::Success);
        }
        a.post(SendOp::Write(b.remote(1 << 20)), 0, length);
        a.post(SendOp::Send, 0, 8);
        for _ in 0..2 {
            assert_eq!(b.completion().status, WcStatus::Success);
            assert_eq!(a.completion().status, WcStatus::Success);
        }
        assert_eq!(b.buffer[MIB + length as usize - 1], round);
    }
    assert!(went_directly(&a) >= 99);
}

/// Others get their turn meanwhile.
#[test]
fn a_long_request_is_done_in_parts() {
    let (a, b) = two(true);
    a.device.pause(std::time::Instant::now() + std::time::Duration::from_secs(10));
    a.post(SendOp::Write(b.remote(0)), 0, 4 << 20);
    let mut done = 0;
    a.cq.poll(0, &mut |_| done += 1).unwrap();
    assert_eq!((done, went_directly(&a)), (0, 0));
    assert_eq!(a.completion().byte_len, 4 << 20);
    assert_eq!(went_directly(&a), 1);
    a.device.resume();
}

/// Devices of one process have keys of their own.
#[test]
fn two_devices_of_a_process_send_packets() {
    let options = options();
    let (a, b) =
        (End::beside("one", &options, QpType::Rc), End::beside("two", &options, QpType::Rc));
    a.connect(&b);
    b.connect(&a);
    a.post(SendOp::Write(b.remote(0)), 0, 8);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(went_directly(&a), 0);
}

/// A software GPU's buffer of a mebibyte, and a region over it at both the device and `end`.
fn on_gpu(end: &mut End, id: u64) -> Arc<Storage> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let data = rustix::fs::memfd_create(memfd_name(id), flags).unwrap();
    rustix::fs::ftruncate(&data, MIB as u64).unwrap();
    rustix::fs::fcntl_add_seals(&data, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let platform = pcie::Platform::default();
    let function = platform.named("peerdma0").unwrap();
    let gpu = platform.named("gpu0").unwrap().address;
    let storage = Storage::create(data, MIB as u64, id, gpu, Placement::Vram).unwrap();
    let storage = Arc::new(storage);
    storage.share();
    let fd = storage.data().as_fd().as_raw_fd();
    let range = DmabufRange { fd, offset: 0, len: MIB as u64, iova: 0 };
    let request = AttachRequest { function, platform: &platform };
    let controls = LocalControls::default();
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
    let umem = Umem::from_dmabuf(&range, &controls, access, &request, Hold::Dynamic).unwrap();
    end.mr = end.device.reg_mr(&end.pd, umem, 0, RIGHTS).unwrap();
    storage
}

/// And moves between two requests.
#[test]
fn a_gpus_memory_is_reached_where_it_is() {
    let (mut a, mut b) = two(true);
    let (from, to) = (on_gpu(&mut a, 0xa11), on_gpu(&mut b, 0xb22));
    let mut places = [Placement::Vram, Placement::Vram];
    for (round, length) in [8, 4096, 4097, MIB as u32].into_iter().cycle().take(32).enumerate() {
        let byte = round as u8 + 1;
        from.memory(places[0]).unwrap().fill(byte).unwrap();
        to.memory(places[1]).unwrap().fill(0).unwrap();
        let sge = Sge { addr: 0, length, lkey: a.mr.key() };
        let ask = |op| {
            post(&a, op, Payload::Gather([sge].into_iter().collect()));
            assert_eq!(a.completion().status, WcStatus::Success);
        };
        let remote = Remote { addr: 0, rkey: b.mr.key() };
        ask(SendOp::Write(remote));
        let mut found = vec![0; MIB];
        to.memory(places[1]).unwrap().source().read(&mut found).unwrap();
        let (moved, rest) = found.split_at(length as usize);
        assert!(moved.iter().all(|b| *b == byte) && rest.iter().all(|b| *b == 0), "{length}");
        let before = went_directly(&a);
        ask(SendOp::Read(remote));
        assert_eq!(went_directly(&a), before + 1, "what had moved is known now");
        let end = round % 2;
        places[end] = match places[end] {
            Placement::Vram => Placement::Host,
            _ => Placement::Vram,
        };
        let storage = [&from, &to][end];
        assert_eq!(storage.move_to(places[end], None, Duration::ZERO), Ok(true));
    }
}
