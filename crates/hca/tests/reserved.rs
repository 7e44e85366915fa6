//! What moves data asks nobody for memory: all of it was set aside when the objects were made. From the first request on
//! that a queue pair gets, to full queues both ways, no thread of the process allocates anything but the registry's, which looks
//! after its names now and then.

mod ends;

use ends::{End, options};
use hca::*;
use std::alloc::{GlobalAlloc, Layout, System};
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

/// Fills the send queue with `op`, every third request inline where that can be, others of four entries.
fn post_sends(end: &End, op: &SendOp, datagram: Option<&Datagram>) {
    let may_be_inline = !matches!(op, SendOp::Read(_) | SendOp::FetchAdd { .. });
    for index in 0..DEPTH {
        let payload = if may_be_inline && index % 3 == 0 {
            let mut bytes = end.qp.inline_data(LEN as usize).unwrap();
            bytes.extend((0..LEN).map(|byte| byte as u8));
            Payload::Inline(bytes)
        } else {
            let mut list = end.qp.gather_list(4).unwrap();
            list.extend((0..4).map(|part| end.sge(64 * part, LEN / 4)));
            Payload::Gather(list)
        };
        let wr = SendWr {
            wr_id: index,
            op: op.clone(),
            payload,
            flags: SendFlags::SIGNALED,
            datagram: datagram.cloned(),
            xrc_srqn: 0,
        };
        end.qp.post_send(&mut [Ok(wr)].into_iter()).unwrap();
    }
}

fn pair(qp_type: QpType) -> [End; 2] {
    let options = options();
    let ends = ["one", "two"].map(|name| End::new(name, &options, qp_type));
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
    ends
}

/// What a queue pair of `qp_type` does both ways at once, with full queues.
fn exchange([a, b]: &[End; 2], op: impl Fn(&End) -> SendOp, is_received: bool) {
    if is_received {
        [a, b].into_iter().for_each(post_receives);
    }
    post_sends(a, &op(b), None);
    post_sends(b, &op(a), None);
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
    ] {
        for round in ["first", "second"] {
            without_allocating(&format!("RC {name}, {round}"), || {
                exchange(&reliable, op, is_received);
            });
        }
    }
    let unreliable = pair(QpType::Uc);
    without_allocating("UC SEND", || exchange(&unreliable, |_| SendOp::Send, true));
    without_allocating("UC WRITE", || {
        exchange(&unreliable, |far| SendOp::Write(far.remote(1 << 20)), false);
    });
    datagrams();
    tagged_buffers();
}

/// Fills a matching list, and empties it.
fn tagged_buffers() {
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
}

fn datagrams() {
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
        post_sends(&a, &SendOp::Send, Some(&to));
        complete(&a, DEPTH);
        complete(&b, DEPTH);
    });
}
