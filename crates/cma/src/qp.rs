//! What attributes a queue pair needs on its way to RTS (kernel `rdma_init_qp_attr`,
//! `ib_cm_init_qp_attr`).

use crate::cma::Cma;
use crate::error::Error;
use crate::event::AddressVector;
use crate::id::{IdState, Key, QpType};

/// `enum ib_qp_attr_mask` of the attributes set here.
const STATE: u32 = 1;
const ACCESS_FLAGS: u32 = 1 << 3;
const PKEY_INDEX: u32 = 1 << 4;
const PORT: u32 = 1 << 5;
const QKEY: u32 = 1 << 6;
const AV: u32 = 1 << 7;
const PATH_MTU: u32 = 1 << 8;
const TIMEOUT: u32 = 1 << 9;
const RETRY_CNT: u32 = 1 << 10;
const RNR_RETRY: u32 = 1 << 11;
const RQ_PSN: u32 = 1 << 12;
const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
const MIN_RNR_TIMER: u32 = 1 << 15;
const SQ_PSN: u32 = 1 << 16;
const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
const DEST_QPN: u32 = 1 << 20;

/// Queue pair states (`enum ibv_qp_state`).
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;

const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;

/// Attributes and which of them count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpAttr {
    /// Which count (`enum ibv_qp_attr_mask`).
    pub mask: u32,
    /// IdState to go to.
    pub state: u32,
    /// Path MTU, verbs code.
    pub path_mtu: u32,
    /// Queue key.
    pub qkey: u32,
    /// First PSN to expect.
    pub rq_psn: u32,
    /// First PSN to send.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// Remote access.
    pub access_flags: u32,
    /// The way to the peer.
    pub ah: Option<AddressVector>,
    /// READs and atomics that may go out at once.
    pub max_rd_atomic: u8,
    /// And come in.
    pub max_dest_rd_atomic: u8,
    /// ACK timeout.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// Retries when the receiver is not ready.
    pub rnr_retry: u8,
}

impl Cma {
    /// The attributes for a transition to `state`.
    ///
    /// # Errors
    /// EINVAL for another state than INIT, RTR or RTS, or before there is a connection to take them
    /// from.
    pub fn init_qp_attr(&mut self, key: Key, state: u32) -> Result<QpAttr, Error> {
        let id = self.id_mut(key)?;
        if id.device().is_none() {
            return Err(Error::INVAL);
        }
        let mut attr = QpAttr { state, ..QpAttr::default() };
        if id.is_datagram() || id.conn.is_none() {
            if id.is_datagram() && !id.choose_qkey(0) {
                return Err(Error::INVAL);
            }
            if id.is_datagram() {
                attr.qkey = id.qkey;
                attr.mask = STATE | PKEY_INDEX | PORT | QKEY;
            } else {
                attr.mask = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
            }
            return Ok(attr);
        }
        match state {
            INIT => {
                attr.mask = STATE | ACCESS_FLAGS | PKEY_INDEX | PORT;
                attr.access_flags = REMOTE_WRITE;
                if id.responder_resources > 0 {
                    attr.access_flags |= REMOTE_READ | REMOTE_ATOMIC;
                }
            }
            RTR => {
                let remote = id.remote.ok_or(Error::INVAL)?;
                let path = id.path.ok_or(Error::INVAL)?;
                attr.mask = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN;
                attr.ah = Some(id.address_vector().ok_or(Error::INVAL)?);
                attr.path_mtu = path.mtu.into();
                attr.dest_qp_num = remote.qpn;
                attr.rq_psn = id.psn;
                if matches!(id.qp_type, QpType::RC | QpType::XRC_RECV) {
                    attr.mask |= MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
                    attr.max_dest_rd_atomic = id.responder_resources;
                }
            }
            RTS => {
                let remote = id.remote.ok_or(Error::INVAL)?;
                let path = id.path.ok_or(Error::INVAL)?;
                if id.state != IdState::Connected {
                    return Err(Error::INVAL);
                }
                attr.mask = STATE | SQ_PSN;
                attr.sq_psn = remote.psn;
                if matches!(id.qp_type, QpType::RC | QpType::XRC_SEND) {
                    attr.mask |= RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
                    attr.retry_cnt = id.retry_count;
                    attr.rnr_retry = id.rnr_retry_count;
                    attr.max_rd_atomic = id.initiator_depth;
                }
                if matches!(id.qp_type, QpType::RC | QpType::XRC_SEND | QpType::XRC_RECV) {
                    attr.mask |= TIMEOUT;
                    attr.timeout = id.ack_timeout.unwrap_or(path.ack_timeout);
                }
            }
            _ => return Err(Error::INVAL),
        }
        Ok(attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ChannelId;
    use cm::{Cm, Config};
    use std::collections::HashSet;

    const CHANNEL: ChannelId = ChannelId(1);
    const DRAWN: usize = 1000;

    fn first_psns(seed: u64) -> Vec<u32> {
        let config = Config { id_bits: 22, seed: 1 };
        let mut cma = Cma::new(Cm::new(config), seed);
        cma.open(CHANNEL);
        let mut draw = || {
            let handle = cma.create(CHANNEL, 0, 0x0106, 0).unwrap();
            let key = cma.key(CHANNEL, handle).unwrap();
            cma.id_mut(key).unwrap().psn
        };
        (0..DRAWN).map(|_| draw()).collect()
    }

    /// Who knows a connection's numbers can write into it, so one first PSN must not give the
    /// next away.
    #[test]
    fn first_psns_are_not_foreseen() {
        let [one, other] = [1, 2].map(first_psns);
        assert_eq!(one, first_psns(1), "drawn from the seed");
        let (low, high) = (one.iter().min().unwrap(), one.iter().max().unwrap());
        assert!(high - low > 0xf0_0000 && *high < 1 << 24, "{low:#x} to {high:#x}");
        let steps: HashSet<u32> =
            one.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) & 0xff_ffff).collect();
        assert!(steps.len() > DRAWN - 10, "{} steps among {DRAWN}", steps.len());
        let alike = one.iter().zip(&other).filter(|(one, other)| one == other).count();
        assert!(alike < 10, "{alike} are alike from another seed");
        let apart: HashSet<u32> = one
            .iter()
            .zip(&other)
            .map(|(one, other)| one.wrapping_sub(*other) & 0xff_ffff)
            .collect();
        assert!(apart.len() > DRAWN - 10, "the seed moves them all alike");
    }
}
