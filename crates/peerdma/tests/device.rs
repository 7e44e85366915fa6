//! The API on a real device: the software HCA's library, or whichever `PEERDMA_TEST_LIBRARY` names.

use peerdma::{
    Access, CompChannel, Completion, Context, Cq, Endpoint, Error, FdCommands, HostBuffer, IdleQp,
    Library, Mr, Op, Operation, Pd, Qp, QpState, SendFlags, Status,
};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;
use test_support::skip;

/// The longest a completion may take; a failing peer is given up in half a second.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// The library, in the test program's own network: the calling thread moves there, and takes the
/// engine along.
fn library() -> Library {
    test_support::network::enter();
    let named = std::env::var_os("PEERDMA_TEST_LIBRARY").map(PathBuf::from);
    let path = named.unwrap_or_else(|| test_support::library::path().to_owned());
    Library::load(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn device() -> Context {
    library().open(None).unwrap_or_else(|error| panic!("{error} ({})", error.remedy()))
}

/// Two connected queue pairs of one process and a buffer for each.
struct Pair {
    cq: Cq,
    qps: [Qp; 2],
    mrs: [Mr; 2],
}

const LENGTH: usize = 100_000;

impl Pair {
    fn new() -> Pair {
        let context = device();
        let cq = context.create_cq(64, None).unwrap();
        Pair::on(&context.alloc_pd().unwrap(), &cq)
    }

    fn on(pd: &Pd, cq: &Cq) -> Pair {
        let idle = || {
            pd.qp(cq, cq).max_inline_data(64).max_sge(2).timeout(10).retry_cnt(3).build().unwrap()
        };
        let (left, right) = (idle(), idle());
        let ends: [Endpoint; 2] = [left.endpoint(), right.endpoint()];
        let connect = |qp: IdleQp, to: &Endpoint| qp.connect(to).unwrap();
        let qps = [connect(left, &ends[1]), connect(right, &ends[0])];
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = || pd.reg(HostBuffer::new(LENGTH).unwrap(), access).unwrap();
        Pair { cq: cq.clone(), qps, mrs: [mr(), mr()] }
    }

    /// Exactly `count` completions.
    fn take(&self, count: usize) -> Vec<Completion> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let more = self.cq.wait(PATIENCE).unwrap();
            assert!(
                !more.is_empty(),
                "only {} of {count} completions came: {taken:?}",
                taken.len()
            );
            taken.extend(more);
        }
        assert_eq!(taken.len(), count, "{taken:?}");
        taken
    }

    fn one(&self) -> Completion {
        self.take(1)[0]
    }
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LENGTH).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn content(mr: &Mr) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    mr.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_device_describes_itself() {
    let library = library();
    let devices = library.devices().unwrap();
    assert!(!devices.is_empty());
    let context = library.open(Some(&devices[0].name)).unwrap();
    assert_eq!(context.name(), devices[0].name);
    let attr = context.device_attr().unwrap();
    assert_eq!(attr.node_guid, devices[0].guid);
    assert!(attr.max_qp > 0 && attr.phys_port_cnt >= 1);
    let port = context.port_attr(1).unwrap();
    assert!(port.gid_tbl_len > 0 && port.max_msg_sz >= 1 << 20);
    let gids = context.gids(1).unwrap();
    assert!(gids.contains(&context.default_gid(1).unwrap()));
    let error = library.open(Some("no-such-device")).unwrap_err();
    assert!(
        error.to_string().contains("no-such-device")
            && error.to_string().contains(&devices[0].name)
    );
    assert!(context.port_attr(77).is_err());
}

