//! Operations of a reliable connection, both ways at once, over networks that lose up to 30 % of
//! packets. Memory is compared byte for byte; completions come exactly once, in posting order.

use crate::support::{Faults, Pair, Region, Rng, Setup, send_wr};
use std::time::Duration;
use transport::values::*;

/// What one request must have brought about.
enum Expect {
    /// Bytes in a region of the far node.
    Remote(Region, u64, Vec<u8>),
    /// Bytes in the requester's list of pieces.
    Local(Vec<(u64, u32)>, Vec<u8>),
    /// A message at the receiver.
    Message(Vec<u8>, WcFlags, u32),
    /// RDMA WRITE with immediate.
    RemoteImm(Region, u64, Vec<u8>, u32),
    /// The result of the n-th fetch-and-add on the shared counter.
    Count(u64),
    /// A compare-and-swap on an own word: old value returned, new value there.
    Swap(Region, u64, u64, u64),
}

struct Job {
    wr: SendWr,
    signaled: bool,
    expect: Expect,
}

/// Cuts `len` bytes of `region` from `at` on into up to five pieces.
fn pieces(rng: &mut Rng, at: u64, len: u32) -> Vec<(u64, u32)> {
    let mut pieces = Vec::new();
    let (mut at, mut left) = (at, len);
    while left > 0 && pieces.len() < 4 {
        let here = rng.range(0, left.into()) as u32;
        pieces.push((at, here));
        at += u64::from(here);
        left -= here;
    }
    pieces.push((at, left));
    pieces
}

fn sges(region: &Region, pieces: &[(u64, u32)]) -> Vec<Sge> {
    pieces.iter().map(|(at, len)| region.sge(*at, *len)).collect()
}

