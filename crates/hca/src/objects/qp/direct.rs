//! Bytes of a request that go to a neighbour, or come from there, without packets (D7).
//!
//! What a program may watch word by word is never seen in part: a short request goes by way of a
//! copy of its message, so that it is in one piece, and by packets where that would not do.

use super::emit::Out;
use crate::adapter::directory::neighbour::{Found, Neighbour, Visit, Wanted};
use crate::sabotage::{self, Point};
use smallvec::SmallVec;
use std::io;
use std::time::Instant;
use transport::{Direct, InPlace, SHORT_DIRECT, WATCHED};
use umem::AccessError;

/// The bytes of a short request.
type Message = SmallVec<[u8; SHORT_DIRECT as usize]>;

impl Out<'_> {
    /// Moves a part of a request; `false` if packets shall do all of it.
    pub(super) fn goes_directly(&mut self, direct: Direct<'_>) -> bool {
        let Some((neighbour, ends)) = self.neighbour else { return false };
        let Direct { write, dest_qpn, remote, length, at, len, memory } = direct;
        let (qpn, pid) = (self.number, self.adapter.directory().pid());
        let (goes_on, now) = (at > 0, self.now);
        let wanted = Wanted { pid, qpn, dest_qpn, ends, remote, length, goes_on, write, now };
        let Some(found) = neighbour.find(&wanted) else { return false };
        if found.has_new_view() {
            self.adapter.thread.kick();
            if self.adapter.thread.has_ended() {
                mm::forget_all();
            }
        }
        let mut request = Request { neighbour, found: &found, length, at };
        let is_short = length <= SHORT_DIRECT;
        let moved = match (is_short, write) {
            (true, true) => request.writes_message(memory),
            (true, false) => request.reads_message(memory),
            (false, _) => request.moves_part(write, len, memory),
        };
        if moved.is_err() {
            return false;
        }
        if is_short {
            self.went_directly = Some(Instant::now());
        }
        let bytes = len as u64;
        let (tx, rx) = if write { (bytes, 0) } else { (0, bytes) };
        self.adapter.directory().add_traffic(self.number, tx, rx);
        true
    }
}

/// A request that was granted.
struct Request<'a> {
    neighbour: &'a Neighbour,
    found: &'a Found,
    /// Bytes of all of it.
    length: u32,
    /// How much of it has moved.
    at: u64,
}

impl<'a> Request<'a> {
    /// One visit, in which `copy` moves bytes, unless it answers that it moved none.
    fn visit(
        &self,
        copy: impl FnOnce(&Visit<'_>, u64) -> io::Result<bool>,
    ) -> Result<Visit<'a>, AccessError> {
        let visit = self.neighbour.visit(self.found).ok_or(AccessError::Unreachable)?;
        sabotage::reached(Point::AmidCopy);
        let moved = copy(&visit, self.at).map_err(|_| AccessError::Fault)?;
        sabotage::reached(Point::AfterCopy);
        if moved { Ok(visit) } else { Err(AccessError::Unreachable) }
    }

    /// The same for `bytes` more, which count while it lasts.
    fn moves(
        &mut self,
        bytes: u64,
        copy: impl FnOnce(&Visit<'_>, u64) -> io::Result<bool>,
    ) -> Result<(), AccessError> {
        let visit = self.visit(copy)?;
        let at = self.at;
        self.at += bytes;
        visit.count(at, bytes, self.at == u64::from(self.length));
        Ok(())
    }

    fn writes_message(&mut self, memory: &mut dyn InPlace) -> Result<(), AccessError> {
        let mut message = Message::new();
        memory.read(0, self.length as usize, &mut |from| {
            let filled = message.len();
            // Never more than is asked for, so nothing is allocated.
            message.resize(filled + from.len() as usize, 0);
            Ok(from.read(message.get_mut(filled..).unwrap_or_default())?)
        })?;
        self.moves(message.len() as u64, |visit, _| visit.write_words(&message))
    }

    fn reads_message(&mut self, memory: &mut dyn InPlace) -> Result<(), AccessError> {
        let mut message = Message::from_elem(0, self.length as usize);
        drop(self.visit(|visit, _| visit.read_words(&mut message).map(|()| true))?);
        let mut rest = message.as_slice();
        memory.write(0, self.length as usize, &mut |into| {
            let (part, after) = rest.split_at_checked(into.len() as usize).unwrap_or_default();
            rest = after;
            Ok(into.write(part)?)
        })?;
        // What cannot be written here is asked for by packets, and counts once.
        self.neighbour.count(self.found, 0, self.length.into(), true);
        Ok(())
    }

    /// Moves `len` bytes of a longer one from where they are to where they go.
    fn moves_part(
        &mut self,
        write: bool,
        len: usize,
        memory: &mut dyn InPlace,
    ) -> Result<(), AccessError> {
        // The memory here is entered first: who waits for a visitor must not wait for what the
        // visitor waits for.
        let at = self.at;
        match write {
            true => memory.read(at, len, &mut |from| {
                self.is_of_words(from.len())?;
                self.moves(from.len(), |visit, there| visit.write(there, from).map(|()| true))
            }),
            false => memory.write(at, len, &mut |into| {
                // A copy goes by the words of the place that it fills.
                self.is_of_words(into.len() | into.addr() & 7)?;
                self.moves(into.len(), |visit, there| visit.read(there, into).map(|()| true))
            }),
        }
    }

    /// Refuses a piece with so many bytes more if it divides a word that a program may watch.
    fn is_of_words(&self, bytes: u64) -> Result<(), AccessError> {
        let divides = self.length <= WATCHED && !(self.at | bytes).is_multiple_of(8);
        if divides { Err(AccessError::Unreachable) } else { Ok(()) }
    }
}
