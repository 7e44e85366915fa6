//! What moves data asks nobody for memory: all of it was set aside when the objects were made. From
//! the first request on that a queue pair gets, to full queues both ways, no thread of the process
//! allocates anything but the registry's, which looks after its names now and then.

mod ends;

use ends::{End, options};
use hca::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The system's allocator, which counts while it is watched.
struct Counting;

static WATCHED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Size of the first.
static FIRST: AtomicUsize = AtomicUsize::new(0);

/// Whether the calling thread is the registry's.
fn is_the_registrys() -> bool {
    let mut name = [0u8; 16];
    // SAFETY: a thread's name has 16 bytes at most, its end included.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"peerdma-reg\0")
}

// SAFETY: everything is the system allocator's; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if WATCHED.load(SeqCst) && !is_the_registrys() && ALLOCATIONS.fetch_add(1, SeqCst) == 0 {
            FIRST.store(layout.size(), SeqCst);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `body`, in which nobody may allocate.
fn without_allocating(what: &str, body: impl FnOnce()) {
    ALLOCATIONS.store(0, SeqCst);
    WATCHED.store(true, SeqCst);
    body();
    WATCHED.store(false, SeqCst);
    let count = ALLOCATIONS.load(SeqCst);
    assert_eq!(count, 0, "{what}: {count} allocations, the first of {} bytes", FIRST.load(SeqCst));
}

/// As many as a queue of [`End`] takes.
const DEPTH: u64 = 64;
const LEN: u32 = 40;

/// Polls `end` until `count` more completions have come, all good.
fn complete(end: &End, count: u64) {
    (0..count).for_each(|_| assert_eq!(end.completion().status, WcStatus::Success));
}

fn scatter(end: &End, at: usize) -> SgList {
    let mut list = end.qp.scatter_list(4).unwrap();
    list.extend((0..4).map(|part| end.sge(at + part * 20, 20)));
    list
}

/// Fills the receive queue with requests of four entries each.
fn post_receives(end: &End) {
    for index in 0..DEPTH {
        let wr = RecvWr { wr_id: index, scatter: scatter(end, 1024 + index as usize * 128) };
        end.qp.post_recv(&mut [Ok(wr)].into_iter()).unwrap();
    }
}

/// Requests that fill a send queue.
struct Sends<'a> {
    op: SendOp,
    /// Lengths of the parts of each one's list.
    parts: &'a [u32],
    /// Whether every third is inline.
    inline: bool,
    datagram: Option<&'a Datagram>,
    xrc_srqn: u32,
}

/// Sends of four entries, every third inline where that can be.
fn sends(op: SendOp) -> Sends<'static> {
    let inline = !matches!(
        op,
        SendOp::Read(_) | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } | SendOp::BindMw(_)
    );
    let parts: &[u32] = match op {
        SendOp::AtomicWrite(_) => &[3, 5],
        SendOp::Flush(_) | SendOp::BindMw(_) => &[],
        _ => &[LEN / 4; 4],
    };
    Sends { op, parts, inline: inline && parts.len() == 4, datagram: None, xrc_srqn: 0 }
}

/// Fills the send queue.
fn post_sends(end: &End, sends: &Sends<'_>) {
    (0..DEPTH).for_each(|index| post_send(end, index, sends));
}

fn post_send(end: &End, index: u64, sends: &Sends<'_>) {
    let payload = if sends.inline && index.is_multiple_of(3) {
        let mut bytes = end.qp.inline_data(LEN as usize).unwrap();
        bytes.extend((0..LEN).map(|byte| byte as u8));
        Payload::Inline(bytes)
    } else {
        let mut list = end.qp.gather_list(sends.parts.len()).unwrap();
        list.extend(sends.parts.iter().enumerate().map(|(at, len)| end.sge(64 * at, *len)));
        Payload::Gather(list)
    };
    let wr = SendWr {
        wr_id: index,
        op: sends.op.clone(),
        payload,
        flags: SendFlags::SIGNALED,
        datagram: sends.datagram.cloned(),
        xrc_srqn: sends.xrc_srqn,
    };
    end.qp.post_send(&mut [Ok(wr)].into_iter()).unwrap();
}

fn pair(qp_type: QpType) -> [End; 2] {
    let options = options();
    let ends = ["one", "two"].map(|name| End::new(name, &options, qp_type));
    joined(ends)
}

fn joined(ends: [End; 2]) -> [End; 2] {
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    ends
}

/// What a queue pair does both ways at once, with full queues.
fn exchange([a, b]: &[End; 2], op: impl Fn(&End) -> SendOp, is_received: bool) {
    if is_received {
        [a, b].into_iter().for_each(post_receives);
    }
    post_sends(a, &sends(op(b)));
    post_sends(b, &sends(op(a)));
    for end in [a, b] {
        complete(end, if is_received { 2 * DEPTH } else { DEPTH });
    }
}

