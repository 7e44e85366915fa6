//! Two devices of one process, joined by real UDP sockets.
#![allow(dead_code, reason = "each test binary uses its part")]

use hca::{
    Access, AhAttr, AttrMask, Completion, Cq, Datagram, Device, DeviceAttr, DeviceConfig, Payload,
    Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, Remote, SendFlags, SendOp, SendWr, Sge,
    ShortPayload, ShortWr,
};
use registry::{Client, Options, Role};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::Counter;
use umem::Umem;

/// The queue key of all.
pub const QKEY: u32 = 0x1111_1111;

/// The queues of all.
pub const CAP: QpCap = QpCap {
    max_send_wr: 64,
    max_recv_wr: 64,
    max_send_sge: 4,
    max_recv_sge: 4,
    max_inline_data: 64,
};

/// A device with one of everything and a buffer of its own.
pub struct End {
    pub device: Arc<Device>,
    pub pd: Arc<Pd>,
    pub cq: Arc<Cq>,
    pub qp: Arc<Qp>,
    pub mr: Arc<hca::Mr>,
    pub buffer: Vec<u8>,
}

/// A buffer as its region has it.
pub fn memory(buffer: &[u8]) -> mm::Sink<'static> {
    // SAFETY: tests look into a buffer only while nothing writes to it, and keep it as long as its
    // region.
    unsafe { mm::Sink::vouched(buffer.as_ptr() as u64, buffer.len() as u64) }
}

/// What the regions of all grant.
pub const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL);

/// A registration of a buffer.
pub fn registration(buffer: &[u8]) -> Arc<Umem> {
    let (space, platform) = (mm::AddressSpace::process(), pcie::Platform::default());
    let hca = platform.with_role(pcie::Role::Hca).next().unwrap();
    let access = umem::AccessFlags::LOCAL_WRITE;
    Umem::from_user(&space, memory(buffer), access, hca, &platform).unwrap()
}

pub fn options() -> Options {
    let port = std::net::UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    Options { port, name_suffix: Some(format!("engine-{port}")) }
}

impl End {
    pub fn new(name: &str, options: &Options, qp_type: QpType) -> End {
        End::with(DeviceAttr::new(name, 1), options, qp_type)
    }

    pub fn with(attr: DeviceAttr, options: &Options, qp_type: QpType) -> End {
        End::on(link::Interfaces::default(), attr, options, qp_type)
    }

    pub fn on(
        interfaces: link::Interfaces,
        attr: DeviceAttr,
        options: &Options,
        qp_type: QpType,
    ) -> End {
        End::receiving(None, interfaces, attr, options, qp_type)
    }

    /// With a receive buffer of so many bytes.
    pub fn receiving(
        receive_buffer_bytes: Option<usize>,
        interfaces: link::Interfaces,
        attr: DeviceAttr,
        options: &Options,
        qp_type: QpType,
    ) -> End {
        let configure = |config: &mut DeviceConfig| {
            config.network = hca::Network::Host(interfaces);
            config.receive_buffer_bytes = receive_buffer_bytes;
        };
        End::configured(configure, attr, options, qp_type)
    }

    /// One that reaches processes of this host by other ways than the wire.
    pub fn beside(name: &str, options: &Options, qp_type: QpType) -> End {
        let configure = |config: &mut DeviceConfig| config.neighbours = true;
        End::configured(configure, DeviceAttr::new(name, 1), options, qp_type)
    }

    fn configured(
        configure: impl FnOnce(&mut DeviceConfig),
        attr: DeviceAttr,
        options: &Options,
        qp_type: QpType,
    ) -> End {
        mm::guard::install();
        let registry = Client::connect_at(Role::Member, options).unwrap();
        let mut config = DeviceConfig {
            attr,
            comm: "test".into(),
            registry,
            mtu_bytes: Some(4096),
            network: hca::Network::Host(link::Interfaces::default()),
            trace: None,
            neighbours: false,
            receive_buffer_bytes: None,
        };
        configure(&mut config);
        let device = Device::open(config).unwrap();
        let pd = device.alloc_pd().unwrap();
        End::among(device, pd, qp_type)
    }

    /// Another one of the same device and domain.
    pub fn another(&self) -> End {
        End::among(self.device.clone(), self.pd.clone(), self.qp.init().qp_type)
    }

    pub fn among(device: Arc<Device>, pd: Arc<Pd>, qp_type: QpType) -> End {
        let cq = device.create_cq_in(256, None, None, false).unwrap();
        let init = QpInit {
            send_cq: Some(cq.clone()),
            recv_cq: Some(cq.clone()),
            cap: CAP,
            sq_sig_all: true,
            ..QpInit::new(qp_type)
        };
        let qp = device.create_qp(&pd, init).unwrap();
        let buffer = vec![0; 4 << 20];
        let umem = registration(&buffer);
        let mr = device.reg_mr(&pd, umem, buffer.as_ptr() as u64, RIGHTS).unwrap();
        End { device, pd, cq, qp, mr, buffer }
    }

