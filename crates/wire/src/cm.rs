//! The messages of the communication management class (IBA 12.6): what is in them, and where.
//!
//! Numbers that do not fit their field are cut to it. Private data of MRA, RTU, DREQ and DREP is left out: nobody uses it.

use crate::mad::{Ids, Mad};

/// Room for private data in each message, bytes.
pub const REQ_PRIVATE_LEN: usize = 92;
/// In a REP.
pub const REP_PRIVATE_LEN: usize = 196;
/// In a REJ.
pub const REJ_PRIVATE_LEN: usize = 148;
/// Room for what more a REJ has to say.
pub const REJ_INFO_LEN: usize = 72;
/// Room for private data in a SIDR_REQ.
pub const SIDR_REQ_PRIVATE_LEN: usize = 216;
/// In a SIDR_REP.
pub const SIDR_REP_PRIVATE_LEN: usize = 136;

/// LID that says "no LID" (IBA 4.1.3).
const PERMISSIVE_LID: u16 = 0xffff;

/// Kind of a message: attribute of the class (IBA 12.6, table 105).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// Request for a connection.
    Req = 0x10,
    /// Receipt of a message whose answer takes time.
    Mra = 0x11,
    /// Refusal.
    Rej = 0x12,
    /// Reply to a REQ.
    Rep = 0x13,
    /// Ready to use.
    Rtu = 0x14,
    /// Request to disconnect.
    Dreq = 0x15,
    /// Reply to it.
    Drep = 0x16,
    /// Request for a datagram service's queue pair.
    SidrReq = 0x17,
    /// Reply to it.
    SidrRep = 0x18,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::Req,
        Kind::Mra,
        Kind::Rej,
        Kind::Rep,
        Kind::Rtu,
        Kind::Dreq,
        Kind::Drep,
        Kind::SidrReq,
        Kind::SidrRep,
    ];

    /// The kind of an attribute; those for alternate paths, which RoCE has not, are none.
    pub fn of(attribute: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u16 == attribute)
    }
}

/// Reasons of a REJ (IBA table 109) that this manager gives; others are passed on as they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason(pub u16);

impl Reason {
    /// The sender gave up waiting.
    pub const TIMEOUT: Reason = Reason(4);
    /// The message is about no conversation of the receiver's.
    pub const INVALID_COMM_ID: Reason = Reason(6);
    /// Nobody listens for the service.
    pub const INVALID_SERVICE_ID: Reason = Reason(8);
    /// The connection existed before.
    pub const STALE_CONN: Reason = Reason(10);
    /// The program does not want.
    pub const CONSUMER_DEFINED: Reason = Reason(28);
    /// Options that the vendor's device does not have.
    pub const VENDOR_OPTION_NOT_SUPPORTED: Reason = Reason(35);
}

/// Status of a SIDR_REP (IBA table 120).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// There is the service.
    pub const SUCCESS: SidrStatus = SidrStatus(0);
    /// Nobody listens for it.
    pub const UNSUPPORTED: SidrStatus = SidrStatus(1);
    /// The program does not want.
    pub const REJECT: SidrStatus = SidrStatus(2);
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

/// Enhanced connection establishment: options of one vendor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// Vendor, 24 bits.
    pub vendor_id: u32,
    /// Its options.
    pub attr_mod: u32,
}

/// Which message a REJ or MRA is about, two bits (IBA 12.6.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct About(pub u8);

