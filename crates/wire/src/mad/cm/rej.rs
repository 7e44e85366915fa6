//! REJ, the refusal of a message (IBA 12.6.7).

use super::datagram::{About, Ids, Kind, Mad};
use crate::field::{Field, be64};

/// Room for private data in a REJ, in bytes.
pub const REJ_PRIVATE_LEN: usize = 148;
/// Room for what more a REJ has to say, in bytes.
pub const REJ_INFO_LEN: usize = 72;

/// Where the additional information of a sender who gave up waiting has its GUID (IBA table 109).
const INFO_CA_GUID: Field = 0..8;

/// Where the fields stand.
mod field {
    use crate::field::Field;

    /// The message, 2 bits.
    pub(super) const ABOUT: usize = 8;
    /// Length of the additional information, 7 bits.
    pub(super) const INFO_LEN: usize = 9;
    pub(super) const REASON: Field = 10..12;
    pub(super) const INFO: Field = 12..84;
    pub(super) const PRIVATE: Field = 84..232;
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
        be64(&self.info, INFO_CA_GUID)
    }

    /// The message.
    pub fn emit(&self, tid: u64) -> Mad {
        let mut mad = Mad::with_ids(Kind::Rej, tid, self.ids);
        mad.set_u8(field::ABOUT, self.about.0 << 6);
        mad.set_u8(field::INFO_LEN, self.info_len << 1);
        mad.set(field::REASON, &self.reason.0.to_be_bytes());
        mad.set(field::INFO, &self.info);
        mad.set(field::PRIVATE, &self.private);
        mad
    }

    /// What a REJ says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<Rej> {
        (mad.kind() == Some(Kind::Rej)).then(|| Rej {
            ids: mad.ids(),
            about: About(mad.u8(field::ABOUT) >> 6),
            reason: Reason(mad.u16(field::REASON)),
            info_len: mad.u8(field::INFO_LEN) >> 1,
            info: mad.array(field::INFO),
            private: mad.array(field::PRIVATE),
        })
    }
}
