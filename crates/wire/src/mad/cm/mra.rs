//! MRA, the receipt of a message whose answer takes time (IBA 12.6.6).

use super::datagram::{About, Ids, Kind, Mad};

/// Where the fields stand.
mod field {
    /// The message, 2 bits.
    pub(super) const ABOUT: usize = 8;
    /// Timeout, 5 bits.
    pub(super) const SERVICE_TIMEOUT: usize = 9;
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
        mad.set_u8(field::ABOUT, self.about.0 << 6);
        mad.set_u8(field::SERVICE_TIMEOUT, self.service_timeout << 3);
        mad
    }

    /// What an MRA says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<Mra> {
        (mad.kind() == Some(Kind::Mra)).then(|| Mra {
            ids: mad.ids(),
            about: About(mad.u8(field::ABOUT) >> 6),
            service_timeout: mad.u8(field::SERVICE_TIMEOUT) >> 3,
        })
    }
}