#[test]
fn moving_data_allocates_nothing() {
    let reliable = pair(QpType::Rc);
    for (name, op, is_received) in [
        ("SEND", (|_: &End| SendOp::Send) as fn(&End) -> SendOp, true),
        ("WRITE", |far| SendOp::Write(far.remote(1 << 20)), false),
        ("WRITE with immediate", |far| SendOp::WriteImm(far.remote(1 << 20), 7), true),
        ("READ", |far| SendOp::Read(far.remote(1 << 20)), false),
        ("FETCH_ADD", |far| SendOp::FetchAdd { remote: far.remote(1 << 21), add: 1 }, false),
        (
            "CMP_SWAP",
            |far| SendOp::CompareSwap { remote: far.remote(1 << 21), compare: 0, swap: 1 },
            false,
        ),
        ("ATOMIC_WRITE", |far| SendOp::AtomicWrite(far.remote(1 << 21)), false),
        (
            "FLUSH",
            |far| {
                let remote = far.remote(1 << 20);
                SendOp::Flush(Flush { remote, len: 4096, placement: 1, whole: false })
            },
            false,
        ),
    ] {
        for round in ["first", "second"] {
            without_allocating(&format!("RC {name}, {round}"), || {
                exchange(&reliable, op, is_received);
            });
        }
    }
    windows(&reliable);
    let _key = laid_out_keys(&reliable[0]);
    let unreliable = pair(QpType::Uc);
    without_allocating("UC SEND", || exchange(&unreliable, |_| SendOp::Send, true));
    without_allocating("UC WRITE", || {
        exchange(&unreliable, |far| SendOp::Write(far.remote(1 << 20)), false);
    });
    // Devices close in their own threads, and that may allocate: they are kept until all is over.
    let _kept = (
        datagrams(),
        shared_queues(),
        extended_connections(),
        repeated_packets(),
        tagged_buffers(),
    );
}

/// Windows that are bound, used, and invalidated by the peer.
fn windows([near, far]: &[End; 2]) {
    let window = |mw_type| far.device.alloc_mw(&far.pd, mw_type).unwrap();
    let (one, two) = (window(MwType::One), window(MwType::Two));
    let bind = |window: &Mw, tag: u64| {
        SendOp::BindMw(Bind {
            window: window.key(),
            key: window.key() & !0xff | (tag as u32 & 0xff),
            region: far.mr.key(),
            addr: far.remote(0).addr,
            len: 4096,
            access: Access::REMOTE_WRITE.bits(),
        })
    };
    without_allocating("BIND_MW", || {
        (0..DEPTH).for_each(|tag| post_send(far, tag, &sends(bind(&one, tag))));
        complete(far, DEPTH);
    });
    without_allocating("SEND with invalidate", || {
        post_receives(far);
        for tag in 0..DEPTH {
            post_send(far, tag, &sends(bind(&two, tag)));
            complete(far, 1);
            let key = two.key() & !0xff | tag as u32;
            post_send(near, tag, &sends(SendOp::SendInvalidate(key)));
            complete(near, 1);
            complete(far, 1);
        }
    });
}

/// Lays out a key over four parts of memory, again and again.
fn laid_out_keys(end: &End) -> Arc<IndirectKey> {
    let init = IndirectInit { max_entries: 4, ..IndirectInit::default() };
    let key = end.device.create_indirect_key(&end.pd, init).unwrap();
    let layout = KeyLayout::List((0..4).map(|part| end.sge(4096 * part, 64)).collect());
    let (access, layout) = (Some(Access::LOCAL_WRITE.bits()), Some(layout));
    let config = KeyConfig { key: key.key(), access, layout, signature: SignatureChange::Keep };
    let op = SendOp::ConfigureKey(Arc::new(config));
    without_allocating("the layout of a key", || {
        post_sends(end, &Sends { inline: false, parts: &[], ..sends(op.clone()) });
        complete(end, DEPTH);
    });
    key
}

const SHARED: SrqAttr = SrqAttr { max_wr: DEPTH as u32, max_sge: 4, limit: 0 };

/// Fills a shared receive queue with requests of four entries each.
fn post_shared(end: &End, srq: &Srq) {
    for index in 0..DEPTH {
        let mut list = srq.scatter_list(4).unwrap();
        list.extend((0..4).map(|part| end.sge(1024 + part * 20, 20)));
        let wr = RecvWr { wr_id: index, scatter: list };
        srq.post(wr).unwrap();
    }
}

/// Gives an end another queue pair.
fn give(end: &mut End, init: QpInit) {
    let init = QpInit { cap: ends::CAP, sq_sig_all: true, set_aside: true, ..init };
    end.qp.destroy();
    end.qp = end.device.create_qp(&end.pd, init).unwrap();
}

