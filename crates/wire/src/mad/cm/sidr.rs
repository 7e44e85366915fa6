//! SIDR_REQ and SIDR_REP, the question for a datagram service's queue pair and its answer (IBA
//! 12.11).

use super::datagram::{Kind, Mad};
use crate::DEFAULT_PKEY;

/// Room for private data in a SIDR_REQ, in bytes.
pub const SIDR_REQ_PRIVATE_LEN: usize = 216;
/// Room for private data in a SIDR_REP, in bytes.
pub const SIDR_REP_PRIVATE_LEN: usize = 136;

/// Where the fields of a SIDR_REQ stand.
pub(super) mod request {
    use crate::field::Field;

    pub(super) const ID: Field = 0..4;
    pub(super) const PKEY: Field = 4..6;
    pub(in crate::mad::cm) const SERVICE_ID: Field = 8..16;
    pub(in crate::mad::cm) const PRIVATE: Field = 16..232;
}

/// Where the fields of a SIDR_REP stand.
mod reply {
    use crate::field::Field;

    pub(super) const ID: Field = 0..4;
    pub(super) const STATUS: usize = 4;
    pub(super) const QPN: Field = 8..11;
    pub(super) const SERVICE_ID: Field = 12..20;
    pub(super) const QKEY: Field = 20..24;
    pub(super) const PRIVATE: Field = 96..232;
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
        mad.set(request::ID, &self.request_id.to_be_bytes());
        mad.set(request::PKEY, &DEFAULT_PKEY.to_be_bytes());
        mad.set(request::SERVICE_ID, &self.service_id.to_be_bytes());
        mad.set(request::PRIVATE, &self.private);
        mad
    }

    /// What a SIDR_REQ says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<SidrReq> {
        (mad.kind() == Some(Kind::SidrReq)).then(|| SidrReq {
            request_id: mad.u32(request::ID),
            service_id: mad.u64(request::SERVICE_ID),
            private: mad.array(request::PRIVATE),
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
    /// Queue pair of the service.
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
        mad.set(reply::ID, &self.request_id.to_be_bytes());
        mad.set_u8(reply::STATUS, self.status.0);
        mad.set_u24(reply::QPN, self.qpn);
        mad.set(reply::SERVICE_ID, &self.service_id.to_be_bytes());
        mad.set(reply::QKEY, &self.qkey.to_be_bytes());
        mad.set(reply::PRIVATE, &self.private);
        mad
    }

    /// What a SIDR_REP says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<SidrRep> {
        (mad.kind() == Some(Kind::SidrRep)).then(|| SidrRep {
            request_id: mad.u32(reply::ID),
            status: SidrStatus(mad.u8(reply::STATUS)),
            qpn: mad.u24(reply::QPN),
            service_id: mad.u64(reply::SERVICE_ID),
            qkey: mad.u32(reply::QKEY),
            private: mad.array(reply::PRIVATE),
        })
    }
}
