//! Send queues (PRM "Ethernet Segment"; `struct mlx5_wqe_eth_seg`): requests become frames, with
//! the checksums that they ask for, or large sends many frames. A ring of those is millions of
//! frames, which are sent in shares ([`crate::machine::share`]).

use super::Nic;
use super::frame::{self, Checksums};
use super::queue::{QueueState, Ring, Syndrome};
use crate::layout::bits::{Field, be16, put};
use crate::layout::context::Context;
use crate::layout::cqe;
use crate::layout::head::Status;
use crate::layout::wqe::Control;
use crate::machine::alarm::Appointed;
use crate::machine::share::Shares;
use crate::object::shared::Shared;
use crate::object::uar::Uar;
use crate::request::nic::{CreateSq, ModifyQueue};
use hca::Device;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, Weak};
use wire::ethernet;

const NOP: u8 = 0x00;
const SEND: u8 = 0x0a;
const LARGE_SEND: u8 = 0x0e;

// The Ethernet segment, behind the control segment.
const ETHERNET: usize = 16;
const FLAGS: usize = ETHERNET + 4;
const SEGMENT_SIZE: usize = ETHERNET + 6;
/// Length of the headers that follow in the entry, or what to do about a VLAN tag.
const HEADERS: usize = ETHERNET + 12;
const HEADERS_AT: usize = ETHERNET + 14;
const WANTS_NETWORK: u8 = 1 << 6;
const WANTS_TRANSPORT: u8 = 1 << 7;
const INSERTS_TAG: u16 = 1 << 15;
const SERVICE_TAG: u16 = 1;
const HEADERS_LEN: u16 = 0x3ff;
/// Bytes of headers within the Ethernet segment.
const HEADERS_INSIDE: usize = 2;
/// Longest frame, and longest large send: 2^16 bytes of payload and its headers.
const MAX_FRAME: usize = 16 << 10;
pub(crate) const LOG_MAX_LARGE_SEND: u64 = 16;
const MAX_LARGE_SEND: usize = (1 << LOG_MAX_LARGE_SEND) + 1024;
/// Least payload of its frames.
const LEAST_SEGMENT: u16 = 32;

const REQUEST: u8 = 0;
const REQUEST_ERROR: u8 = 13;
const OPCODE_QUEUE: usize = 0x38;

/// Requests of a failed queue are given back.
const FLUSHES: Field = Field::new(0x3, 1);

/// A send queue.
pub(super) struct Sends {
    ring: Ring,
    uar: Arc<Uar>,
    domain: u32,
    number: AtomicU32,
    turn: Shares<Turn>,
    this: Weak<Sends>,
    shared: Weak<Shared>,
    nic: Weak<Nic>,
}

struct Turn {
    state: QueueState,
    /// What is left is sent later.
    appointed: bool,
    /// Counter of the next request's first basic block.
    sent: u16,
}

impl Sends {
    /// As `create_sq_in` describes it; its frames are of the transport `domain`.
    pub(super) fn new(
        shared: &Arc<Shared>,
        nic: &Arc<Nic>,
        request: &CreateSq,
        domain: u32,
    ) -> Result<Arc<Sends>, Status> {
        let turn = Shares::new(Turn { state: QueueState::Reset, appointed: false, sent: 0 });
        let ring = Ring::new(shared, &request.queue)?;
        let uar = shared.objects.uars.get(request.queue.wq.uar_page)?;
        let (shared, nic) = (Arc::downgrade(shared), Arc::downgrade(nic));
        let number = AtomicU32::new(0);
        Ok(Arc::new_cyclic(|this| {
            let this = this.clone();
            Sends { ring, uar, domain, number, turn, this, shared, nic }
        }))
    }

    /// Whether its context names this page.
    pub(super) fn is_rung_by(&self, uar: &Arc<Uar>) -> bool {
        Arc::ptr_eq(&self.uar, uar)
    }

