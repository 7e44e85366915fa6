//! What a queue pair is made with, and how it is made.

use super::endpoint::Endpoint;
use super::idle::IdleQp;
use super::raw::{QpState, RawQp};
use crate::attr::Mtu;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::memory::Access;
use crate::pd::Pd;
use std::ptr::NonNull;
use verbs_sys::flags::{QP_ACCESS_FLAGS, QP_PKEY_INDEX, QP_PORT, QP_STATE, QPT_RC};
use verbs_sys::{ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr};

impl Pd {
    /// Begins a reliable-connection queue pair whose completions go to the given queues (which may
    /// be the same).
    pub fn qp(&self, send_cq: &Cq, recv_cq: &Cq) -> QpBuilder {
        QpBuilder::new(self, send_cq, recv_cq)
    }
}

/// A queue pair to be: every setting has a default that suits most programs.
#[derive(Clone, Debug)]
#[must_use = "nothing is created before build()"]
pub struct QpBuilder {
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    cap: ibv_qp_cap,
    access: Access,
    pub(super) port: u8,
    gid_index: Option<u8>,
    mtu: Option<Mtu>,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

impl QpBuilder {
    fn new(pd: &Pd, send_cq: &Cq, recv_cq: &Cq) -> QpBuilder {
        QpBuilder {
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            cap: ibv_qp_cap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            port: 1,
            gid_index: None,
            mtu: None,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    /// Outstanding send requests (64).
    pub fn max_send_wr(mut self, requests: u32) -> QpBuilder {
        self.cap.max_send_wr = requests;
        self
    }
    /// Outstanding receive requests (64).
    pub fn max_recv_wr(mut self, requests: u32) -> QpBuilder {
        self.cap.max_recv_wr = requests;
        self
    }
    /// Slices of one send and of one receive request (1).
    pub fn max_sge(mut self, slices: u32) -> QpBuilder {
        self.cap.max_send_sge = slices;
        self.cap.max_recv_sge = slices;
        self
    }
    /// Bytes that [`Op::SendInline`](crate::Op::SendInline) and
    /// [`Op::WriteInline`](crate::Op::WriteInline) may carry (0).
    pub fn max_inline_data(mut self, bytes: u32) -> QpBuilder {
        self.cap.max_inline_data = bytes;
        self
    }
    /// What the peer may do through this queue pair (write, read, atomics).
    pub fn access(mut self, access: Access) -> QpBuilder {
        self.access = access;
        self
    }
    /// Port, counted from 1 (1).
    pub fn port(mut self, port: u8) -> QpBuilder {
        self.port = port;
        self
    }
    /// Entry of the GID table ([`Context::default_gid`](crate::Context::default_gid)).
    pub fn gid_index(mut self, index: u8) -> QpBuilder {
        self.gid_index = Some(index);
        self
    }
    /// Largest MTU to use (the port's).
    pub fn mtu(mut self, mtu: Mtu) -> QpBuilder {
        self.mtu = Some(mtu);
        self
    }
    /// Time to wait for an acknowledge before trying again: 4.096 µs · 2^`code`; 0 waits for ever
    /// (14: 67 ms).
    pub fn timeout(mut self, code: u8) -> QpBuilder {
        self.timeout = code;
        self
    }
    /// Tries before giving a peer up, at most 7 (7).
    pub fn retry_cnt(mut self, tries: u8) -> QpBuilder {
        self.retry_cnt = tries;
        self
    }
    /// Tries while the peer has no receive posted; 7 is without end (7).
    pub fn rnr_retry(mut self, tries: u8) -> QpBuilder {
        self.rnr_retry = tries;
        self
    }
    /// Timer code that a peer gets when no receive is posted here (12: 0.64 ms; IBA table 46).
    pub fn min_rnr_timer(mut self, code: u8) -> QpBuilder {
        self.min_rnr_timer = code;
        self
    }
    /// DSCP and ECN bits of the packets (0).
    pub fn traffic_class(mut self, class: u8) -> QpBuilder {
        self.traffic_class = class;
        self
    }

    /// Creates the queue pair and brings it to INIT: receives may be posted.
    pub fn build(self) -> Result<IdleQp> {
        let context = self.pd.context().clone();
        let port = context.port_attr(self.port)?;
        let gid = match self.gid_index {
            None => context.default_gid(self.port)?,
            Some(index) => context
                .gids(self.port)?
                .into_iter()
                .find(|entry| entry.index == index)
                .ok_or(Error::Argument("that entry of the GID table is unused"))?,
        };
        let device = context.device_attr()?;
        let mut init = ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: self.send_cq.inner.raw.as_ptr(),
            recv_cq: self.recv_cq.inner.raw.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: self.cap,
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are alive, and the queue pair keeps them so.
        let raw = unsafe {
            (context.inner.functions().ibv_create_qp)(self.pd.inner.raw.as_ptr(), &mut init)
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_qp"))?;
        let qp = RawQp::new(self.pd.clone(), (self.send_cq.clone(), self.recv_cq.clone()), raw);
        let mut attr = ibv_qp_attr {
            qp_state: QpState::Init as u32,
            port_num: self.port,
            qp_access_flags: self.access.bits(),
            ..Default::default()
        };
        qp.modify(&mut attr, QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS)?;
        let mtu = self.mtu.unwrap_or(port.active_mtu).min(port.active_mtu);
        let endpoint =
            Endpoint { qpn: qp.qpn(), psn: random_psn(), mtu, gid: gid.gid, lid: port.lid };
        let responder_depth = device.max_qp_rd_atom.min(255) as u8;
        let initiator_depth = device.max_qp_init_rd_atom.min(255) as u8;
        Ok(IdleQp {
            qp,
            endpoint,
            sgid_index: gid.index,
            depths: (responder_depth.min(16), initiator_depth.min(16)),
            ethernet: port.ethernet,
            settings: self,
        })
    }
}

/// A random first sequence number, so that packets of an earlier connection do not fit.
fn random_psn() -> u32 {
    let mut bytes = [0_u8; 4];
    // SAFETY: the buffer holds 4 bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != 4 {
        // Without entropy the clock still differs from one connection to the next.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or(0, |now| now.subsec_nanos()).to_ne_bytes();
    }
    u32::from_ne_bytes(bytes) & 0xff_ffff
}
