//! REQ, the request for a connection (IBA 12.6.5).

use super::datagram::{Ece, Kind, Mad};
use crate::{DEFAULT_PKEY, PERMISSIVE_LID};

/// Room for private data in a REQ, in bytes.
pub const REQ_PRIVATE_LEN: usize = 92;

/// Where the fields stand.
pub(super) mod field {
    use crate::field::Field;

    pub(super) const LOCAL_ID: Field = 0..4;
    pub(super) const VENDOR_ID: Field = 5..8;
    pub(in crate::mad::cm) const SERVICE_ID: Field = 8..16;
    pub(super) const CA_GUID: Field = 16..24;
    pub(super) const QPN: Field = 32..35;
    pub(super) const RESPONDER_RESOURCES: usize = 35;
    pub(super) const INITIATOR_DEPTH: usize = 39;
    /// Remote timeout 5, transport 2, flow control 1 bit.
    pub(super) const REMOTE_TIMEOUT: usize = 43;
    pub(super) const PSN: Field = 44..47;
    /// Local timeout 5, retry count 3 bits.
    pub(super) const LOCAL_TIMEOUT: usize = 47;
    pub(super) const PKEY: Field = 48..50;
    /// Path MTU 4, retries when the receiver is not ready 3 bits.
    pub(super) const MTU: usize = 50;
    /// Repetitions 4, shared queue 1, extended transport 3 bits.
    pub(super) const MAX_RETRIES: usize = 51;
    pub(super) const LOCAL_LID: Field = 52..54;
    pub(super) const REMOTE_LID: Field = 54..56;
    pub(super) const LOCAL_GID: Field = 56..72;
    pub(super) const REMOTE_GID: Field = 72..88;
    /// Flow label 20, rate 6 bits at the end.
    pub(super) const FLOW_LABEL_AND_RATE: Field = 88..92;
    pub(super) const TRAFFIC_CLASS: usize = 92;
    pub(super) const HOP_LIMIT: usize = 93;
    /// Local ACK timeout, 5 bits.
    pub(super) const ACK_TIMEOUT: usize = 95;
    pub(in crate::mad::cm) const PRIVATE: Field = 140..232;
}

/// Transport that is asked for, seen from the active side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection.
    Xrc,
}

/// Contents of a REQ (IBA 12.6.5), as far as they mean something on RoCE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's communication id.
    pub local_id: u32,
    /// Service that is asked for.
    pub service_id: u64,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// The sender's queue pair.
    pub qpn: u32,
    /// READs and atomics that may come in at once.
    pub responder_resources: u8,
    /// READs and atomics that may go out at once.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer: 4.096 µs · 2^n, 5 bits.
    pub remote_timeout: u8,
    /// How long the sender may take to answer, likewise.
    pub local_timeout: u8,
    /// Transport of the queue pair.
    pub transport: Transport,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// PSN that the sender expects first.
    pub psn: u32,
    /// Retries, 3 bits.
    pub retry_count: u8,
    /// Retries when the receiver is not ready, 3 bits.
    pub rnr_retry_count: u8,
    /// Repetitions of a message of the conversation, 4 bits.
    pub max_retries: u8,
    /// Path MTU, verbs code, 4 bits.
    pub mtu: u8,
    /// Whether the sender receives from a shared queue.
    pub srq: bool,
    /// The sender's GID.
    pub local_gid: [u8; 16],
    /// The receiver's.
    pub remote_gid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Rate, verbs code, 6 bits.
    pub rate: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Local ACK timeout: 4.096 µs · 2^n, 5 bits.
    pub ack_timeout: u8,
    /// Vendor options.
    pub ece: Ece,
    /// Private data.
    pub private: [u8; REQ_PRIVATE_LEN],
}