    pub(super) fn set_number(&self, number: u32) {
        self.number.store(number, Relaxed);
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock()
    }

    /// `MODIFY_SQ`: only the state changes.
    pub(super) fn modify(&self, request: &ModifyQueue) -> Result<(), Status> {
        if request.modify_bitmask != 0 {
            return Err(Status::BadParameter);
        }
        let mut turn = self.turn();
        turn.state = QueueState::next(turn.state, request)?;
        match turn.state {
            QueueState::Reset => turn.sent = 0,
            QueueState::Ready => {}
            QueueState::Error => self.flush(&mut turn),
        }
        Ok(())
    }

    /// Nothing reaches memory through it afterwards.
    pub(super) fn stop(&self) {
        self.turn().state = QueueState::Error;
    }

    /// Its context as it is now.
    pub(super) fn context(&self) -> Context {
        const OWN_STATE: Field = Field::new(0x8, 4);
        let mut context = self.ring.context.clone();
        context.set(OWN_STATE, self.turn().state.number().into());
        context
    }

    /// Executes what the driver rang for, or a share of it.
    pub(super) fn run(&self, shared: &Shared, nic: &Nic) {
        let turn = self.turn();
        if !turn.appointed {
            self.go_on(turn, shared, nic);
        }
    }

    fn go_on(&self, mut turn: MutexGuard<'_, Turn>, shared: &Shared, nic: &Nic) {
        match turn.state {
            QueueState::Reset => return,
            QueueState::Ready => {}
            QueueState::Error => return self.flush(&mut turn),
        }
        let mut share = self.turn.begin();
        let Some(mut left) = self.waiting(&turn) else {
            turn.state = QueueState::Error;
            return;
        };
        while left > 0 {
            if share.is_over() && self.turn.put_off(shared.eqs.alarms(), self.this.clone()) {
                turn.appointed = true;
                return;
            }
            let counter = turn.sent;
            let Some(first) = self.ring.entries(counter, 1) else { return };
            let control = Control::parse(&first);
            let blocks = control.blocks();
            let done = match left.checked_sub(blocks) {
                Some(rest) => {
                    left = rest;
                    turn.sent = counter.wrapping_add(blocks);
                    self.execute(shared, nic, counter, &control).map(|frames| {
                        share.spend(1 + frames, 0);
                    })
                }
                None => {
                    turn.sent = counter.wrapping_add(left);
                    Err(Syndrome::LocalOperation)
                }
            };
            match done {
                Ok(()) if !control.signaled() => {}
                Ok(()) => {
                    let entry = self.entry(control.opcode);
                    self.ring.complete(&shared.hca, REQUEST, counter, entry);
                }
                Err(syndrome) => {
                    turn.state = QueueState::Error;
                    self.ring.fail(REQUEST_ERROR, counter, syndrome, self.entry(control.opcode));
                    return self.flush(&mut turn);
                }
            }
        }
    }

    /// Basic blocks that wait; `None` where the driver's counter makes no sense.
    fn waiting(&self, turn: &Turn) -> Option<u16> {
        let waiting = self.ring.sends()?.wrapping_sub(turn.sent);
        (u32::from(waiting) <= self.ring.size()).then_some(waiting)
    }

    /// Gives the requests of a failed queue back.
    fn flush(&self, turn: &mut Turn) {
        let mut left = match self.waiting(turn) {
            Some(left) if self.ring.context.is_set(FLUSHES) => left,
            _ => return,
        };
        while left > 0 {
            let counter = turn.sent;
            let Some(first) = self.ring.entries(counter, 1) else { return };
            let control = Control::parse(&first);
            let blocks = control.blocks().clamp(1, left);
            left -= blocks;
            turn.sent = counter.wrapping_add(blocks);
            let entry = self.entry(control.opcode);
            self.ring.fail(REQUEST_ERROR, counter, Syndrome::Flushed, entry);
        }
    }