#[test]
fn memory_outlives_nothing_and_is_bounded() {
    let context = device();
    let pd = context.alloc_pd().unwrap();
    let mr = pd.reg(HostBuffer::new(1000).unwrap(), Access::LOCAL_WRITE).unwrap();
    for offset in 0..20 {
        let bytes: Vec<u8> = (0..37).map(|i| i + offset as u8).collect();
        mr.write(offset, &bytes).unwrap();
        let mut back = [0; 37];
        mr.read(offset, &mut back).unwrap();
        assert_eq!(back[..], bytes[..]);
    }
    assert!(matches!(mr.write(990, &[0; 11]), Err(Error::Range { .. })));
    assert!(matches!(mr.read(u64::MAX, &mut [0]), Err(Error::Range { .. })));
    assert!(mr.slice(0..1001).is_err());
    // REMOTE_WRITE needs LOCAL_WRITE.
    let error = pd.reg(HostBuffer::new(10).unwrap(), Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
}

#[test]
fn a_descriptor_that_is_no_dmabuf_is_refused_with_a_remedy() {
    use std::os::fd::AsFd;
    let context = device();
    let pd = context.alloc_pd().unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = pd.reg_dmabuf(file.as_fd(), 0, 4096, 0, Access::LOCAL_WRITE).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    assert!(error.remedy().contains("dma-buf"));
    assert!(matches!(
        pd.reg_dmabuf(file.as_fd(), 0, 2, u64::MAX, Access::LOCAL_WRITE),
        Err(Error::Argument(_))
    ));
}

#[test]
fn writes_and_reads_move_bytes() {
    let pair = Pair::new();
    pair.mrs[0].write(0, &pattern(1)).unwrap();
    pair.qps[0].post_write(7, &[pair.mrs[0].slice(..).unwrap()], pair.mrs[1].remote()).unwrap();
    let done = pair.one();
    assert_eq!((done.id, done.qpn), (7, pair.qps[0].endpoint().qpn));
    assert_eq!(done.result.unwrap().operation, Operation::Write);
    assert_eq!(content(&pair.mrs[1]), pattern(1));

    pair.mrs[1].write(0, &pattern(2)).unwrap();
    let halves = [pair.mrs[0].slice(50_000..).unwrap(), pair.mrs[0].slice(..50_000).unwrap()];
    pair.qps[0].post_read(8, &halves, pair.mrs[1].remote()).unwrap();
    assert_eq!(pair.one().result.unwrap().operation, Operation::Read);
    let mut swapped = pattern(2)[50_000..].to_vec();
    swapped.extend(&pattern(2)[..50_000]);
    assert_eq!(content(&pair.mrs[0]), swapped);
}

#[test]
fn messages_arrive_with_their_words() {
    let pair = Pair::new();
    let [left, right] = &pair.qps;
    right.post_recv(1, &[pair.mrs[1].slice(..).unwrap()]).unwrap();
    right.post_recv(2, &[]).unwrap();
    left.post(3, &Op::SendInline { data: b"hello", imm: Some(0xdead_beef) }, SendFlags::SIGNALED)
        .unwrap();
    let target = pair.mrs[1].remote().slice(100..).unwrap();
    left.post(
        4,
        &Op::WriteInline { data: b"world", remote: target, imm: Some(5) },
        SendFlags::empty(),
    )
    .unwrap();
    let mut done = pair.take(3);
    done.sort_by_key(|completion| completion.id);
    let [first, second, third] = [0, 1, 2].map(|i| done[i].result.unwrap());
    assert_eq!(
        (first.operation, first.byte_len, first.imm),
        (Operation::Recv, 5, Some(0xdead_beef))
    );
    assert_eq!((second.operation, second.imm), (Operation::RecvWriteImm, Some(5)));
    assert_eq!(third.operation, Operation::Send);
    let bytes = content(&pair.mrs[1]);
    assert_eq!((&bytes[..5], &bytes[100..105]), (&b"hello"[..], &b"world"[..]));
}

#[test]
fn atomics_give_the_old_value() {
    let pair = Pair::new();
    pair.mrs[1].write(8, &5_u64.to_ne_bytes()).unwrap();
    let word = pair.mrs[1].remote().slice(8..16).unwrap();
    let local = pair.mrs[0].slice(0..8).unwrap();
    let add = Op::FetchAdd { local, remote: word, add: 3 };
    pair.qps[0].post(1, &add, SendFlags::SIGNALED).unwrap();
    assert_eq!(pair.one().result.unwrap().operation, Operation::FetchAdd);
    let swap = Op::CompareSwap {
        local: pair.mrs[0].slice(8..16).unwrap(),
        remote: word,
        compare: 8,
        swap: 100,
    };
    pair.qps[0].post(2, &swap, SendFlags::SIGNALED).unwrap();
    pair.one().result.unwrap();
    let word_at =
        |mr: &Mr, at: usize| u64::from_ne_bytes(content(mr)[at..at + 8].try_into().unwrap());
    assert_eq!(
        (word_at(&pair.mrs[0], 0), word_at(&pair.mrs[0], 8), word_at(&pair.mrs[1], 8)),
        (5, 8, 100)
    );
    let odd = Op::FetchAdd { local, remote: pair.mrs[1].remote().slice(4..12).unwrap(), add: 1 };
    assert!(matches!(pair.qps[0].post(3, &odd, SendFlags::SIGNALED), Err(Error::Argument(_))));
}

#[test]
fn a_write_past_the_end_is_refused_before_it_is_posted() {
    let pair = Pair::new();
    let short = pair.mrs[1].remote().slice(..10).unwrap();
    let error = pair.qps[0].post_write(1, &[pair.mrs[0].slice(..11).unwrap()], short).unwrap_err();
    assert!(matches!(error, Error::Range { len: 11, size: 10, .. }), "{error}");
}

#[test]
fn a_wrong_key_fails_with_its_status_and_stops_the_queue_pair() {
    let pair = Pair::new();
    let mut target = pair.mrs[1].remote();
    target.rkey ^= 0x5500;
    let local = [pair.mrs[0].slice(..10).unwrap()];
    pair.qps[0].post_write(1, &local, target).unwrap();
    assert_eq!(pair.one().result.unwrap_err().status, Status::RemoteAccess);
    assert_eq!(pair.qps[0].state().unwrap(), QpState::Error);
    pair.qps[0].post_write(2, &local, pair.mrs[1].remote()).unwrap();
    assert_eq!(pair.one().result.unwrap_err().status, Status::Flushed);
}

#[test]
fn a_region_that_is_gone_fails_the_request_and_nothing_else() {
    let pair = Pair::new();
    let Pair { cq, qps, mrs: [local, gone] } = pair;
    let target = gone.remote();
    drop(gone);
    qps[0].post_write(1, &[local.slice(..10).unwrap()], target).unwrap();
    let done = cq.wait(PATIENCE).unwrap();
    assert_eq!(done[0].result.unwrap_err().status, Status::RemoteAccess);
}

#[test]
fn a_channel_wakes_a_sleeper() {
    let context = device();
    let channel: CompChannel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(16, Some(&channel)).unwrap();
    let pair = Pair::on(&context.alloc_pd().unwrap(), &cq);
    assert_eq!(channel.wait(Some(Duration::from_millis(1))).unwrap(), None);
    cq.arm(false).unwrap();
    pair.qps[0].post_write(1, &[pair.mrs[0].slice(..8).unwrap()], pair.mrs[1].remote()).unwrap();
    assert_eq!(channel.wait(PATIENCE).unwrap(), Some(cq.id()));
    pair.one().result.unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| cq.wait(PATIENCE).unwrap());
        pair.qps[0]
            .post_write(2, &[pair.mrs[0].slice(..8).unwrap()], pair.mrs[1].remote())
            .unwrap();
        assert_eq!(waiter.join().unwrap()[0].id, 2);
    });
    assert_eq!(cq.wait(Some(Duration::from_millis(1))).unwrap(), []);
    let unarmed = context.create_cq(16, None).unwrap();
    assert!(matches!(unarmed.arm(false), Err(Error::Argument(_))));
}

