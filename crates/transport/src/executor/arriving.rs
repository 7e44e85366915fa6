//! Payload of a packet on its way to memory.

use crate::keys::MemRef;
use std::ops::Range;
use umem::{AccessError, Sink};

/// Bytes that are copied at a time where they cannot go straight to their place.
const CHUNK: usize = 4 << 10;

/// Payload that still is where its packet came by, in memory that others may write.
pub trait InTransit: std::fmt::Debug {
    /// Bytes of it.
    fn bytes(&self) -> usize;

    /// Fills `into` with what begins at `at`.
    ///
    /// # Errors
    /// That of the memory filled.
    fn fill(&self, at: usize, into: Sink<'_>) -> Result<(), AccessError>;

    /// Copies what begins at `at`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] beyond its end.
    fn copy(&self, at: usize, into: &mut [u8]) -> Result<(), AccessError>;

    /// Calls `f` with a copy of all of it.
    fn whole(&self, f: &mut dyn FnMut(&[u8]));
}

/// Bytes of a message that a packet brings.
#[derive(Clone, Copy, Debug)]
pub enum Arriving<'a> {
    /// They are at hand.
    Here(&'a [u8]),
    /// They are to be copied from where the packet came by.
    InTransit(&'a dyn InTransit),
}

impl Arriving<'_> {
    /// How many.
    pub fn bytes(&self) -> usize {
        match self {
            Arriving::Here(here) => here.len(),
            Arriving::InTransit(packet) => packet.bytes(),
        }
    }

    /// Places those in `range` at `to` of `memory`.
    pub(crate) fn place(
        &self,
        range: Range<usize>,
        memory: &MemRef,
        to: u64,
    ) -> Result<(), AccessError> {
        let packet = match self {
            Arriving::Here(here) => {
                return memory.write(to, here.get(range).ok_or(AccessError::OutOfRange)?);
            }
            Arriving::InTransit(packet) => packet,
        };
        let mut at = range.start;
        let placed = memory.write_in_place(to, range.len(), &mut |into| {
            packet.fill(at, into)?;
            at += into.len() as usize;
            Ok(())
        });
        match placed {
            Err(AccessError::Unreachable) => {}
            placed => return placed,
        }
        let mut chunk = [0; CHUNK];
        for at in range.clone().step_by(CHUNK) {
            let chunk = &mut chunk[..CHUNK.min(range.end - at)];
            packet.copy(at, chunk)?;
            memory.write(to + (at - range.start) as u64, chunk)?;
        }
        Ok(())
    }
}
