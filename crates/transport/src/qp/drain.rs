//! Draining of the send queue (SQD): when it stands still, and what can be done with its requests
//! then.

use super::{Cx, Transport};
use crate::error::{Error, Result};
use crate::requests::wqe::Wqe;
use crate::values::{EventType, QpState, SendWr};
use std::collections::VecDeque;

impl Transport {
    /// Has the send queue of a reliable connection drain to SQD when one of its requests finds a
    /// bad block signature, before any later request begins (mlx5dv_qp_cancel_posted_send_wrs(3)).
    pub fn stop_at_bad_signatures(&mut self) {
        self.unfold();
        self.alarm.get_or_insert_default();
        self.stops_when_alarmed = true;
    }

    /// Cancels the program's send requests of this identifier that have not begun: each will
    /// complete as if it had been done. Gives how many they are.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the send queue has drained to SQD.
    pub fn cancel_sends(&mut self, wr_id: u64) -> Result<usize> {
        self.unfold();
        if self.state != QpState::Sqd || self.attr.sq_draining {
            return Err(Error::Invalid("the send queue is not drained"));
        }
        let is_meant =
            |wqe: &&mut Wqe| wqe.wr.wr_id == wr_id && wqe.offload.is_none() && !wqe.cancelled;
        let meant = self.req.queue.iter_mut().filter(is_meant);
        Ok(meant.map(|wqe| wqe.cancelled = true).count())
    }

    /// Takes back the program's send requests that have not begun, oldest first: a front end whose
    /// program may still change them posts them anew.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the send queue has drained to SQD.
    pub fn withdraw_sends(&mut self) -> Result<Vec<SendWr>> {
        self.unfold();
        if self.state != QpState::Sqd || self.attr.sq_draining {
            return Err(Error::Invalid("the send queue is not drained"));
        }
        let stays = |wqe: &Wqe| wqe.offload.is_some() || wqe.slot.is_some();
        let (stay, taken): (VecDeque<Wqe>, VecDeque<Wqe>) =
            self.req.queue.drain(..).partition(stays);
        self.req.queue = stay;
        Ok(taken.into_iter().map(|wqe| wqe.wr).collect())
    }

    /// Drains the send queue once one of its requests has found a bad block signature.
    pub(crate) fn stop_if_alarmed(&mut self) {
        if self.state == QpState::Rts && self.is_alarmed() {
            self.state = QpState::Sqd;
            self.attr.sq_draining = true;
        }
    }

    /// Waits for the next bad signature: the program knows of this one.
    pub(crate) fn silence_alarm(&self) {
        if let Some(alarm) = &self.alarm {
            alarm.silence();
        }
    }

    fn is_alarmed(&self) -> bool {
        self.stops_when_alarmed && self.alarm.as_ref().is_some_and(|alarm| alarm.is_rung())
    }

    /// Reports that a draining send queue stands still.
    pub(crate) fn check_drained(&mut self, cx: &mut Cx<'_>) {
        let busy = self.req.queue.front().is_some_and(Wqe::has_begun);
        if self.state != QpState::Sqd || !self.attr.sq_draining || busy {
            return;
        }
        self.attr.sq_draining = false;
        if self.attr.en_sqd_async_notify || self.is_alarmed() {
            cx.sink.event(EventType::SqDrained);
        }
    }
}
