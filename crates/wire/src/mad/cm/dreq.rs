//! DREQ, the request to disconnect (IBA 12.6.10).

use super::datagram::{Ids, Kind, Mad};

/// Where the fields stand.
mod field {
    use crate::field::Field;

    pub(super) const REMOTE_QPN: Field = 8..11;
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
        mad.set_u24(field::REMOTE_QPN, self.remote_qpn);
        mad
    }

    /// What a DREQ says; `None` for another message.
    pub fn parse(mad: &Mad) -> Option<Dreq> {
        (mad.kind() == Some(Kind::Dreq))
            .then(|| Dreq { ids: mad.ids(), remote_qpn: mad.u24(field::REMOTE_QPN) })
    }
}