fn jobs(pair: &mut Pair, me: usize, count: u64, max_len: u64) -> (Vec<Job>, Region) {
    let size = count * (max_len + 8);
    let own = pair.nodes[me].register(size);
    let far = pair.nodes[1 - me].register(size + 8);
    let fill = pair.rng.bytes(size as usize);
    own.set(0, &fill);
    let fill = pair.rng.bytes(size as usize);
    far.set(0, &fill);
    far.set(size, &[0; 8]);
    let counter = size;
    let mut adds = 0;
    let mut jobs = Vec::new();
    for id in 0..count {
        let rng = &mut pair.rng;
        let at = id * (max_len + 8);
        let len = match rng.range(0, 3) {
            0 => rng.range(0, 16.min(max_len)),
            _ => rng.range(0, max_len),
        } as u32;
        let parts = pieces(rng, at, len);
        let bytes = own.get(at, len as usize);
        let imm = rng.next() as u32;
        let (op, expect) = match rng.range(0, 6) {
            0 => (SendOp::Send, Expect::Message(bytes, WcFlags::empty(), 0)),
            1 => (SendOp::SendImm(imm), Expect::Message(bytes, WcFlags::WITH_IMM, imm)),
            2 => (SendOp::Write(far.remote(at)), Expect::Remote(far.clone(), at, bytes)),
            3 => (
                SendOp::WriteImm(far.remote(at), imm),
                Expect::RemoteImm(far.clone(), at, bytes, imm),
            ),
            4 => {
                let bytes = far.get(at, len as usize);
                (SendOp::Read(far.remote(at)), Expect::Local(parts.clone(), bytes))
            }
            5 => {
                adds += 1;
                (SendOp::FetchAdd { remote: far.remote(counter), add: 1 }, Expect::Count(adds - 1))
            }
            _ => {
                let word = at.next_multiple_of(8);
                let compare = far.word(word);
                let swap = rng.next();
                let remote = far.remote(word);
                (
                    SendOp::CompareSwap { remote, compare, swap },
                    Expect::Swap(far.clone(), word, compare, swap),
                )
            }
        };
        let atomic = matches!(op, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
        let parts = if atomic { vec![(at, 8)] } else { parts };
        let mut wr = send_wr(id, op.clone(), &sges(&own, &parts));
        let inline = matches!(op, SendOp::Send | SendOp::Write(_) | SendOp::WriteImm(..));
        if inline && len <= 512 && rng.chance(30) {
            wr.payload = Payload::Inline(own.get(at, len as usize).into());
        }
        let signaled = rng.chance(60) || id + 1 == count;
        wr.flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        if rng.chance(10) {
            wr.flags |= SendFlags::FENCE;
        }
        jobs.push(Job { wr, signaled, expect });
    }
    (jobs, own)
}

fn check(
    pair: &Pair,
    me: usize,
    jobs: &[Job],
    own: &Region,
    inbox: &Region,
    slot: u64,
    context: &str,
) {
    let sent = &pair.nodes[me].told.sent;
    let due: Vec<u64> = jobs.iter().filter(|job| job.signaled).map(|job| job.wr.wr_id).collect();
    let came: Vec<u64> = sent.iter().map(|done| done.wr_id).collect();
    assert_eq!(came, due, "completions exactly once and in order, {context}");
    assert!(sent.iter().all(|done| done.status == WcStatus::Success), "{context}");
    let mut received = pair.nodes[1 - me].told.received.iter();
    for job in jobs {
        let context = format!("{context}, request {} {:?}", job.wr.wr_id, job.wr.op);
        match &job.expect {
            Expect::Remote(far, at, bytes) => {
                assert!(far.get(*at, bytes.len()) == *bytes, "{context}")
            }
            Expect::Local(parts, bytes) => {
                let got: Vec<u8> =
                    parts.iter().flat_map(|(at, len)| own.get(*at, *len as usize)).collect();
                assert!(got == *bytes, "{context}");
            }
            Expect::Message(bytes, flags, imm) => {
                let done = received.next().expect(&context);
                assert_eq!(done.byte_len as usize, bytes.len(), "{context}");
                assert_eq!((done.flags, done.opcode), (*flags, WcOpcode::Recv), "{context}");
                assert!(inbox.get(done.wr_id * slot, bytes.len()) == *bytes, "{context}");
                if flags.contains(WcFlags::WITH_IMM) {
                    assert_eq!(done.imm_or_key, *imm, "{context}");
                }
            }
            Expect::RemoteImm(far, at, bytes, imm) => {
                let done = received.next().expect(&context);
                assert!(far.get(*at, bytes.len()) == *bytes, "{context}");
                assert_eq!(done.opcode, WcOpcode::RecvRdmaWithImm, "{context}");
                assert_eq!(
                    (done.imm_or_key, done.byte_len as usize),
                    (*imm, bytes.len()),
                    "{context}"
                );
            }
            Expect::Count(n) => assert_eq!(own.word(job.wr.wr_id * slot), *n, "{context}"),
            Expect::Swap(far, word, old, new) => {
                assert_eq!(own.word(job.wr.wr_id * slot), *old, "{context}");
                assert_eq!(far.word(*word), *new, "{context}");
            }
        }
    }
    assert!(received.next().is_none(), "no message twice, {context}");
}

/// One run: `count` random requests each way.
/// Gives how many page faults there were.
fn run(seed: u64, faults: Faults, mtu: u32, window: u64, count: u64, max_len: u64) -> u64 {
    let context = format!("seed {seed}, {faults:?}, mtu code {mtu}, window {window}");
    println!("{context}");
    let mut rng = Rng(seed ^ 0x5eed);
    let setup = Setup {
        mtu,
        max_rd_atomic: rng.range(1, 8) as u8,
        min_rnr_timer: rng.range(1, 10) as u8,
        ..Setup::new(QpType::Rc)
    };
    let mut pair = Pair::new(&setup, window, seed, faults);
    let slot = max_len + 8;
    let (jobs0, own0) = jobs(&mut pair, 0, count, max_len);
    let (jobs1, own1) = jobs(&mut pair, 1, count, max_len);
    let inboxes = [0, 1].map(|me| pair.nodes[me].register(count * slot));
    let needs = |jobs: &[Job]| {
        let consumes = |e: &Expect| matches!(e, Expect::Message(..) | Expect::RemoteImm(..));
        jobs.iter().filter(|job| consumes(&job.expect)).count() as u64
    };
    let needed = [needs(&jobs1), needs(&jobs0)];
    let mut posted = [0, 0];
    let mut next = [0, 0];
    let due = [&jobs0, &jobs1].map(|jobs| jobs.iter().filter(|job| job.signaled).count());
    pair.run_until(Duration::from_secs(600), |pair| {
        for (me, jobs) in [&jobs0, &jobs1].into_iter().enumerate() {
            // Receives come late and few, so that the peer has to wait.
            while posted[me] < needed[me] && pair.rng.chance(30) {
                let (at, len) = (posted[me] * slot, slot as u32);
                let parts = pieces(&mut pair.rng, at, len);
                let list = sges(&inboxes[me], &parts);
                pair.nodes[me].post_recv(posted[me], &list);
                posted[me] += 1;
            }
            while next[me] < jobs.len() && pair.rng.chance(50) {
                pair.nodes[me].post_send(jobs[next[me]].wr.clone());
                next[me] += 1;
            }
        }
        (0..2).all(|me| next[me] == count as usize && pair.nodes[me].told.sent.len() >= due[me])
    });
    pair.settle();
    pair.assert_corrupted();
    check(&pair, 0, &jobs0, &own0, &inboxes[1], slot, &context);
    check(&pair, 1, &jobs1, &own1, &inboxes[0], slot, &context);
    for node in &pair.nodes {
        assert_eq!(node.qp.state(), QpState::Rts, "{context}");
    }
    pair.faulted
}

fn seeds() -> impl Iterator<Item = u64> {
    // SEED=n repeats one run, SEED=n SEEDS=k explores k of them.
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let (first, count) =
        number("SEED").map_or((1, 12), |seed| (seed, number("SEEDS").unwrap_or(1)));
    first..first + count
}

#[test]
fn perfect_network() {
    for seed in seeds() {
        run(seed, Faults::NONE, 1 + (seed % 5) as u32, 1 << 20, 60, 20_000);
    }
}

#[test]
fn lossy_network() {
    for seed in seeds() {
        let loss = [1, 5, 15, 30][(seed % 4) as usize];
        let faults = Faults { loss, ..Faults::NONE };
        run(seed, faults, 1 + (seed % 5) as u32, 128 << 10, 40, 12_000);
    }
}

#[test]
fn duplicating_network() {
    for seed in seeds() {
        let faults = Faults { duplicate: 30, ..Faults::NONE };
        run(seed, faults, 1 + (seed % 5) as u32, 64 << 10, 40, 12_000);
    }
}

#[test]
fn corrupting_network() {
    for seed in seeds() {
        let faults = Faults { corrupt: [1, 5, 15, 30][(seed % 4) as usize], ..Faults::NONE };
        run(seed, faults, 1 + (seed % 5) as u32, 128 << 10, 40, 12_000);
    }
}

#[test]
fn reordering_network() {
    for seed in seeds() {
        let faults = Faults { reorder: 10, ..Faults::NONE };
        run(seed, faults, 1 + (seed % 5) as u32, 128 << 10, 40, 12_000);
    }
}

#[test]
fn network_with_every_fault() {
    for seed in seeds() {
        run(seed, Faults::sweep(seed), 1 + (seed % 5) as u32, 8 << 10, 40, 12_000);
    }
}

/// Pages of every region go again and again, and come back when they are missed.
#[test]
fn vanishing_pages() {
    let mut faults_met = 0;
    for seed in seeds() {
        let loss = [0, 0, 1, 5][(seed % 4) as usize];
        let faults = Faults { vanish: 40, loss, ..Faults::NONE };
        faults_met += run(seed, faults, 1 + (seed % 5) as u32, 128 << 10, 40, 12_000);
    }
    assert!(faults_met > 100, "{faults_met}");
}