    /// What every completion says.
    fn entry(&self, opcode: u8) -> [u8; cqe::LEN] {
        let mut entry = [0; cqe::LEN];
        let number = self.number.load(Relaxed);
        put(&mut entry, OPCODE_QUEUE, &(u32::from(opcode) << 24 | number).to_be_bytes());
        entry
    }

    fn execute(
        &self,
        shared: &Shared,
        nic: &Nic,
        counter: u16,
        control: &Control,
    ) -> Result<u32, Syndrome> {
        if control.opcode == NOP {
            return Ok(0);
        }
        let blocks = control.blocks();
        let mut entry = self.ring.entries(counter, blocks).ok_or(Syndrome::LocalProtection)?;
        entry.truncate(control.len());
        let mut frames = 0;
        let port = shared.hca.ethernet();
        let mut send = |frame: Vec<u8>| {
            frames += 1;
            let mut frame = frame;
            frame.resize(frame.len().max(ethernet::LEAST_LEN), 0);
            let sent = |frame| port.as_ref().is_ok_and(|port| port.send_frame(frame).is_ok());
            if frame.len() <= MAX_FRAME && sent(&frame) {
                nic.vport.counters.sent(&frame);
                nic.loop_back(&shared.hca, &frame, self.domain);
            } else {
                nic.vport.counters.lost.fetch_add(1, Relaxed);
            }
        };
        match control.opcode {
            SEND => send(self.frame(&shared.hca, &entry)?),
            LARGE_SEND => self.large(&shared.hca, &entry, &mut send)?,
            _ => return Err(Syndrome::LocalOperation),
        }
        Ok(frames)
    }

    /// Headers in the entry, and its data segments.
    fn parts<'a>(&self, entry: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Syndrome> {
        let word = be16(entry, HEADERS);
        let len = if word & INSERTS_TAG != 0 { 0 } else { usize::from(word & HEADERS_LEN) };
        let headers = entry.get(HEADERS_AT..HEADERS_AT + len).ok_or(Syndrome::LocalOperation)?;
        let beyond = len.saturating_sub(HEADERS_INSIDE).next_multiple_of(16);
        let segments = entry.get(2 * ETHERNET + beyond..).unwrap_or_default();
        Ok((headers, segments))
    }

    fn frame(&self, hca: &Device, entry: &[u8]) -> Result<Vec<u8>, Syndrome> {
        let (headers, segments) = self.parts(entry)?;
        let data = self.ring.gather(hca, segments, MAX_FRAME)?;
        let mut frame = [headers, &data].concat();
        let word = be16(entry, HEADERS);
        if word & INSERTS_TAG != 0 {
            let tag = be16(entry, HEADERS_AT);
            frame::insert_tag(&mut frame, word & SERVICE_TAG != 0, tag);
        }
        let flags = entry.get(FLAGS).copied().unwrap_or(0);
        let wanted = Checksums {
            network: flags & WANTS_NETWORK != 0,
            transport: flags & WANTS_TRANSPORT != 0,
        };
        wanted.fill(&mut frame);
        Ok(frame)
    }

    fn large(&self, hca: &Device, entry: &[u8], send: impl FnMut(Vec<u8>)) -> Result<(), Syndrome> {
        let (headers, segments) = self.parts(entry)?;
        let size = be16(entry, SEGMENT_SIZE);
        if size < LEAST_SEGMENT {
            return Err(Syndrome::LocalOperation);
        }
        let data = self.ring.gather(hca, segments, MAX_LARGE_SEND)?;
        frame::segments(headers, &data, size.into(), send).ok_or(Syndrome::LocalOperation)
    }
}

impl Appointed for Sends {
    fn due(&self) {
        let Some((shared, nic)) = self.shared.upgrade().zip(self.nic.upgrade()) else { return };
        let mut turn = self.turn.lock_to_go_on();
        turn.appointed = false;
        self.go_on(turn, &shared, &nic);
    }
}
