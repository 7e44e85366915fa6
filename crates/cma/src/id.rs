//! One communication identifier (`struct rdma_cm_id`): where it is bound, whom it talks to, and how
//! far it is.

use crate::addr::{Addr, PortSpace, gid_of};
use crate::event::{AddressVector, Ece};
use std::net::IpAddr;

/// Names an id for its life; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub u64);

/// Names an open descriptor of the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId(pub u64);

/// How far an id is (`enum rdma_cm_state`, without those that only last while a kernel thread
/// works).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdState {
    /// Just made.
    Idle,
    /// Bound to an address.
    Bound,
    /// Waits for the hardware address of its next hop.
    AddrQuery,
    /// Knows its destination.
    AddrResolved,
    /// Knows its destination and the way there.
    RouteResolved,
    /// Listens.
    Listening,
    /// Connecting or connected.
    Connected,
    /// The connection is over.
    Disconnected,
}

/// Transport of an id's queue pair (`enum ibv_qp_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpType(pub u8);

impl QpType {
    /// Reliable connection.
    pub const RC: QpType = QpType(2);
    /// Unreliable connection.
    pub const UC: QpType = QpType(3);
    /// Unreliable datagram.
    pub const UD: QpType = QpType(4);
    /// Sending half of an extended reliable connection.
    pub const XRC_SEND: QpType = QpType(9);
    /// Receiving half.
    pub const XRC_RECV: QpType = QpType(10);
}

/// An address of this host that an id uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// Number of the device that has it.
    pub device: usize,
    /// The address.
    pub ip: IpAddr,
    /// Its interface.
    pub ifindex: u32,
    /// Its place in the port's GID table.
    pub gid_index: u8,
    /// Path MTU of its interface, as the verbs code (1 = 256 … 5 = 4096 bytes).
    pub mtu: u8,
}

/// A path (`struct sa_path_rec`, as far as RoCE has it).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Own GID.
    pub sgid: [u8; 16],
    /// The peer's.
    pub dgid: [u8; 16],
    /// Flow label of the packets' GRH.
    pub flow_label: u32,
    /// Hop limit of the packets' GRH.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Path MTU, verbs code.
    pub mtu: u8,
    /// Time a packet takes at most: 4.096 µs · 2^n.
    pub packet_life_time: u8,
    /// Local ACK timeout of the queue pair: 4.096 µs · 2^n.
    pub ack_timeout: u8,
}

/// What the kernel assumes for Ethernet (`CMA_IBOE_PACKET_LIFETIME`).
pub(crate) const PACKET_LIFE_TIME: u8 = 18;
/// Hop limit of paths (`net.ipv4.ip_default_ttl`).
pub(crate) const HOP_LIMIT: u8 = 64;
/// 25 Gbit/s times four lanes (`enum ib_rate`).
pub const RATE: u8 = 16;

impl Path {
    /// The ACK timeout for a life time: there and back.
    pub(crate) fn ack_timeout_for(packet_life_time: u8) -> u8 {
        packet_life_time.saturating_add(1).min(31)
    }
}

/// What the peer of a connection said about its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Remote {
    pub(crate) qpn: u32,
    /// PSN that the peer expects first.
    pub(crate) psn: u32,
}

/// An id.
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) channel: ChannelId,
    /// The program's number for it; 0 until it accepts a connection.
    pub(crate) uid: u64,
    /// Its number at the device; none before a connection request was delivered.
    pub(crate) handle: Option<u32>,
    pub(crate) space: PortSpace,
    pub(crate) qp_type: QpType,
    pub(crate) state: IdState,
    pub(crate) reuse: bool,
    pub(crate) one_family: Option<bool>,
    pub(crate) traffic_class: Option<u8>,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) src: Addr,
    pub(crate) dst: Addr,
    pub(crate) local: Option<Local>,
    /// Number of the device that a request came to, and the interface that it came in by.
    pub(crate) adapter: usize,
    pub(crate) ifindex: u32,
    pub(crate) path: Option<Path>,
    pub(crate) qpn: u32,
    pub(crate) srq: bool,
    pub(crate) qkey: u32,
    /// First PSN that we expect.
    pub(crate) psn: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) remote: Option<Remote>,
    pub(crate) remote_ece: Ece,
    /// The connection manager's number for its conversation.
    pub(crate) conn: Option<cm::ConnId>,
    /// Requests that may wait to be delivered.
    pub(crate) backlog: u32,
    pub(crate) events_reported: u32,
}

impl Id {
    pub(crate) fn new(
        channel: ChannelId,
        uid: u64,
        space: PortSpace,
        qp_type: QpType,
        psn: u32,
    ) -> Id {
        Id {
            channel,
            uid,
            handle: None,
            space,
            qp_type,
            state: IdState::Idle,
            reuse: false,
            one_family: None,
            traffic_class: None,
            ack_timeout: None,
            src: Addr::None,
            dst: Addr::None,
            local: None,
            adapter: 0,
            ifindex: 0,
            path: None,
            qpn: 0,
            srq: false,
            qkey: 0,
            psn: psn & 0xff_ffff,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            remote: None,
            remote_ece: Ece::default(),
            conn: None,
            backlog: 0,
            events_reported: 0,
        }
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type == QpType::UD
    }

    /// The number of its device: of the address that it is bound to, that leads to its peer, or
    /// that its peer asked for.
    pub(crate) fn device(&self) -> Option<usize> {
        self.local.map(|local| local.device).or(self.path.map(|_| self.adapter))
    }

    /// The path from its source to its destination.
    pub(crate) fn make_path(&self) -> Option<Path> {
        let local = self.local?;
        let packet_life_time =
            self.ack_timeout.map_or(PACKET_LIFE_TIME, |timeout| timeout.saturating_sub(1));
        Some(Path {
            sgid: gid_of(local.ip),
            dgid: gid_of(self.dst.ip()?),
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: self.traffic_class.unwrap_or(0),
            mtu: local.mtu,
            packet_life_time,
            ack_timeout: self.ack_timeout.unwrap_or(Path::ack_timeout_for(packet_life_time)),
        })
    }

    /// The address vector of its path.
    pub(crate) fn address_vector(&self) -> Option<AddressVector> {
        let path = self.path?;
        Some(AddressVector {
            dgid: path.dgid,
            sgid_index: self.local?.gid_index,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            dlid: 0,
        })
    }

    /// Its queue key, chosen at the latest now (kernel `cma_set_qkey`).
    pub(crate) fn choose_qkey(&mut self, wanted: u32) -> bool {
        if self.qkey != 0 {
            return wanted == 0 || wanted == self.qkey;
        }
        self.qkey = match (wanted, self.space) {
            (0, PortSpace::Udp | PortSpace::Ib) => UDP_QKEY,
            (wanted, _) => wanted,
        };
        true
    }
}

/// Queue key of the UDP port space (`RDMA_UDP_QKEY`).
pub(crate) const UDP_QKEY: u32 = 0x0123_4567;