fn shared_queues() -> [End; 2] {
    let options = options();
    let mut ends = ["one", "two"].map(|name| End::new(name, &options, QpType::Rc));
    let queues = ends.each_mut().map(|end| {
        let srq = end.device.create_srq(&end.pd, SHARED, SrqKind::Basic, None).unwrap();
        let cq = Some(end.cq.clone());
        let (send_cq, recv_cq, srq_of) = (cq.clone(), cq, Some(srq.clone()));
        give(end, QpInit { send_cq, recv_cq, srq: srq_of, ..QpInit::new(QpType::Rc) });
        srq
    });
    let ends = joined(ends);
    for round in ["first", "second"] {
        without_allocating(&format!("SRQ, {round}"), || {
            ends.iter().zip(&queues).for_each(|(end, srq)| post_shared(end, srq));
            ends.iter().for_each(|end| post_sends(end, &sends(SendOp::Send)));
            ends.iter().for_each(|end| complete(end, 2 * DEPTH));
        });
    }
    ends
}

fn extended_connections() -> [End; 2] {
    let options = options();
    let [mut near, mut far] = ["one", "two"].map(|name| End::new(name, &options, QpType::Rc));
    let fresh = XrcdInit { inode: None, create: true, exclusive: false };
    let xrcd = far.device.open_xrcd(fresh).unwrap();
    let kind = SrqKind::Xrc(XrcSrq { xrcd: xrcd.clone(), cq: far.cq.clone() });
    let srq = far.device.create_srq(&far.pd, SHARED, kind, None).unwrap();
    let send_cq = Some(near.cq.clone());
    give(&mut near, QpInit { send_cq, ..QpInit::new(QpType::XrcSend) });
    give(&mut far, QpInit { xrcd: Some(xrcd), ..QpInit::new(QpType::XrcRecv) });
    let [near, far] = joined([near, far]);
    let to = Sends { xrc_srqn: srq.number().unwrap(), ..sends(SendOp::Send) };
    for round in ["first", "second"] {
        without_allocating(&format!("XRC SEND, {round}"), || {
            post_shared(&far, &srq);
            post_sends(&near, &to);
            complete(&near, DEPTH);
            complete(&far, DEPTH);
        });
    }
    [near, far]
}

/// Packets that find no room at their receiver, and come again.
fn repeated_packets() -> [End; 2] {
    let options = options();
    let small = |name| {
        let attr = DeviceAttr::new(name, 1);
        End::receiving(Some(4096), link::Interfaces::default(), attr, &options, QpType::Rc)
    };
    let ends = joined(["one", "two"].map(small));
    let long = |far: &End| Sends {
        parts: &[16 << 10; 4],
        inline: false,
        ..sends(SendOp::Write(far.remote(1 << 20)))
    };
    without_allocating("WRITE with losses", || {
        post_sends(&ends[0], &long(&ends[1]));
        post_sends(&ends[1], &long(&ends[0]));
        ends.iter().for_each(|end| complete(end, DEPTH));
    });
    let repeated =
        |end: &End| end.device.directory().reader().unwrap().counter(Counter::Retransmits);
    assert!(ends.iter().map(repeated).sum::<u64>() > 0, "nothing was lost");
    ends
}

/// Fills a matching list, and empties it.
fn tagged_buffers() -> End {
    let end = End::new("one", &options(), QpType::Rc);
    let cap = TmCap { max_num_tags: 1000, max_ops: 8 };
    let kind = SrqKind::TagMatching(end.cq.clone(), cap);
    let attr = SrqAttr { max_wr: 8, max_sge: 2, limit: 0 };
    let srq = end.device.create_srq(&end.pd, attr, kind, None).unwrap();
    let apply = |wr_id, op| srq.post_op(TagWr { wr_id, op, signaled: false, handled: None });
    without_allocating("tagged buffers", || {
        for index in 0..1000 {
            let mut scatter = srq.scatter_list(2).unwrap();
            scatter.extend((0..2).map(|part| end.sge(part * 20, 20)));
            let request = RecvWr { wr_id: index, scatter };
            let handle = apply(index, TagOp::Add { request, tag: index, mask: u64::MAX });
            assert_eq!(handle.unwrap(), Some(index as u32));
        }
        (0..1000).for_each(|handle| assert_eq!(apply(0, TagOp::Del(handle)), Ok(None)));
    });
    end
}

fn datagrams() -> [End; 2] {
    let options = options();
    let [a, b] = ["one", "two"].map(|name| End::new(name, &options, QpType::Ud));
    [&a, &b].into_iter().for_each(End::ready_datagrams);
    let ah = a.device.create_ah(&a.pd, &a.ah()).unwrap();
    let to = Datagram { ah, remote_qpn: b.qp.number(), remote_qkey: ends::QKEY };
    // The way to a process is looked up when the first datagram goes there.
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Send,
        payload: Payload::Gather(SgList::new()),
        flags: SendFlags::SIGNALED,
        datagram: Some(to.clone()),
        xrc_srqn: 0,
    };
    a.qp.post_send(&mut [Ok(wr)].into_iter()).unwrap();
    complete(&a, 1);
    without_allocating("UD SEND", || {
        post_receives(&b);
        post_sends(&a, &Sends { datagram: Some(&to), ..sends(SendOp::Send) });
        complete(&a, DEPTH);
        complete(&b, DEPTH);
    });
    [a, b]
}