impl About {
    /// The REQ.
    pub const REQ: About = About(0);
    /// The REP.
    pub const REP: About = About(1);
    /// Another.
    pub const OTHER: About = About(2);
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
        let mut mad = Mad::new(Kind::Req, tid);
        mad.set_attr_mod(self.ece.attr_mod);
        mad.set(0, &self.local_id.to_be_bytes());
        mad.set_u24(5, self.ece.vendor_id);
        mad.set(8, &self.service_id.to_be_bytes());
        mad.set(16, &self.ca_guid.to_be_bytes());
        mad.set_u24(32, self.qpn);
        let (transport, extended) = match self.transport {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (3, 1),
        };
        mad.set(35, &[self.responder_resources]);
        mad.set(39, &[self.initiator_depth]);
        mad.set(43, &[self.remote_timeout << 3 | transport << 1 | u8::from(self.flow_control)]);
        mad.set_u24(44, self.psn);
        mad.set(47, &[self.local_timeout << 3 | self.retry_count & 7]);
        mad.set(48, &[0xff; 2]);
        mad.set(50, &[self.mtu << 4 | self.rnr_retry_count & 7]);
        mad.set(51, &[self.max_retries << 4 | u8::from(self.srq) << 3 | extended]);
        mad.set(52, &PERMISSIVE_LID.to_be_bytes());
        mad.set(54, &PERMISSIVE_LID.to_be_bytes());
        mad.set(56, &self.local_gid);
        mad.set(72, &self.remote_gid);
        let label = self.flow_label << 12 | u32::from(self.rate & 0x3f);
        mad.set(88, &label.to_be_bytes());
        mad.set(92, &[self.traffic_class, self.hop_limit, 0, self.ack_timeout << 3]);
        mad.set(140, &self.private);
        mad
    }

    /// What a REQ says; `None` for another message, or a transport that does not exist.
    pub fn parse(mad: &Mad) -> Option<Req> {
        if mad.kind() != Some(Kind::Req) {
            return None;
        }
        let transport = match (mad.u8(43) >> 1 & 3, mad.u8(51) & 7) {
            (0, _) => Transport::Rc,
            (1, _) => Transport::Uc,
            (3, 1) => Transport::Xrc,
            _ => return None,
        };
        Some(Req {
            local_id: mad.u32(0),
            service_id: mad.u64(8),
            ca_guid: mad.u64(16),
            qpn: mad.u24(32),
            responder_resources: mad.u8(35),
            initiator_depth: mad.u8(39),
            remote_timeout: mad.u8(43) >> 3,
            local_timeout: mad.u8(47) >> 3,
            transport,
            flow_control: mad.u8(43) & 1 != 0,
            psn: mad.u24(44),
            retry_count: mad.u8(47) & 7,
            rnr_retry_count: mad.u8(50) & 7,
            max_retries: mad.u8(51) >> 4,
            mtu: mad.u8(50) >> 4,
            srq: mad.u8(51) & 8 != 0,
            local_gid: mad.array(56),
            remote_gid: mad.array(72),
            flow_label: mad.u32(88) >> 12,
            rate: mad.u8(91) & 0x3f,
            traffic_class: mad.u8(92),
            hop_limit: mad.u8(93),
            ack_timeout: mad.u8(95) >> 3,
            ece: Ece { vendor_id: mad.u24(5), attr_mod: mad.attr_mod() },
            private: mad.array(140),
        })
    }
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
        let mut mad = Mad::with_ids(Kind::Rep, tid, self.ids);
        mad.set_attr_mod(self.ece.attr_mod);
        mad.set_u24(12, self.qpn);
        mad.set_u24(16, self.xrc_qpn);
        mad.set_u24(20, self.psn);
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        mad.set(15, &[high]);
        mad.set(19, &[middle]);
        mad.set(23, &[low]);
        mad.set(24, &[self.responder_resources, self.initiator_depth]);
        // Failover is not supported.
        mad.set(26, &[1 << 1 | u8::from(self.flow_control)]);
        mad.set(27, &[self.rnr_retry_count << 5 | u8::from(self.srq) << 4]);
        mad.set(28, &self.ca_guid.to_be_bytes());
        mad.set(36, &self.private);
        mad
    }

    /// What a REP says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<Rep> {
        (mad.kind() == Some(Kind::Rep)).then(|| Rep {
            ids: mad.ids(),
            qpn: mad.u24(12),
            xrc_qpn: mad.u24(16),
            psn: mad.u24(20),
            responder_resources: mad.u8(24),
            initiator_depth: mad.u8(25),
            flow_control: mad.u8(26) & 1 != 0,
            rnr_retry_count: mad.u8(27) >> 5,
            srq: mad.u8(27) & 0x10 != 0,
            ca_guid: mad.u64(28),
            ece: Ece {
                vendor_id: u32::from_be_bytes([0, mad.u8(15), mad.u8(19), mad.u8(23)]),
                attr_mod: mad.attr_mod(),
            },
            private: mad.array(36),
        })
    }
}

/// Contents of an MRA (IBA 12.6.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mra {
    /// Communication ids.
    pub ids: Ids,
    /// The message that was received.
    pub about: About,
    /// How long its answer may take: 4.096 µs · 2^n, 5 bits.
    pub service_timeout: u8,
}

