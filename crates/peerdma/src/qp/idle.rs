//! A queue pair between its making and its connection.

use super::Qp;
use super::builder::QpBuilder;
use super::endpoint::Endpoint;
use super::raw::{QpState, RawQp};
use crate::error::Result;
use crate::memory::LocalSlice;
use verbs_sys::flags::*;
use verbs_sys::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr};

/// A queue pair that is not connected: it takes receives and has an address.
#[derive(Debug)]
pub struct IdleQp {
    pub(super) qp: RawQp,
    pub(super) endpoint: Endpoint,
    pub(super) sgid_index: u8,
    /// READs and atomics served, and begun, at once.
    pub(super) depths: (u8, u8),
    pub(super) ethernet: bool,
    pub(super) settings: QpBuilder,
}

impl IdleQp {
    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Posts a receive; it is used once connected.
    pub fn post_recv(&self, id: u64, local: &[LocalSlice<'_>]) -> Result<()> {
        self.qp.post_recv(id, local)
    }

    /// Connects to the peer's endpoint: the queue pair can receive and send. The peer must do the
    /// same before what is sent here can arrive.
    pub fn connect(self, peer: &Endpoint) -> Result<Qp> {
        let IdleQp { qp, endpoint, sgid_index, depths, ethernet, settings } = self;
        let mut attr = ibv_qp_attr {
            qp_state: QpState::ReadyToReceive as u32,
            path_mtu: endpoint.mtu.min(peer.mtu) as u32,
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: depths.0,
            min_rnr_timer: settings.min_rnr_timer,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ibv_gid { raw: peer.gid.0 },
                    sgid_index,
                    hop_limit: settings.hop_limit,
                    traffic_class: settings.traffic_class,
                    ..Default::default()
                },
                dlid: peer.lid,
                is_global: (ethernet || !peer.gid.is_zero()).into(),
                port_num: settings.port,
                ..Default::default()
            },
            ..Default::default()
        };
        qp.modify(
            &mut attr,
            QP_STATE
                | QP_AV
                | QP_PATH_MTU
                | QP_DEST_QPN
                | QP_RQ_PSN
                | QP_MAX_DEST_RD_ATOMIC
                | QP_MIN_RNR_TIMER,
        )?;
        let mut attr = ibv_qp_attr {
            qp_state: QpState::ReadyToSend as u32,
            sq_psn: endpoint.psn,
            timeout: settings.timeout,
            retry_cnt: settings.retry_cnt,
            rnr_retry: settings.rnr_retry,
            max_rd_atomic: depths.1,
            ..Default::default()
        };
        qp.modify(
            &mut attr,
            QP_STATE | QP_SQ_PSN | QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC,
        )?;
        Ok(Qp { qp, endpoint, peer: *peer })
    }
}