#[test]
fn a_peer_that_is_gone_is_told_as_such() {
    let pair = Pair::new();
    let Pair { cq, qps: [left, right], mrs } = pair;
    drop(right);
    left.post_write(1, &[mrs[0].slice(..8).unwrap()], mrs[1].remote()).unwrap();
    let done = cq.wait(PATIENCE).unwrap();
    assert_eq!(done[0].result.unwrap_err().status, Status::RetryExceeded);
}

#[test]
fn a_region_is_registered_anew_over_another_buffer() {
    let context = device();
    let pd = context.alloc_pd().unwrap();
    let pair = Pair::on(&pd, &context.create_cq(64, None).unwrap());
    if pd.fd_commands() != FdCommands::all() {
        skip!("this library registers no regions anew by descriptor");
    }
    let platform = pcie::Platform::default();
    let client = registry::Client::connect(registry::Role::Member).unwrap();
    let gpu = gpu::SoftwareGpu::of(platform.named("gpu0").unwrap(), client).unwrap();
    let (first, second) = (gpu.alloc(8192).unwrap(), gpu.alloc(8192).unwrap());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut mr = pd.reg_fd(first.export().unwrap().as_fd(), 4096, 4096, 0, access).unwrap();
    let write = |word: &[u8; 4], mr: &Mr<peerdma::Dmabuf>| {
        pair.mrs[0].write(0, word).unwrap();
        let local = [pair.mrs[0].slice(..4).unwrap()];
        pair.qps[0].post_write(1, &local, mr.remote().slice(..4).unwrap()).unwrap();
        pair.one().result.unwrap();
    };
    let word = |buffer: &gpu::Buffer, at| {
        let mut word = [0; 4];
        buffer.read(at, &mut word).unwrap();
        word
    };
    write(b"here", &mr);
    let rkey = mr.rkey();
    let second_fd = second.export().unwrap();
    let error = mr.rereg_fd(second_fd.as_fd(), 0, 8193, 0).unwrap_err();
    assert_eq!(error.errno(), Some(22), "{error}");
    write(b"stay", &mr);
    mr.rereg_fd(second_fd.as_fd(), 0, 8192, 1 << 32).unwrap();
    assert_eq!((mr.rkey(), mr.len()), (rkey, 8192));
    write(b"gone", &mr);
    assert_eq!((&word(&first, 4096), &word(&second, 0)), (b"stay", b"gone"));
}

#[test]
fn a_driver_is_asked_whether_it_registers_dma_bufs() {
    let context = device();
    assert!(context.alloc_pd().unwrap().registers_dmabuf().unwrap());
}

#[test]
fn a_device_tells_what_its_memory_can() {
    let memory = device().memory_attr().unwrap();
    assert!(memory.on_demand && memory.on_demand_rc & 0b1_1111 == 0b1_1111, "{memory:?}");
    assert!(!memory.bounces);
    // a command for the firmware of a ConnectX, which this device has not
    let error = device().firmware_caps().unwrap_err();
    assert!(error.errno() == Some(95) || error.to_string().contains("libmlx5"), "{error}");
}