impl Mra {
    /// The message.
    pub fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::with_ids(Kind::Mra, tid, self.ids);
        mad.set(8, &[self.about.0 << 6, self.service_timeout << 3]);
        mad
    }

    /// What an MRA says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<Mra> {
        (mad.kind() == Some(Kind::Mra)).then(|| Mra {
            ids: mad.ids(),
            about: About(mad.u8(8) >> 6),
            service_timeout: mad.u8(9) >> 3,
        })
    }
}

/// Contents of a REJ (IBA 12.6.7).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rej {
    /// Communication ids.
    pub ids: Ids,
    /// The message that is refused.
    pub about: About,
    /// Why.
    pub reason: Reason,
    /// How many bytes of `info` count, 7 bits.
    pub info_len: u8,
    /// What more the reason has to say (IBA table 109).
    pub info: [u8; REJ_INFO_LEN],
    /// Private data.
    pub private: [u8; REJ_PRIVATE_LEN],
}

impl Rej {
    /// The GUID that a sender who gave up waiting names itself by.
    pub fn ca_guid(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.info;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// The message.
    pub fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::with_ids(Kind::Rej, tid, self.ids);
        mad.set(8, &[self.about.0 << 6, self.info_len << 1]);
        mad.set(10, &self.reason.0.to_be_bytes());
        mad.set(12, &self.info);
        mad.set(84, &self.private);
        mad
    }

    /// What a REJ says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<Rej> {
        (mad.kind() == Some(Kind::Rej)).then(|| Rej {
            ids: mad.ids(),
            about: About(mad.u8(8) >> 6),
            reason: Reason(mad.u16(10)),
            info_len: mad.u8(9) >> 1,
            info: mad.array(12),
            private: mad.array(84),
        })
    }
}

/// Contents of a DREQ (IBA 12.6.10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// Communication ids.
    pub ids: Ids,
    /// The receiver's queue pair.
    pub remote_qpn: u32,
}

impl Dreq {
    /// The message.
    pub fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::with_ids(Kind::Dreq, tid, self.ids);
        mad.set_u24(8, self.remote_qpn);
        mad
    }

    /// What a DREQ says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<Dreq> {
        (mad.kind() == Some(Kind::Dreq)).then(|| Dreq { ids: mad.ids(), remote_qpn: mad.u24(8) })
    }
}

/// Contents of a SIDR_REQ (IBA 12.11.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// Names the question.
    pub request_id: u32,
    /// Service that is asked for.
    pub service_id: u64,
    /// Private data.
    pub private: [u8; SIDR_REQ_PRIVATE_LEN],
}

impl SidrReq {
    /// The message.
    pub fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::new(Kind::SidrReq, tid);
        mad.set(0, &self.request_id.to_be_bytes());
        mad.set(4, &[0xff; 2]);
        mad.set(8, &self.service_id.to_be_bytes());
        mad.set(16, &self.private);
        mad
    }

    /// What a SIDR_REQ says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<SidrReq> {
        (mad.kind() == Some(Kind::SidrReq)).then(|| SidrReq {
            request_id: mad.u32(0),
            service_id: mad.u64(8),
            private: mad.array(16),
        })
    }
}

/// Contents of a SIDR_REP (IBA 12.11.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// The question.
    pub request_id: u32,
    /// Whether there is the service.
    pub status: SidrStatus,
    /// Its queue pair.
    pub qpn: u32,
    /// The service.
    pub service_id: u64,
    /// Queue key.
    pub qkey: u32,
    /// Private data.
    pub private: [u8; SIDR_REP_PRIVATE_LEN],
}

impl SidrRep {
    /// The message.
    pub fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::new(Kind::SidrRep, tid);
        mad.set(0, &self.request_id.to_be_bytes());
        mad.set(4, &[self.status.0]);
        mad.set_u24(8, self.qpn);
        mad.set(12, &self.service_id.to_be_bytes());
        mad.set(20, &self.qkey.to_be_bytes());
        mad.set(96, &self.private);
        mad
    }

    /// What a SIDR_REP says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<SidrRep> {
        (mad.kind() == Some(Kind::SidrRep)).then(|| SidrRep {
            request_id: mad.u32(0),
            status: SidrStatus(mad.u8(4)),
            qpn: mad.u24(8),
            service_id: mad.u64(12),
            qkey: mad.u32(20),
            private: mad.array(96),
        })
    }
}
