//! REP, the reply to a REQ (IBA 12.6.8).

use super::datagram::{Ece, Ids, Kind, Mad};

/// Room for private data in a REP, in bytes.
pub const REP_PRIVATE_LEN: usize = 196;

/// Where the fields stand.
mod field {
    use crate::field::Field;

    pub(super) const QPN: Field = 12..15;
    /// The vendor identifier is scattered over what was once reserved.
    pub(super) const VENDOR_ID_HIGH: usize = 15;
    pub(super) const XRC_QPN: Field = 16..19;
    pub(super) const VENDOR_ID_MIDDLE: usize = 19;
    pub(super) const PSN: Field = 20..23;
    pub(super) const VENDOR_ID_LOW: usize = 23;
    pub(super) const RESPONDER_RESOURCES: usize = 24;
    pub(super) const INITIATOR_DEPTH: usize = 25;
    /// Target ACK delay 5, failover accepted 2, flow control 1 bit.
    pub(super) const FLOW_CONTROL: usize = 26;
    /// Retries 3, shared queue 1 bit.
    pub(super) const RNR_RETRY_COUNT: usize = 27;
    pub(super) const CA_GUID: Field = 28..36;
    pub(super) const PRIVATE: Field = 36..232;
}

/// Contents of a REP (IBA 12.6.8).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rep {
    /// Communication ids.
    pub ids: Ids,
    /// The sender's queue pair, unless it is half of an extended connection.
    pub qpn: u32,
    /// The sender's queue pair if it is: the field was once an end-to-end context's.
    pub xrc_qpn: u32,
    /// PSN that the sender expects first.
    pub psn: u32,
    /// READs and atomics that may come in at once.
    pub responder_resources: u8,
    /// READs and atomics that may go out at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries when the receiver is not ready, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the sender receives from a shared queue.
    pub srq: bool,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// Vendor options.
    pub ece: Ece,
    /// Private data.
    pub private: [u8; REP_PRIVATE_LEN],
}

impl Rep {
    /// The message.
    pub fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::with_modifier(Kind::Rep, tid, self.ece.attr_mod);
        mad.set_ids(self.ids);
        mad.set_u24(field::QPN, self.qpn);
        mad.set_u24(field::XRC_QPN, self.xrc_qpn);
        mad.set_u24(field::PSN, self.psn);
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        mad.set_u8(field::VENDOR_ID_HIGH, high);
        mad.set_u8(field::VENDOR_ID_MIDDLE, middle);
        mad.set_u8(field::VENDOR_ID_LOW, low);
        mad.set_u8(field::RESPONDER_RESOURCES, self.responder_resources);
        mad.set_u8(field::INITIATOR_DEPTH, self.initiator_depth);
        // Failover is not supported.
        mad.set_u8(field::FLOW_CONTROL, 1 << 1 | u8::from(self.flow_control));
        let retries = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        mad.set_u8(field::RNR_RETRY_COUNT, retries);
        mad.set(field::CA_GUID, &self.ca_guid.to_be_bytes());
        mad.set(field::PRIVATE, &self.private);
        mad
    }

    /// What a REP says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<Rep> {
        (mad.kind() == Some(Kind::Rep)).then(|| Rep {
            ids: mad.ids(),
            qpn: mad.u24(field::QPN),
            xrc_qpn: mad.u24(field::XRC_QPN),
            psn: mad.u24(field::PSN),
            responder_resources: mad.u8(field::RESPONDER_RESOURCES),
            initiator_depth: mad.u8(field::INITIATOR_DEPTH),
            flow_control: mad.u8(field::FLOW_CONTROL) & 1 != 0,
            rnr_retry_count: mad.u8(field::RNR_RETRY_COUNT) >> 5,
            srq: mad.u8(field::RNR_RETRY_COUNT) & 0x10 != 0,
            ca_guid: mad.u64(field::CA_GUID),
            ece: Ece {
                vendor_id: u32::from_be_bytes([
                    0,
                    mad.u8(field::VENDOR_ID_HIGH),
                    mad.u8(field::VENDOR_ID_MIDDLE),
                    mad.u8(field::VENDOR_ID_LOW),
                ]),
                attr_mod: mad.modifier(),
            },
            private: mad.array(field::PRIVATE),
        })
    }
}
