//! Two devices of one process, joined by real UDP sockets: objects, progress and the link together.

mod ends;

use ends::{End, options};
use hca::*;
use registry::{Client, Role};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use umem::Umem;

fn pair() -> (End, End) {
    let options = options();
    let (a, b) = (End::new("one", &options, QpType::Rc), End::new("two", &options, QpType::Rc));
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

#[test]
fn a_megabyte_is_written_and_read_back_while_the_target_sleeps() {
    let (mut a, b) = pair();
    for (i, byte) in a.buffer.iter_mut().enumerate() {
        *byte = (i * 31 % 251) as u8;
    }
    a.post(SendOp::Write(b.remote(0)), 0, 1 << 20);
    let done = a.completion();
    assert_eq!((done.status, done.opcode), (WcStatus::Success, WcOpcode::RdmaWrite));
    assert!(b.buffer[..1 << 20] == a.buffer[..1 << 20]);
    a.post(SendOp::Read(b.remote(0)), 2 << 20, 1 << 20);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert!(a.buffer[2 << 20..3 << 20] == a.buffer[..1 << 20]);
}

#[test]
fn a_message_is_sent_and_received() {
    let (mut a, b) = pair();
    a.buffer[..5].copy_from_slice(b"hello");
    let wr = RecvWr { wr_id: 9, scatter: [b.sge(100, 64)].into_iter().collect() };
    b.qp.post_recv(&mut [Ok(wr)].into_iter()).unwrap();
    a.post(SendOp::SendImm(0x1234), 0, 5);
    let received = b.completion();
    assert_eq!((received.wr_id, received.byte_len, received.imm_or_key), (9, 5, 0x1234));
    assert_eq!(&b.buffer[100..105], b"hello");
    assert_eq!(a.completion().status, WcStatus::Success);
}

/// A device that is on some interfaces only has their addresses, and takes nothing at the host's
/// others.
#[test]
fn a_device_takes_nothing_at_addresses_that_it_does_not_have() {
    let lo = || link::Interfaces::Only(vec!["lo".to_owned()]);
    for (interfaces, taken) in [(link::Interfaces::default(), 2), (lo(), 1)] {
        let options = options();
        let to = End::on(interfaces, DeviceAttr::new("to", 1), &options, QpType::Ud);
        let from = End::new("from", &options, QpType::Ud);
        [&to, &from].into_iter().for_each(End::ready_datagrams);
        for wr_id in [1, 2] {
            let wr = RecvWr { wr_id, scatter: [to.sge(0, 64)].into_iter().collect() };
            to.qp.post_recv(&mut [Ok(wr)].into_iter()).unwrap();
        }
        // 127.0.0.2 is the host's as well, but no address of an interface.
        let mut other = from.ah();
        other.dgid[15] = 2;
        for (ah, imm) in [(other, 2), (from.ah(), 1)] {
            let ah = from.device.create_ah(&from.pd, &ah).unwrap();
            let datagram = Datagram { ah, remote_qpn: to.qp.number(), remote_qkey: ends::QKEY };
            from.post_to(SendOp::SendImm(imm), 0, 8, Some(datagram));
            assert_eq!(from.completion().status, WcStatus::Success);
        }
        let came: Vec<u32> = (0..taken).map(|_| to.completion().imm_or_key).collect();
        // The one to the address that it has was sent last.
        assert_eq!(came, [2, 1][2 - taken..]);
    }
}

#[test]
fn a_destroyed_peer_gives_a_retry_error_in_time() {
    let (a, b) = pair();
    b.qp.destroy();
    let started = Instant::now();
    a.post(SendOp::Write(b.remote(0)), 0, 8);
    assert_eq!(a.completion().status, WcStatus::RetryExcErr);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn objects_in_use_are_busy() {
    use hca::Error::Busy;
    let end = End::new("one", &options(), QpType::Rc);
    assert!(matches!(end.pd.dealloc(), Err(Busy(_))));
    assert!(matches!(end.cq.destroy(), Err(Busy(_))));
    end.qp.destroy();
    assert!(end.cq.destroy().is_ok());
    drop(end.mr);
    assert!(end.pd.dealloc().is_ok());
}

#[test]
fn what_the_program_destroyed_holds_its_domain_no_longer() {
    use hca::Error::Busy;
    let End { device, pd, cq, qp, mr, buffer: _buffer } = End::new("one", &options(), QpType::Ud);
    qp.destroy();
    drop((cq, mr));
    let srq = device
        .create_srq(&pd, SrqAttr { max_wr: 8, max_sge: 1, limit: 0 }, SrqKind::Basic, None)
        .unwrap();
    let gids = device.gids(1).unwrap();
    let to = AhAttr { is_global: true, dgid: gids[0].gid, port_num: 1, ..AhAttr::default() };
    let ah = device.create_ah(&pd, &to).unwrap();
    // The engine's threads may hold them a moment longer.
    let held = (srq.clone(), ah.clone());
    assert!(matches!(pd.dealloc(), Err(Busy(_))));
    srq.destroy().unwrap();
    assert!(matches!(pd.dealloc(), Err(Busy(_))));
    ah.destroy();
    assert!(pd.dealloc().is_ok());
    drop((srq, ah, held));
    assert!(pd.dealloc().is_ok(), "they are counted out once");
}

#[test]
fn the_directory_shows_queues_and_keys() {
    let (a, b) = pair();
    let reader = a.device.directory().reader().unwrap();
    assert_eq!(reader.name(), "one");
    let qps = reader.qps();
    assert_eq!(qps.len(), 1);
    assert_eq!((qps[0].number, qps[0].state, qps[0].dest_qpn), (a.qp.number(), 3, b.qp.number()));
    let keys = reader.keys();
    assert_eq!((keys.len(), keys[0].key, keys[0].len), (1, a.mr.key(), 4 << 20));
    assert_eq!(keys[0].page_size, Some(umem::page_size()));
    a.post(SendOp::Write(b.remote(0)), 0, 1000);
    a.completion();
    // On a busy machine the packet may have been repeated.
    let sent = reader.qps()[0].tx_bytes;
    assert!(sent >= 1000 && sent.is_multiple_of(1000), "{sent}");
    a.qp.destroy();
    assert!(reader.qps().is_empty());
}

#[test]
fn data_direct_takes_the_function_its_name_and_the_capability() {
    let options = options();
    let platform = pcie::Platform::default();
    let function = platform.with_role(pcie::Role::DataDirect).next().unwrap();
    let plain = End::new("plain", &options, QpType::Rc);
    assert_eq!(plain.device.data_direct().plug(function), Ok(false));
    let vuid = function.vuid.clone().unwrap();
    for (data_direct, vuid, bound) in [
        (false, vuid.as_str(), false),
        (true, "another", false),
        (true, "", false),
        (true, vuid.as_str(), true),
    ] {
        let own = DeviceAttr { data_direct, vuid: vuid.to_owned(), ..DeviceAttr::new("one", 1) };
        let end = End::with(own, &options, QpType::Rc);
        assert_eq!(end.device.data_direct().plug(function), Ok(bound));
        assert_eq!(end.device.data_direct().function().is_some(), bound);
        let refused: hca::Result<Arc<hca::Mr>> =
            end.device.data_direct().reg_mr(&end.pd, 1, Access::LOCAL_WRITE, |_| unreachable!());
        assert!(matches!(refused, Err(hca::Error::NotSupported(_))));
    }
}

#[test]
fn an_unplugged_function_takes_its_regions_along() {
    let options = options();
    let platform = pcie::Platform::default();
    let function = platform.with_role(pcie::Role::DataDirect).next().unwrap();
    let vuid = function.vuid.clone().unwrap();
    let attr = DeviceAttr { data_direct: true, vuid, ..DeviceAttr::new("one", 1) };
    let end = End::with(attr, &options, QpType::Rc);
    end.device.data_direct().plug(function).unwrap();
    let memory = Umem::from_segments(
        vec![umem::Segment::of_process(
            ends::memory(&end.buffer).part(0, 4096).unwrap(),
            platform.route(function, pcie::Target::HOST).unwrap(),
        )],
        true,
    );
    let attached = memory.clone();
    let mr: hca::Result<Arc<hca::Mr>> = end.device.data_direct().reg_mr(
        &end.pd,
        0,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        |by| {
            assert_eq!(by.address, function.address);
            Ok(attached)
        },
    );
    let mr = mr.unwrap();
    let reader = end.device.directory().reader().unwrap();
    assert_eq!(reader.data_direct(), Some((function.address, true)));
    assert!(!memory.is_revoked());
    // Asked by another process: the progress thread looks when it is kicked.
    let observer = Client::connect_at(Role::Observer, &options).unwrap();
    let kick = observer.lookup(&hca::control_id(end.device.slot())).unwrap();
    let ask = |plug| {
        let asked = reader.ask_data_direct(plug);
        rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
        assert!(reader.wait_done(asked, Duration::from_secs(10)));
    };
    ask(false);
    assert_eq!(reader.data_direct(), Some((function.address, false)));
    assert!(memory.is_revoked());
    let refused: hca::Result<Arc<hca::Mr>> =
        end.device.data_direct().reg_mr(&end.pd, 0, Access::LOCAL_WRITE, |_| unreachable!());
    assert!(matches!(refused, Err(hca::Error::Invalid(_))));
    ask(true);
    assert!(end.device.data_direct().function().is_some());
    // The handle lived on, and goes now.
    mr.dereg().unwrap();
    assert!(mr.dereg().is_err());
}

#[test]
fn a_closed_device_leaves_nothing_published() {
    let options = options();
    let end = End::new("one", &options, QpType::Rc);
    let observer = Client::connect_at(Role::Observer, &options).unwrap();
    let id = format!("socket-v4-{}", end.device.slot());
    assert!(observer.lookup(&id).is_ok());
    end.device.close();
    assert!(matches!(observer.lookup(&id), Err(registry::Error::Unknown)));
}

/// A front end with a bug: it panics at a completion, within the engine's turn.
struct Bug;

impl CompletionSink for Bug {
    fn completed(&self, completion: Completion) -> bool {
        panic!("no place for {}", completion.wr_id)
    }
}

struct Events(Mutex<Sender<EventType>>);

impl EventSink for Events {
    fn event(&self, event: AsyncEvent) {
        let _ = self.0.lock().unwrap().send(event.event);
    }
}

/// A queue pair of `end`'s with a place of each kind, whose receives complete in `sink`.
fn one_place(end: &End, sink: Arc<dyn CompletionSink>) -> Arc<hca::Qp> {
    let init = QpInit {
        send_cq: Some(end.cq.clone()),
        recv_cq: Some(end.device.create_cq_to(sink).unwrap()),
        cap: QpCap {
            max_recv_wr: 1,
            max_recv_sge: 1,
            max_send_wr: 1,
            max_send_sge: 1,
            max_inline_data: 0,
        },
        ..QpInit::new(QpType::Rc)
    };
    end.device.create_qp(&end.pd, init).unwrap()
}

#[test]
fn a_panic_in_the_engine_ends_the_device_and_hangs_nobody() {
    // A backtrace may take longer than the peer's patience.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let options = options();
    let a = End::new("one", &options, QpType::Rc);
    let mut b = End::new("two", &options, QpType::Rc);
    let recv = |wr_id, end: &End| {
        let scatter = [end.sge(0, 64)].into_iter().collect();
        [Ok(RecvWr { wr_id, scatter })].into_iter()
    };
    let doomed = one_place(&b, Arc::new(Bug));
    let bystander = std::mem::replace(&mut b.qp, doomed);
    let attr = QpAttr { qp_state: QpState::Init, port_num: 1, ..bystander.query() };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    bystander.modify(&attr, mask).unwrap();
    bystander.post_recv(&mut recv(9, &b)).unwrap();
    a.connect(&b);
    b.connect(&a);
    let (told, events) = channel();
    b.device.set_event_sink(Arc::new(Events(Mutex::new(told))));
    b.qp.post_recv(&mut recv(1, &b)).unwrap();

    // Nobody polls at the target: its own thread takes the message, and panics.
    a.post(SendOp::Send, 0, 5);
    assert_eq!(a.completion().status, WcStatus::RemOpErr, "the peer is told");
    let within = Duration::from_secs(10);
    assert_eq!(events.recv_timeout(within), Ok(EventType::DeviceFatal));
    let lost = |result: hca::Result<()>| assert!(matches!(result, Err(hca::Error::Lost(_))));
    lost(b.device.alive());
    lost(b.device.create_cq(1, None).map(drop));
    lost(b.qp.post_send(&mut std::iter::empty()).map_err(|(_, error)| error));
    let flushed = b.completion();
    assert_eq!((flushed.wr_id, flushed.status), (9, WcStatus::WrFlushErr));
    lost(b.cq.poll(1, &mut |_| panic!("another completion")).map(drop));
    // As a fork does: there is no thread to wait for.
    let begun = Instant::now();
    b.device.pause(begun + Duration::from_secs(60));
    assert!(begun.elapsed() < within);
    b.device.resume();
    b.device.close();
}

#[test]
fn a_fork_waits_for_a_busy_engine_for_a_limited_time() {
    /// A turn that does not end before it is let go.
    struct Stuck(Mutex<std::sync::mpsc::Receiver<()>>);
    impl CompletionSink for Stuck {
        fn completed(&self, _: Completion) -> bool {
            let _ = self.0.lock().unwrap().recv();
            true
        }
    }
    let options = options();
    let a = End::new("one", &options, QpType::Rc);
    let mut b = End::new("two", &options, QpType::Rc);
    let (let_go, stuck) = channel();
    b.qp = one_place(&b, Arc::new(Stuck(Mutex::new(stuck))));
    a.connect(&b);
    b.connect(&a);
    let scatter = [b.sge(0, 64)].into_iter().collect();
    b.qp.post_recv(&mut [Ok(RecvWr { wr_id: 1, scatter })].into_iter()).unwrap();
    a.post(SendOp::Send, 0, 5);
    // The message is there once its bytes are; its completion follows in the same turn.
    let deadline = Instant::now() + Duration::from_secs(10);
    let received = || b.device.directory().reader().unwrap().counter(hca::Counter::RcvdPackets) > 0;
    while !received() {
        assert!(Instant::now() < deadline, "nothing arrives");
        std::thread::yield_now();
    }
    let begun = Instant::now();
    b.device.pause(begun + Duration::from_millis(100));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(b.device.adopt().is_err(), "a child must not carry on what may be locked for ever");
    let_go.send(()).unwrap();
    b.device.resume();
    assert_eq!(a.completion().status, WcStatus::Success);
    drop(let_go);
}
