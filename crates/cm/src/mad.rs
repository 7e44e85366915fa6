//! The messages of the communication management class (IBA 12.6) in their 256 bytes.

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;
/// Room for private data in each message, bytes.
pub const REQ_PRIVATE_LEN: usize = 92;
/// In a REP.
pub const REP_PRIVATE_LEN: usize = 196;
/// In a REJ.
pub const REJ_PRIVATE_LEN: usize = 148;
/// In a SIDR_REQ.
pub const SIDR_REQ_PRIVATE_LEN: usize = 216;
/// In a SIDR_REP.
pub const SIDR_REP_PRIVATE_LEN: usize = 136;

/// Where the message begins, behind the common header.
const BODY: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;
/// LID that says "no LID" (IBA 4.1.3).
const PERMISSIVE_LID: u16 = 0xffff;

/// Kind of a message: attribute of the class (IBA 12.6, table 105).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(crate) enum Kind {
    Req = 0x10,
    Mra = 0x11,
    Rej = 0x12,
    Rep = 0x13,
    Rtu = 0x14,
    Dreq = 0x15,
    Drep = 0x16,
    SidrReq = 0x17,
    SidrRep = 0x18,
}

/// Reasons of a REJ (IBA table 109) that this manager gives; others are passed on as they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason(pub u16);

impl Reason {
    /// The sender gave up waiting.
    pub const TIMEOUT: Reason = Reason(4);
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

/// A message being written or read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mad(pub(crate) [u8; MAD_LEN]);

impl Mad {
    pub(crate) fn new(kind: Kind, tid: u64) -> Mad {
        let mut mad = Mad([0; MAD_LEN]);
        mad.0[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND]);
        mad.0[8..16].copy_from_slice(&tid.to_be_bytes());
        mad.0[16..18].copy_from_slice(&(kind as u16).to_be_bytes());
        mad
    }

    /// Kind of a received message; `None` for anything else.
    pub(crate) fn kind(&self) -> Option<Kind> {
        if self.0[..4] != [BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND] {
            return None;
        }
        let attribute = u16::from_be_bytes([self.0[16], self.0[17]]);
        use Kind::*;
        [Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep]
            .into_iter()
            .find(|kind| *kind as u16 == attribute)
    }

    pub(crate) fn tid(&self) -> u64 {
        u64::from_be_bytes(self.array(0, 8))
    }

    fn set_attr_mod(&mut self, value: u32) {
        self.0[20..24].copy_from_slice(&value.to_be_bytes());
    }

    fn attr_mod(&self) -> u32 {
        u32::from_be_bytes([self.0[20], self.0[21], self.0[22], self.0[23]])
    }

    /// Bytes from `at`, which is relative to `base`: 0 for the header, 24 for the message.
    fn array<const N: usize>(&self, base: usize, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[base + at..base + at + N]);
        out
    }

    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.0[BODY + at]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(BODY, at))
    }

    pub(crate) fn u24(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.u8(at), self.u8(at + 1), self.u8(at + 2)])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(BODY, at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(BODY, at))
    }

    pub(crate) fn set(&mut self, at: usize, bytes: &[u8]) {
        self.0[BODY + at..BODY + at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn set_u24(&mut self, at: usize, value: u32) {
        let [_, bytes @ ..] = value.to_be_bytes();
        self.set(at, &bytes);
    }

    pub(crate) fn private(&self, at: usize, len: usize) -> Vec<u8> {
        self.0[BODY + at..BODY + at + len].to_vec()
    }

    pub(crate) fn local_id(&self) -> u32 {
        self.u32(0)
    }

    pub(crate) fn remote_id(&self) -> u32 {
        self.u32(4)
    }

    /// The two ids that most messages begin with.
    pub(crate) fn with_ids(kind: Kind, tid: u64, local: u32, remote: u32) -> Mad {
        let mut mad = Mad::new(kind, tid);
        mad.set(0, &local.to_be_bytes());
        mad.set(4, &remote.to_be_bytes());
        mad
    }
}

/// Contents of a REQ (IBA 12.6.5), as far as they mean something on RoCE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Req {
    pub local_id: u32,
    pub service_id: u64,
    pub ca_guid: u64,
    pub qpn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    /// How long the passive side may take to answer, and we: 4.096 µs · 2^n.
    pub remote_timeout: u8,
    pub local_timeout: u8,
    pub transport: Transport,
    pub flow_control: bool,
    pub psn: u32,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub max_retries: u8,
    pub mtu: u8,
    pub srq: bool,
    pub local_gid: [u8; 16],
    pub remote_gid: [u8; 16],
    pub flow_label: u32,
    pub rate: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub ack_timeout: u8,
    pub ece: Ece,
    pub private: Vec<u8>,
}

