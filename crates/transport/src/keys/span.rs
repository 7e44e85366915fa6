//! The bytes of a key that an access names.

/// Bytes of a key.
#[derive(Clone, Copy)]
pub(crate) enum Span {
    /// Address and length of a local request.
    Local(u64, u64),
    /// Address and length of a request that came over the wire.
    Wire(u64, u64),
    /// All bytes of the key.
    Whole,
}

impl Span {
    /// Whether a request of this side names it.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Span::Local(..))
    }

    /// Address and length, unless it is all.
    pub(crate) fn part(self) -> Option<(u64, u64)> {
        match self {
            Span::Local(va, len) | Span::Wire(va, len) => Some((va, len)),
            Span::Whole => None,
        }
    }
}
