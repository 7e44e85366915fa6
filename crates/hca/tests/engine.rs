//! Two devices of one process, joined by real UDP sockets: objects, progress and the link together.

use hca::{
    Access, AhAttr, AttrMask, Completion, Cq, Device, DeviceAttr, DeviceConfig, Payload, Pd, Qp,
    QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge,
    SrqAttr, SrqKind, WcOpcode, WcStatus,
};
use registry::{Client, Options, Role};
use std::sync::Arc;
use std::time::{Duration, Instant};
use umem::Umem;

/// A device with one of everything and a buffer of its own.
struct End {
    device: Arc<Device>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    mr: Arc<hca::Mr>,
    buffer: Vec<u8>,
}

fn options() -> Options {
    let port = std::net::UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    Options { port, name_suffix: Some(format!("engine-{port}")) }
}

impl End {
    fn new(name: &str, options: &Options, qp_type: QpType) -> End {
        End::with(DeviceAttr::new(name, 1), options, qp_type)
    }

    fn with(attr: DeviceAttr, options: &Options, qp_type: QpType) -> End {
        mm::guard::install();
        let registry = Client::connect_at(Role::Member, options).unwrap();
        let config = DeviceConfig {
            attr,
            comm: "test".into(),
            registry,
            mtu_bytes: Some(4096),
            network: hca::Network::Host(link::Interfaces::default()),
            trace: None,
            receive_buffer_bytes: None,
        };
        let device = Device::open(config).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(256, None).unwrap();
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        };
        let init = QpInit {
            send_cq: Some(cq.clone()),
            recv_cq: Some(cq.clone()),
            cap,
            sq_sig_all: true,
            ..QpInit::new(qp_type)
        };
        let qp = device.create_qp(&pd, init).unwrap();
        let buffer = vec![0; 4 << 20];
        let space = mm::AddressSpace::process();
        let platform = pcie::Platform::default();
        let access = umem::AccessFlags::LOCAL_WRITE;
        let umem = Umem::from_user(
            &space,
            buffer.as_ptr() as u64,
            buffer.len() as u64,
            access,
            platform.with_role(pcie::Role::Hca).next().unwrap(),
            &platform,
        )
        .unwrap();
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = device.reg_mr(&pd, umem, buffer.as_ptr() as u64, rights).unwrap();
        End { device, pd, cq, qp, mr, buffer }
    }

    /// GID index of 127.0.0.1.
    fn loopback(&self) -> (u8, [u8; 16]) {
        let gids = self.device.gids(1).unwrap();
        let entry = gids.iter().find(|entry| entry.ip.to_string() == "127.0.0.1").unwrap();
        (entry.index as u8, entry.gid)
    }

    fn connect(&self, other: &End) {
        let (sgid_index, dgid) = self.loopback();
        let ah = AhAttr {
            is_global: true,
            dgid,
            sgid_index,
            hop_limit: 64,
            port_num: 1,
            ..AhAttr::default()
        };
        let mut attr = QpAttr {
            qp_state: QpState::Init,
            port_num: 1,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            ..self.qp.query()
        };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.qp.modify(&attr, init).unwrap();
        attr = QpAttr {
            qp_state: QpState::Rtr,
            ah,
            path_mtu: 5,
            dest_qp_num: other.qp.number(),
            rq_psn: 77,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..attr
        };
        let rtr = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        self.qp.modify(&attr, rtr).unwrap();
        attr = QpAttr {
            qp_state: QpState::Rts,
            sq_psn: 77,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..attr
        };
        let rts = AttrMask::STATE
            | AttrMask::SQ_PSN
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        self.qp.modify(&attr, rts).unwrap();
    }

    fn sge(&self, at: usize, length: u32) -> Sge {
        Sge { addr: self.buffer.as_ptr() as u64 + at as u64, length, lkey: self.mr.key() }
    }

    fn post(&self, op: SendOp, at: usize, length: u32) {
        let wr = SendWr {
            wr_id: 5,
            op,
            payload: Payload::Gather([self.sge(at, length)].into_iter().collect()),
            flags: SendFlags::SIGNALED,
            datagram: None,
            xrc_srqn: 0,
        };
        self.qp.post_send(&mut [Ok(wr)].into_iter()).unwrap();
    }

    fn completion(&self) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut found = None;
        while found.is_none() {
            assert!(Instant::now() < deadline, "no completion");
            self.cq.poll(1, &mut |completion| found = Some(completion)).unwrap();
        }
        found.unwrap()
    }

    fn remote(&self, at: u64) -> Remote {
        Remote { addr: self.buffer.as_ptr() as u64 + at, rkey: self.mr.key() }
    }
}

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
    assert_eq!(plain.device.plug_data_direct(function), Ok(false));
    let vuid = function.vuid.clone().unwrap();
    for (data_direct, vuid, bound) in [
        (false, vuid.as_str(), false),
        (true, "another", false),
        (true, "", false),
        (true, vuid.as_str(), true),
    ] {
        let own = DeviceAttr { data_direct, vuid: vuid.to_owned(), ..DeviceAttr::new("one", 1) };
        let end = End::with(own, &options, QpType::Rc);
        assert_eq!(end.device.plug_data_direct(function), Ok(bound));
        assert_eq!(end.device.data_direct().is_some(), bound);
        let refused: hca::Result<Arc<hca::Mr>> =
            end.device.reg_data_direct(&end.pd, 1, Access::LOCAL_WRITE, |_| unreachable!());
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
    end.device.plug_data_direct(function).unwrap();
    let memory = Umem::from_segments(
        vec![umem::Segment {
            space: umem::process_space(),
            addr: end.buffer.as_ptr() as u64,
            len: 4096,
            route: platform.route(function, pcie::Target::HOST).unwrap(),
        }],
        true,
    );
    let attached = memory.clone();
    let mr: hca::Result<Arc<hca::Mr>> =
        end.device.reg_data_direct(&end.pd, 0, Access::LOCAL_WRITE | Access::REMOTE_WRITE, |by| {
            assert_eq!(by.address, function.address);
            Ok(attached)
        });
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
        end.device.reg_data_direct(&end.pd, 0, Access::LOCAL_WRITE, |_| unreachable!());
    assert!(matches!(refused, Err(hca::Error::Invalid(_))));
    ask(true);
    assert!(end.device.data_direct().is_some());
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