impl Req {
    pub(crate) fn emit(&self, tid: u64) -> Mad {
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

    /// `None` for a transport that does not exist.
    pub(crate) fn parse(mad: &Mad) -> Option<Req> {
        let transport = match (mad.u8(43) >> 1 & 3, mad.u8(51) & 7) {
            (0, _) => Transport::Rc,
            (1, _) => Transport::Uc,
            (3, 1) => Transport::Xrc,
            _ => return None,
        };
        Some(Req {
            local_id: mad.local_id(),
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
            local_gid: mad.array(BODY, 56),
            remote_gid: mad.array(BODY, 72),
            flow_label: mad.u32(88) >> 12,
            rate: mad.u8(91) & 0x3f,
            traffic_class: mad.u8(92),
            hop_limit: mad.u8(93),
            ack_timeout: mad.u8(95) >> 3,
            ece: Ece { vendor_id: mad.u24(5), attr_mod: mad.attr_mod() },
            private: mad.private(140, REQ_PRIVATE_LEN),
        })
    }
}

/// Contents of a REP (IBA 12.6.8).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rep {
    pub local_id: u32,
    pub remote_id: u32,
    pub qpn: u32,
    pub psn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub rnr_retry_count: u8,
    pub srq: bool,
    pub ca_guid: u64,
    /// The queue pair is the receiving half of an extended connection, whose number stands elsewhere.
    pub xrc: bool,
    pub ece: Ece,
    pub private: Vec<u8>,
}

impl Rep {
    pub(crate) fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::with_ids(Kind::Rep, tid, self.local_id, self.remote_id);
        mad.set_attr_mod(self.ece.attr_mod);
        mad.set_u24(if self.xrc { 16 } else { 12 }, self.qpn);
        mad.set_u24(20, self.psn);
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        mad.set(15, &[high]);
        mad.set(19, &[middle]);
        mad.set(23, &[low]);
        mad.set(24, &[self.responder_resources, self.initiator_depth]);
        // Failover is not supported.
        mad.set(26, &[1 << 1 | u8::from(self.flow_control)]);
        mad.set(27, &[self.rnr_retry_count << 5 | u8::from(self.srq || self.xrc) << 4]);
        mad.set(28, &self.ca_guid.to_be_bytes());
        mad.set(36, &self.private);
        mad
    }

    pub(crate) fn parse(mad: &Mad, xrc: bool) -> Rep {
        Rep {
            local_id: mad.local_id(),
            remote_id: mad.remote_id(),
            qpn: mad.u24(if xrc { 16 } else { 12 }),
            psn: mad.u24(20),
            responder_resources: mad.u8(24),
            initiator_depth: mad.u8(25),
            flow_control: mad.u8(26) & 1 != 0,
            rnr_retry_count: mad.u8(27) >> 5,
            srq: mad.u8(27) & 0x10 != 0,
            ca_guid: mad.u64(28),
            xrc,
            ece: Ece {
                vendor_id: u32::from_be_bytes([0, mad.u8(15), mad.u8(19), mad.u8(23)]),
                attr_mod: mad.attr_mod(),
            },
            private: mad.private(36, REP_PRIVATE_LEN),
        }
    }
}

/// Which message a REJ or MRA is about (IBA 12.6.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum About {
    Req = 0,
    Rep = 1,
    Other = 2,
}

/// A REJ (IBA 12.6.7).
pub(crate) fn rej(
    tid: u64,
    ids: (u32, u32),
    about: About,
    reason: Reason,
    info: &[u8],
    private: &[u8],
) -> Mad {
    let mut mad = Mad::with_ids(Kind::Rej, tid, ids.0, ids.1);
    mad.set(8, &[(about as u8) << 6, (info.len() as u8) << 1]);
    mad.set(10, &reason.0.to_be_bytes());
    mad.set(12, info);
    mad.set(84, private);
    mad
}

