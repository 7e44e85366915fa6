//! What a hostile process does to memory that it shares, step by step, read from an input.

/// The rest of an input. Beyond its end everything is 0.
pub(crate) struct Steps<'a>(&'a [u8]);

impl<'a> Steps<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Steps<'a> {
        Steps(data)
    }

    /// The number of the next step; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<u8> {
        (!self.0.is_empty()).then(|| self.byte())
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// So many bytes, or as many as are left.
    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
