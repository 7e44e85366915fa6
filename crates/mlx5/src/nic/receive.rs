//! Receive queues: a frame goes where the next request says, and its completion says what was found
//! in it.
//!
//! A queue that fails gives its requests back once, if it is to: nobody tells of those that are
//! posted later.

use super::frame::{self, Layout};
use super::queue::{QueueState, Ring, Scattered, Syndrome};
use crate::layout::bits::{Field, put};
use crate::layout::context::Context;
use crate::layout::cqe;
use crate::layout::head::Status;
use crate::object::shared::Shared;
use crate::request::nic::{CreateRq, ModifyQueue};
use engine_thread::lock;
use hca::Device;
use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard};
use wire::ethernet::{self, VLAN_AT, VLAN_LEN};
use wire::ip::PROTOCOL_TCP;

/// VLAN tags stay in frames.
const KEEPS_TAGS: Field = Field::new(0x3, 1);
/// Requests of a failed queue are given back.
const FLUSHES: Field = Field::new(0xd, 1);

const RESPONSE_SEND: u8 = 2;
const RESPONSE_ERROR: u8 = 14;
const CHECKSUM: usize = 0x14;
const CHECKED: usize = 0x1c;
const KINDS: usize = 0x1d;
const TAG: usize = 0x1e;
const BYTE_COUNT: usize = 0x2c;
const FLOW_TAG: usize = 0x38;
/// In [`CHECKED`].
const NETWORK_RIGHT: u8 = 1 << 1;
const TRANSPORT_RIGHT: u8 = 1 << 2;
/// In [`KINDS`].
const TAG_TAKEN: u8 = 1;
const KIND_V6: u8 = 1 << 2;
const KIND_V4: u8 = 2 << 2;
const KIND_TCP: u8 = 1 << 4;
const KIND_UDP: u8 = 2 << 4;

/// A receive queue.
pub(super) struct Receives {
    ring: Ring,
    turn: Mutex<Turn>,
}

struct Turn {
    state: QueueState,
    keeps_tags: bool,
    /// Requests taken.
    taken: u16,
}

impl Receives {
    /// As `create_rq_in` describes it.
    pub(super) fn new(shared: &Shared, request: &CreateRq) -> Result<Receives, Status> {
        let ring = Ring::new(shared, request)?;
        let keeps_tags = ring.context.is_set(KEEPS_TAGS);
        let turn = Mutex::new(Turn { state: QueueState::Reset, keeps_tags, taken: 0 });
        Ok(Receives { ring, turn })
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        lock(&self.turn)
    }

    /// `MODIFY_RQ`.
    pub(super) fn modify(&self, request: &ModifyQueue) -> Result<(), Status> {
        const MODIFY_TAGS: u64 = 1 << 1;
        const MODIFY_COUNTERS: u64 = 1 << 3;
        let which = request.modify_bitmask;
        if which & !(MODIFY_TAGS | MODIFY_COUNTERS) != 0 {
            return Err(Status::BadParameter);
        }
        let mut turn = self.turn();
        turn.state = QueueState::next(turn.state, request)?;
        if which & MODIFY_TAGS != 0 {
            turn.keeps_tags = request.context.is_set(KEEPS_TAGS);
        }
        match turn.state {
            QueueState::Reset => turn.taken = 0,
            QueueState::Ready => {}
            QueueState::Error => self.flush(&mut turn),
        }
        Ok(())
    }

    /// Its context as it is now.
    pub(super) fn context(&self) -> Context {
        const OWN_STATE: Field = Field::new(0x8, 4);
        let turn = self.turn();
        let mut context = self.ring.context.clone();
        context.set(OWN_STATE, turn.state.number().into());
        context.set(KEEPS_TAGS, turn.keeps_tags.into());
        context
    }

    /// Requests that wait; 0 where the driver's counter makes no sense.
    fn waiting(&self, turn: &Turn) -> u16 {
        let waiting = self.ring.received().map_or(0, |posted| posted.wrapping_sub(turn.taken));
        if u32::from(waiting) > self.ring.size() { 0 } else { waiting }
    }