impl Req {
    /// The message.
    pub fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::with_modifier(Kind::Req, tid, self.ece.attr_mod);
        mad.set(field::LOCAL_ID, &self.local_id.to_be_bytes());
        mad.set_u24(field::VENDOR_ID, self.ece.vendor_id);
        mad.set(field::SERVICE_ID, &self.service_id.to_be_bytes());
        mad.set(field::CA_GUID, &self.ca_guid.to_be_bytes());
        mad.set_u24(field::QPN, self.qpn);
        let (transport, extended) = match self.transport {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (3, 1),
        };
        mad.set_u8(field::RESPONDER_RESOURCES, self.responder_resources);
        mad.set_u8(field::INITIATOR_DEPTH, self.initiator_depth);
        let flow_control = u8::from(self.flow_control);
        let timeout = self.remote_timeout << 3 | transport << 1 | flow_control;
        mad.set_u8(field::REMOTE_TIMEOUT, timeout);
        mad.set_u24(field::PSN, self.psn);
        mad.set_u8(field::LOCAL_TIMEOUT, self.local_timeout << 3 | self.retry_count & 7);
        mad.set(field::PKEY, &DEFAULT_PKEY.to_be_bytes());
        mad.set_u8(field::MTU, self.mtu << 4 | self.rnr_retry_count & 7);
        let retries = self.max_retries << 4 | u8::from(self.srq) << 3 | extended;
        mad.set_u8(field::MAX_RETRIES, retries);
        mad.set(field::LOCAL_LID, &PERMISSIVE_LID.to_be_bytes());
        mad.set(field::REMOTE_LID, &PERMISSIVE_LID.to_be_bytes());
        mad.set(field::LOCAL_GID, &self.local_gid);
        mad.set(field::REMOTE_GID, &self.remote_gid);
        let label = self.flow_label << 12 | u32::from(self.rate & 0x3f);
        mad.set(field::FLOW_LABEL_AND_RATE, &label.to_be_bytes());
        mad.set_u8(field::TRAFFIC_CLASS, self.traffic_class);
        mad.set_u8(field::HOP_LIMIT, self.hop_limit);
        mad.set_u8(field::ACK_TIMEOUT, self.ack_timeout << 3);
        mad.set(field::PRIVATE, &self.private);
        mad
    }

    /// What a REQ says; `None` for another message, or a transport that does not exist.
    pub fn parse(mad: &Mad) -> Option<Req> {
        if mad.kind() != Some(Kind::Req) {
            return None;
        }
        let transport =
            match (mad.u8(field::REMOTE_TIMEOUT) >> 1 & 3, mad.u8(field::MAX_RETRIES) & 7) {
                (0, _) => Transport::Rc,
                (1, _) => Transport::Uc,
                (3, 1) => Transport::Xrc,
                _ => return None,
            };
        Some(Req {
            local_id: mad.u32(field::LOCAL_ID),
            service_id: mad.u64(field::SERVICE_ID),
            ca_guid: mad.u64(field::CA_GUID),
            qpn: mad.u24(field::QPN),
            responder_resources: mad.u8(field::RESPONDER_RESOURCES),
            initiator_depth: mad.u8(field::INITIATOR_DEPTH),
            remote_timeout: mad.u8(field::REMOTE_TIMEOUT) >> 3,
            local_timeout: mad.u8(field::LOCAL_TIMEOUT) >> 3,
            transport,
            flow_control: mad.u8(field::REMOTE_TIMEOUT) & 1 != 0,
            psn: mad.u24(field::PSN),
            retry_count: mad.u8(field::LOCAL_TIMEOUT) & 7,
            rnr_retry_count: mad.u8(field::MTU) & 7,
            max_retries: mad.u8(field::MAX_RETRIES) >> 4,
            mtu: mad.u8(field::MTU) >> 4,
            srq: mad.u8(field::MAX_RETRIES) & 8 != 0,
            local_gid: mad.array(field::LOCAL_GID),
            remote_gid: mad.array(field::REMOTE_GID),
            flow_label: mad.u32(field::FLOW_LABEL_AND_RATE) >> 12,
            rate: (mad.u32(field::FLOW_LABEL_AND_RATE) & 0x3f) as u8,
            traffic_class: mad.u8(field::TRAFFIC_CLASS),
            hop_limit: mad.u8(field::HOP_LIMIT),
            ack_timeout: mad.u8(field::ACK_TIMEOUT) >> 3,
            ece: Ece { vendor_id: mad.u24(field::VENDOR_ID), attr_mod: mad.modifier() },
            private: mad.array(field::PRIVATE),
        })
    }
}
