use super::*;
use crate::objects::owner::Owner;
use crate::{Device, DeviceAttr, DeviceConfig};
use link::Batch;
use registry::{Client, Options, Role};
use transport::{Routing, Rx};
use wire::{Bth, Headers, Opcode, Operation, Position, Psn, Service};

fn device(name: &str) -> Arc<Device> {
    let port = std::net::UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let options = Options { port, name_suffix: Some(format!("{name}-{port}")) };
    Device::open(DeviceConfig {
        attr: DeviceAttr::new(name, 1),
        comm: "test".into(),
        registry: Client::connect_at(Role::Member, &options).unwrap(),
        mtu_bytes: Some(4096),
        network: crate::Network::Host(link::Interfaces::default()),
        trace: None,
        neighbours: false,
        receive_buffer_bytes: Some(64 << 10),
    })
    .unwrap()
}

/// A QP towards a queue pair at 127.0.0.1.
fn connected(device: &Arc<Device>, qp_type: QpType, dest_qp_num: u32) -> Arc<Qp> {
    let max_send_wr = 16384;
    let cq = device.create_cq(max_send_wr, None).unwrap();
    let cap = QpCap { max_send_wr, max_inline_data: 1024, ..QpCap::default() };
    let init = QpInit {
        send_cq: Some(cq.clone()),
        recv_cq: Some(cq),
        cap,
        sq_sig_all: true,
        ..QpInit::new(qp_type)
    };
    let qp = device.create_qp(&device.alloc_pd().unwrap(), init).unwrap();
    let gids = device.gids(1).unwrap();
    let here = gids.iter().find(|entry| entry.ip.is_loopback() && entry.ip.is_ipv4()).unwrap();
    let ah = AhAttr {
        is_global: true,
        dgid: here.gid,
        sgid_index: here.index as u8,
        port_num: 1,
        ..AhAttr::default()
    };
    let attr = QpAttr { port_num: 1, path_mtu: 5, dest_qp_num, ah, ..qp.query() };
    type M = AttrMask;
    let reliable = |mask| if qp_type == QpType::Rc { mask } else { M::empty() };
    for (qp_state, mask) in [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | reliable(M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
        ),
        (
            QpState::Rts,
            M::SQ_PSN | reliable(M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC),
        ),
    ] {
        qp.modify(&QpAttr { qp_state, ..attr }, mask | M::STATE).unwrap();
    }
    qp
}

/// A queue pair of UC with more to send than its pace lets go at once.
fn flooded(device: &Arc<Device>) -> Arc<Qp> {
    let qp = connected(device, QpType::Uc, 5);
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        payload: Payload::Inline(vec![0; 1024].into()),
        flags: SendFlags::empty(),
        datagram: None,
        xrc_srqn: 0,
    };
    qp.post_send(&mut (0..16384).map(|_| Ok(wr.clone()))).unwrap();
    qp
}

#[test]
fn nothing_completes_after_destruction() {
    let device = device("destroyed");
    let qp = flooded(&device);
    assert!(qp.core().transport.deadline().is_some(), "most of it waits for its pace");
    qp.destroy();
    // Another thread may have received a packet for the QP just before.
    let later = Instant::now() + std::time::Duration::from_secs(10);
    qp.end_of_batch(device.adapter(), (later, false), &mut Batch::new().unwrap());
    let mut polled = 0;
    qp.init.send_cq.as_ref().unwrap().poll(1, &mut |_| polled += 1).unwrap();
    assert_eq!(polled, 0);
}

#[test]
fn what_a_timer_emits_leaves_before_other_threads_emit_more() {
    let device = device("order");
    let qp = flooded(&device);
    // A timer leaves a queue pair to the thread that is at it.
    let _turn = device.receives_nothing();
    let left = || {
        let stats = device.endpoint().stats().iter();
        let sums = stats.filter(|(name, _)| *name == "tx_datagrams");
        sums.map(|(_, count)| count).sum::<u64>()
    };
    let before = left();
    let mut batch = Batch::new().unwrap();
    qp.timer(device.adapter(), Instant::now() + std::time::Duration::from_secs(10), &mut batch);
    let after = left();
    assert!(after > before, "its pace let it emit");
    batch.flush(device.endpoint());
    assert_eq!(left(), after, "something waited in the batch, with the lock free");
}

#[test]
fn a_timer_leaves_a_queue_pair_to_the_thread_that_is_at_it() {
    let device = device("crowded");
    let qp = connected(&device, QpType::Rc, 5);
    let _turn = device.receives_nothing();
    let core = qp.core();
    let visit = || {
        let mut batch = Batch::new().unwrap();
        qp.timer(device.adapter(), Instant::now(), &mut batch);
    };
    // It would wait for ever.
    std::thread::scope(|scope| scope.spawn(visit).join().unwrap());
    assert!(qp.missed.load(Relaxed));
    drop(core);
    qp.post_send(&mut std::iter::empty()).unwrap();
    assert!(!qp.missed.load(Relaxed), "that has made the visit");
}

