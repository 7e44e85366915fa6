//! Payload of a packet that is still in the ring it came by.

use super::record::RING_MTU;
use shm::RingReader;
use std::cell::RefCell;
use transport::executor::InTransit;
use umem::{AccessError, Sink, Source};
use wire::Headers;

/// The payload of a record. Who wrote it may change it as long as it is here.
#[derive(Debug)]
pub(super) struct InRing<'a> {
    payload: Source<'a>,
    len: usize,
    scratch: RefCell<&'a mut [u8]>,
}

impl<'a> InRing<'a> {
    /// That of the record of so many bytes at `at` whose packet begins `before` bytes behind that,
    /// and has these headers; `None` where there is none, or too long a one for `scratch`.
    pub(super) fn new(
        reader: &'a RingReader,
        (at, len): (usize, usize),
        (before, headers): (usize, &Headers),
        scratch: &'a mut [u8],
    ) -> Option<InRing<'a>> {
        let before = before + headers.len();
        let payload_len = len.checked_sub(before + usize::from(headers.bth.pad))?;
        let payload = mm::record_to_read(reader, at + before, payload_len)?;
        let fits = payload_len <= scratch.len().min(RING_MTU as usize);
        fits.then_some(InRing { payload, len: payload_len, scratch: RefCell::new(scratch) })
    }

    fn part(&self, at: usize, len: u64) -> Result<Source<'a>, AccessError> {
        Ok(self.payload.part(at as u64, len)?)
    }
}

impl InTransit for InRing<'_> {
    fn bytes(&self) -> usize {
        self.len
    }

    fn fill(&self, at: usize, into: Sink<'_>) -> Result<(), AccessError> {
        Ok(into.copy_from(self.part(at, into.len())?)?)
    }

    fn copy(&self, at: usize, into: &mut [u8]) -> Result<(), AccessError> {
        Ok(self.part(at, into.len() as u64)?.read(into)?)
    }

    fn whole(&self, f: &mut dyn FnMut(&[u8])) {
        let mut scratch = self.scratch.borrow_mut();
        let bytes = &mut scratch[..self.len];
        // A ring is always there: it cannot shrink.
        if self.copy(0, bytes).is_ok() {
            f(bytes);
        }
    }
}