    /// Takes a frame that was given `flow_tag` on its way; false if there is no request for it.
    pub(super) fn take(&self, hca: &Device, frame: &[u8], flow_tag: u32) -> bool {
        let mut turn = self.turn();
        if turn.state != QueueState::Ready || self.waiting(&turn) == 0 {
            return false;
        }
        let counter = turn.taken;
        let Some(entry) = self.ring.entries(counter, 1) else { return false };
        let (frame, vlan) = untagged(frame, turn.keeps_tags);
        let scattered = self.ring.scatter(hca, &entry, &frame);
        if scattered == Scattered::TooLong {
            // The request waits for the next one.
            return false;
        }
        turn.taken = counter.wrapping_add(1);
        if scattered == Scattered::Unreachable {
            let syndrome = Syndrome::LocalProtection;
            self.ring.fail(RESPONSE_ERROR, counter, syndrome, [0; cqe::LEN]);
            turn.state = QueueState::Error;
            self.flush(&mut turn);
            return false;
        }
        let mut completion = completion(&frame, vlan);
        put(&mut completion, FLOW_TAG, &flow_tag.to_be_bytes());
        self.ring.complete(hca, RESPONSE_SEND, counter, completion)
    }

    /// Gives the requests of a failed queue back.
    fn flush(&self, turn: &mut Turn) {
        if !self.ring.context.is_set(FLUSHES) {
            return;
        }
        for _ in 0..self.waiting(turn) {
            let counter = turn.taken;
            turn.taken = counter.wrapping_add(1);
            self.ring.fail(RESPONSE_ERROR, counter, Syndrome::Flushed, [0; cqe::LEN]);
        }
    }
}

/// The frame without its VLAN tag, and the tag, unless tags stay in frames.
fn untagged(frame: &[u8], keeps_tags: bool) -> (Cow<'_, [u8]>, Option<u16>) {
    match ethernet::tag_of(frame) {
        Some(tag) if !keeps_tags => {
            let without = [&frame[..VLAN_AT], &frame[VLAN_AT + VLAN_LEN..]].concat();
            (Cow::Owned(without), Some(tag))
        }
        _ => (Cow::Borrowed(frame), None),
    }
}

/// What the entry for a frame says of it.
fn completion(frame: &[u8], tag: Option<u16>) -> [u8; cqe::LEN] {
    let mut entry = [0; cqe::LEN];
    put(&mut entry, CHECKSUM, &frame::sum_of_body(frame).to_be_bytes());
    put(&mut entry, BYTE_COUNT, &(frame.len() as u32).to_be_bytes());
    if let Some(tag) = tag {
        entry[KINDS] |= TAG_TAKEN;
        put(&mut entry, TAG, &tag.to_be_bytes());
    }
    if let Some(layout) = Layout::of(frame) {
        entry[KINDS] |= if layout.is_v4() { KIND_V4 } else { KIND_V6 };
        entry[KINDS] |= match layout.protocol() {
            Some(PROTOCOL_TCP) => KIND_TCP,
            Some(_) => KIND_UDP,
            None => 0,
        };
        if layout.network_is_right(frame) {
            entry[CHECKED] |= NETWORK_RIGHT;
        }
        if layout.transport_is_right(frame) {
            entry[CHECKED] |= TRANSPORT_RIGHT;
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_says_what_is_in_the_frame() {
        let mut frame = vec![1; 12];
        frame.extend([
            0x08, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        frame::Checksums { network: true, transport: true }.fill(&mut frame);
        let entry = completion(&frame, Some(5));
        assert_eq!(entry[CHECKED], NETWORK_RIGHT | TRANSPORT_RIGHT);
        assert_eq!(entry[KINDS], TAG_TAKEN | KIND_V4 | KIND_UDP);
        assert_eq!(entry[TAG..TAG + 2], [0, 5]);
        assert_eq!(entry[BYTE_COUNT..BYTE_COUNT + 4], [0, 0, 0, 42]);
        frame[22] ^= 1;
        assert_eq!(completion(&frame, None)[CHECKED], TRANSPORT_RIGHT);
    }
}