#[test]
fn short_requests_wait_for_company_while_others_are_on_their_way() {
    let device = device("company");
    let qp = connected(&device, QpType::Rc, 5);
    // No timer sends what waits.
    let _turn = device.receives_nothing();
    let begun = || qp.query().sq_psn;
    let post = |len: usize| {
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            payload: Payload::Inline(vec![0; len].into()),
            flags: SendFlags::empty(),
            datagram: None,
            xrc_srqn: 0,
        };
        let before = begun();
        qp.post_send(&mut std::iter::once(Ok(wr))).unwrap();
        begun() - before
    };
    (0..16).for_each(|_| assert_eq!(post(8), 1));
    (0..31).for_each(|_| assert_eq!(post(8), 0));
    assert_eq!(post(8), 32);
    assert_eq!(post(8), 0);
    assert_eq!(post(513), 2, "its bytes are many, and it takes along what waits");
    assert_eq!(post(8), 0);
    let before = begun();
    qp.end_of_batch(device.adapter(), (Instant::now(), false), &mut Batch::new().unwrap());
    assert_eq!(begun() - before, 1);
}

#[test]
fn destruction_waits_for_the_turn_that_owes_an_acknowledge() {
    let device = device("turn");
    let qp = connected(&device, QpType::Rc, 5);
    let turn = device.receives_nothing();
    let (done, destroyed) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            qp.destroy();
            done.send(()).unwrap();
        });
        assert!(destroyed.recv_timeout(std::time::Duration::from_millis(50)).is_err());
        assert!(!qp.core().destroyed);
        drop(turn);
        destroyed.recv().unwrap();
    });
}

/// A message from the peer of `qp`, which owes it an answer then.
fn receive_send(device: &Device, qp: &Qp, batch: &mut Batch) {
    let opcode = Opcode {
        service: Service::Rc,
        operation: Operation::Send,
        position: Position::Only,
        imm: false,
        invalidate: false,
    };
    let headers = Headers::new(Bth {
        opcode,
        solicited: false,
        migrated: true,
        pad: 0,
        pkey: wire::DEFAULT_PKEY,
        fecn: false,
        becn: false,
        dest_qp: qp.number(),
        ack_req: true,
        psn: Psn::new(0),
    });
    let here = std::net::Ipv4Addr::LOCALHOST.into();
    let rx = Rx {
        headers: &headers,
        payload: &[],
        in_transit: None,
        src: here,
        dst: here,
        traffic_class: 0,
        hop_limit: 64,
        vlan: None,
        routing: Routing::Ip,
        mtu: None,
    };
    qp.receive(device.adapter(), &rx, Instant::now(), batch, &mut 16);
    assert!(qp.core().transport.has_ack_pending());
}

/// Neither a turn that is over nor the queue pair's end leaves the peer without its answer.
#[test]
fn what_was_received_is_answered_before_the_turn_or_the_queue_pair_ends() {
    let device = device("answered");
    let mut batch = Batch::new().unwrap();
    let put_off = connected(&device, QpType::Rc, 5);
    receive_send(&device, &put_off, &mut batch);
    put_off.put_off(device.adapter(), Instant::now(), &mut batch);
    assert!(!put_off.core().transport.has_ack_pending());

    let ended = connected(&device, QpType::Rc, 5);
    receive_send(&device, &ended, &mut batch);
    let sent = || device.endpoint().stats().tx_datagrams.load(Relaxed);
    let before = sent();
    ended.end_of_batch(device.adapter(), (Instant::now(), false), &mut batch);
    assert!(!ended.core().transport.has_ack_pending());
    assert_eq!((batch.packets(), sent()), (0, before + 1));

    let destroyed = connected(&device, QpType::Rc, 5);
    receive_send(&device, &destroyed, &mut batch);
    destroyed.destroy();
    assert!(!destroyed.core().transport.has_ack_pending());
}

/// Descriptors of this process for the socket that `device` receives IPv4 on.
fn copies(device: &Device) -> usize {
    let socket = device.endpoint().receive_fds().next().unwrap();
    let name = format!("socket:[{}]", rustix::fs::fstat(socket).unwrap().st_ino);
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|to| to.as_os_str() == name.as_str())
        .count()
}

#[test]
fn a_peers_socket_is_watched_once() {
    let device = device("watched");
    let own = u32::from(device.slot()) << 14;
    let before = copies(&device);
    let all = [QpType::Rc, QpType::Uc, QpType::Uc].map(|kind| connected(&device, kind, own));
    assert_eq!(copies(&device), before + 1);
    all.iter().for_each(|qp| qp.destroy());
    assert_eq!(copies(&device), before, "held for nobody");
}
