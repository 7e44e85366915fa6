//! Congestion control of a connection by marks of the network (RoCEv2, IBA A17.9.3): its
//! notification point, which tells the peer of packets that were marked, and where its reaction
//! point (`pace`) is asked.
//!
//! It works both ways. Whoever receives marked packets notifies whoever sent them, be they requests
//! or the answers to a READ. It is off until the owner switches it on: on one host no network is
//! between the ends.

use super::Transport;
use super::pace::ReactionPoint;
use crate::{Counter, Cx, Half, Rx, To};
use std::time::{Duration, Instant};
use wire::{Bth, Headers, Opcode, Operation, Position, Psn, Service};

/// Bytes after which a requester that is slowed down asks for an acknowledge: a share of its window
/// might take longer than the peer may be silent.
const ACK_BYTES: u64 = 64 << 10;
/// Least time between two notifications to the peer.
const NOTIFICATION_PERIOD: Duration = Duration::from_micros(50);
/// The two ECN bits of a traffic class, which are both set in a packet that met congestion
/// (RFC 3168).
const ECN_BITS: u8 = 0b11;

/// State of both points.
#[derive(Debug, Default)]
pub(crate) struct Congestion {
    on: bool,
    /// When the peer was notified last.
    notified: Option<Instant>,
    /// It is to be notified.
    owes: bool,
    reaction: ReactionPoint,
}

impl Congestion {
    /// Begins anew, switched on or off as it was.
    pub(crate) fn restart(&mut self) {
        *self = Congestion { on: self.on, ..Congestion::default() };
    }
}

impl Transport {
    /// Whether packets that met congestion on their way from the peer are reported to it, and its
    /// reports slow this queue pair down.
    pub fn control_congestion(&mut self, on: bool) {
        self.unfold();
        self.congestion = Congestion { on, ..Congestion::default() };
    }

    /// Whether it is on.
    pub(crate) fn controls_congestion(&self) -> bool {
        self.congestion.on
    }

    /// Takes note of the network's mark on a packet, if it has one.
    pub(crate) fn note_mark(&mut self, rx: &Rx<'_>, cx: &Cx<'_>) {
        let congestion = &mut self.congestion;
        if !congestion.on || rx.traffic_class & ECN_BITS != ECN_BITS {
            return;
        }
        cx.counters.count(Counter::EcnMarkedPackets, 1);
        let since = congestion.notified.map(|last| cx.now.saturating_duration_since(last));
        congestion.owes |= since.is_none_or(|since| since >= NOTIFICATION_PERIOD);
    }

    /// Notifies the peer if it is to be.
    pub(crate) fn notify(&mut self, cx: &mut Cx<'_>) {
        if !std::mem::take(&mut self.congestion.owes) {
            return;
        }
        self.congestion.notified = Some(cx.now);
        let headers = Headers::new(Bth {
            opcode: Opcode {
                service: Service::Notification,
                operation: Operation::CongestionNotification,
                position: Position::Only,
                imm: false,
                invalidate: false,
            },
            solicited: false,
            migrated: false,
            pad: 0,
            pkey: wire::DEFAULT_PKEY,
            fecn: false,
            becn: true,
            dest_qp: self.attr.dest_qp_num,
            ack_req: false,
            psn: Psn::new(0),
        });
        if cx.tx.packet(To::Peer(Half::Responder), &headers, 0, &mut |_, _| Ok(())).is_ok() {
            cx.counters.count(Counter::CnpSent, 1);
            self.sent_packets += 1;
        }
    }

    /// The peer tells that packets from here met congestion.
    pub(crate) fn congestion_notified(&mut self, cx: &Cx<'_>) {
        if !self.congestion.on {
            return cx.counters.count(Counter::CnpIgnored, 1);
        }
        cx.counters.count(Counter::CnpHandled, 1);
        let round_trip = self.round_trip();
        let sending = round_trip.filter(|time| !time.is_zero()).map(|time| {
            let a_second = u128::from(self.req.window.size()) * 1_000_000_000 / time.as_nanos();
            u64::try_from(a_second).unwrap_or(u64::MAX)
        });
        self.congestion.reaction.notified(cx.now, sending, round_trip);
    }

    /// Bytes after which an acknowledge is asked for.
    pub(crate) fn ack_share(&self) -> u64 {
        let share = self.req.window.size() / 4;
        if self.congestion.reaction.limits() { share.min(ACK_BYTES) } else { share }
    }

    /// Whether `bytes` may leave at the rate that notifications leave; if not, the timer asks
    /// again.
    pub(crate) fn keeps_pace(&mut self, bytes: u64, cx: &Cx<'_>) -> bool {
        if !self.congestion.on {
            return true;
        }
        let round_trip = self.round_trip();
        match self.congestion.reaction.take(cx.now, bytes, round_trip) {
            Ok(()) => true,
            Err(until) => {
                self.paced_until = Some(self.paced_until.map_or(until, |at| at.min(until)));
                false
            }
        }
    }

    /// How long a round trip takes, where requests were answered.
    fn round_trip(&self) -> Option<Duration> {
        self.req.rtt.smoothed()
    }
}