/// A SIDR_REQ (IBA 12.11.1).
pub(crate) fn sidr_req(tid: u64, request_id: u32, service_id: u64, private: &[u8]) -> Mad {
    let mut mad = Mad::new(Kind::SidrReq, tid);
    mad.set(0, &request_id.to_be_bytes());
    mad.set(4, &[0xff; 2]);
    mad.set(8, &service_id.to_be_bytes());
    mad.set(16, private);
    mad
}

/// A SIDR_REP (IBA 12.11.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SidrRep {
    pub request_id: u32,
    pub status: SidrStatus,
    pub qpn: u32,
    pub service_id: u64,
    pub qkey: u32,
    pub private: Vec<u8>,
}

impl SidrRep {
    pub(crate) fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::new(Kind::SidrRep, tid);
        mad.set(0, &self.request_id.to_be_bytes());
        mad.set(4, &[self.status.0]);
        mad.set_u24(8, self.qpn);
        mad.set(12, &self.service_id.to_be_bytes());
        mad.set(20, &self.qkey.to_be_bytes());
        mad.set(96, &self.private);
        mad
    }

    pub(crate) fn parse(mad: &Mad) -> SidrRep {
        SidrRep {
            request_id: mad.u32(0),
            status: SidrStatus(mad.u8(4)),
            qpn: mad.u24(8),
            service_id: mad.u64(12),
            qkey: mad.u32(20),
            private: mad.private(96, SIDR_REP_PRIVATE_LEN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_they_were_written() {
        let req = Req {
            local_id: 0x1234_5678,
            service_id: 0x0106_1d2f,
            ca_guid: 0x1122_3344_5566_7788,
            qpn: 0xabcdef,
            responder_resources: 16,
            initiator_depth: 7,
            remote_timeout: 20,
            local_timeout: 21,
            transport: Transport::Xrc,
            flow_control: true,
            psn: 0x987654,
            retry_count: 7,
            rnr_retry_count: 6,
            max_retries: 15,
            mtu: 5,
            srq: true,
            local_gid: [1; 16],
            remote_gid: [2; 16],
            flow_label: 0xfedcb,
            rate: 16,
            traffic_class: 0x68,
            hop_limit: 64,
            ack_timeout: 19,
            ece: Ece { vendor_id: 0x15b3, attr_mod: 0x1000_0001 },
            private: vec![3; REQ_PRIVATE_LEN],
        };
        let mad = req.emit(9);
        assert_eq!((mad.kind(), mad.tid()), (Some(Kind::Req), 9));
        assert_eq!(Req::parse(&mad), Some(req));
        for xrc in [false, true] {
            let rep = Rep {
                local_id: 1,
                remote_id: 2,
                qpn: 0x123456,
                psn: 0x654321,
                responder_resources: 3,
                initiator_depth: 4,
                flow_control: true,
                rnr_retry_count: 7,
                srq: true,
                ca_guid: 5,
                xrc,
                ece: Ece { vendor_id: 0x0a0b0c, attr_mod: 6 },
                private: vec![7; REP_PRIVATE_LEN],
            };
            assert_eq!(Rep::parse(&rep.emit(0), xrc), rep);
        }
        let sidr = SidrRep {
            request_id: 1,
            status: SidrStatus::REJECT,
            qpn: 2,
            service_id: 3,
            qkey: 4,
            private: vec![5; SIDR_REP_PRIVATE_LEN],
        };
        assert_eq!(SidrRep::parse(&sidr.emit(0)), sidr);
    }

    #[test]
    fn other_classes_and_methods_are_nothing() {
        for at in 0..4 {
            let mut mad = Mad::new(Kind::Rtu, 1);
            mad.0[at] ^= 0x40;
            assert_eq!(mad.kind(), None);
        }
        let mut mad = Mad::new(Kind::Rtu, 1);
        mad.0[17] = 0x30;
        assert_eq!(mad.kind(), None);
    }
}