    /// A counter of its device.
    pub fn counted(&self, what: Counter) -> u64 {
        self.device.directory().reader().unwrap().counter(what)
    }

    /// GID index of 127.0.0.1.
    pub fn loopback(&self) -> (u8, [u8; 16]) {
        let gids = self.device.gids(1).unwrap();
        let entry = gids.iter().find(|entry| entry.ip.to_string() == "127.0.0.1").unwrap();
        (entry.index as u8, entry.gid)
    }

    /// What reaches 127.0.0.1.
    pub fn ah(&self) -> AhAttr {
        let (sgid_index, dgid) = self.loopback();
        let ah = AhAttr { is_global: true, dgid, sgid_index, ..AhAttr::default() };
        AhAttr { hop_limit: 64, port_num: 1, ..ah }
    }

    pub fn connect(&self, other: &End) {
        self.ready_to_receive(other);
        self.ready_to_send();
    }

    /// The bits for one of these types.
    fn of(&self, types: &[QpType], mask: AttrMask) -> AttrMask {
        if types.contains(&self.qp.init().qp_type) { mask } else { AttrMask::empty() }
    }

    fn reliable(&self, mask: AttrMask) -> AttrMask {
        self.of(&[QpType::Rc, QpType::XrcSend, QpType::XrcRecv], mask)
    }

    /// Takes a connected queue pair from reset to RTR: it answers its peer, and asks nothing.
    pub fn ready_to_receive(&self, other: &End) {
        type M = AttrMask;
        let answers = |mask| self.of(&[QpType::Rc, QpType::XrcRecv], mask);
        let mut attr = QpAttr {
            qp_state: QpState::Init,
            port_num: 1,
            access: Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL,
            ..self.qp.query()
        };
        if self.reliable(M::STATE).is_empty() {
            attr.access = Access::REMOTE_WRITE;
        }
        let init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        self.qp.modify(&attr, init).unwrap();
        attr = QpAttr {
            qp_state: QpState::Rtr,
            ah: self.ah(),
            path_mtu: 5,
            dest_qp_num: other.qp.number(),
            rq_psn: 77,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ..attr
        };
        let rtr = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        self.qp.modify(&attr, rtr | answers(M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER)).unwrap();
    }

    /// And on to RTS.
    fn ready_to_send(&self) {
        type M = AttrMask;
        let asks = |mask| self.of(&[QpType::Rc, QpType::XrcSend], mask);
        let attr = QpAttr {
            qp_state: QpState::Rts,
            sq_psn: 77,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            ..self.qp.query()
        };
        let repeats = M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        let rts = M::STATE | M::SQ_PSN | self.reliable(M::TIMEOUT) | asks(repeats);
        self.qp.modify(&attr, rts).unwrap();
    }

    /// Takes a datagram queue pair to RTS.
    pub fn ready_datagrams(&self) {
        type M = AttrMask;
        let attr = QpAttr { port_num: 1, qkey: QKEY, ..self.qp.query() };
        for (qp_state, mask) in [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
            (QpState::Rtr, M::empty()),
            (QpState::Rts, M::SQ_PSN),
        ] {
            self.qp.modify(&QpAttr { qp_state, ..attr }, mask | M::STATE).unwrap();
        }
    }

    pub fn sge(&self, at: usize, length: u32) -> Sge {
        Sge { addr: self.buffer.as_ptr() as u64 + at as u64, length, lkey: self.mr.key() }
    }

    pub fn post(&self, op: SendOp, at: usize, length: u32) {
        self.post_to(op, at, length, None);
    }

    /// Posts as libibverbs does.
    pub fn post_to(&self, op: SendOp, at: usize, length: u32, datagram: Option<Datagram>) {
        let (wr_id, imm, flags) = (5, None, SendFlags::SIGNALED);
        let payload = ShortPayload::Memory(self.sge(at, length));
        let short = || {
            let may = op == SendOp::Send && datagram.is_none();
            may.then_some(ShortWr { wr_id, imm, flags, payload })
        };
        if self.qp.post_short(short) {
            return;
        }
        let wr = SendWr {
            wr_id,
            op,
            payload: Payload::Gather([self.sge(at, length)].into_iter().collect()),
            flags,
            datagram,
            xrc_srqn: 0,
        };
        self.qp.post_send(&mut [Ok(wr)].into_iter()).unwrap();
    }

    pub fn completion(&self) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut found = None;
        while found.is_none() {
            assert!(Instant::now() < deadline, "no completion");
            self.cq.poll(1, &mut |completion| found = Some(*completion)).unwrap();
        }
        found.unwrap()
    }

    pub fn remote(&self, at: u64) -> Remote {
        Remote { addr: self.buffer.as_ptr() as u64 + at, rkey: self.mr.key() }
    }
}
