//! Page faults of the requester: payload that is not there, and answers that cannot land.

use crate::Cx;
use crate::qp::faults::{Met, Open};
use crate::qp::{FaultSide, Transport};
use crate::requests::vendor;
use crate::requests::wqe::Phase;
use crate::values::WcStatus;
use umem::AccessError;

impl Transport {
    /// Whether the send request at `index`, whose packet at `packet` could not be read, waits.
    pub(super) fn waits_to_send(
        &mut self,
        (index, packet): (usize, u32),
        error: AccessError,
        cx: &mut Cx<'_>,
    ) -> bool {
        let Some(wqe) = self.req.queue.get(index) else { return false };
        let len = wqe.payload_at(packet, self.mtu);
        let met = Met::sending(wqe, packet.saturating_mul(self.mtu), len, false);
        self.faults.waits(FaultSide::Requests, error, met, cx)
    }

    /// Whether the oldest request waits for memory that `len` bytes of an answer go to. They are
    /// asked for again then.
    pub(super) fn waits_to_land(
        &mut self,
        packet: u32,
        len: usize,
        error: AccessError,
        cx: &mut Cx<'_>,
    ) -> bool {
        let Some(wqe) = self.req.queue.front() else { return false };
        let met = Met::sending(wqe, packet.saturating_mul(self.mtu), len, true);
        let waits = self.faults.waits(FaultSide::Landing, error, met, cx);
        if waits {
            self.req.go_back();
        }
        waits
    }

    /// The send request fails once it is the oldest.
    pub(crate) fn fail_faulted(&mut self, open: &Open, cx: &mut Cx<'_>) {
        let mut begun = self.req.queue.iter_mut().filter(|wqe| wqe.phase == Phase::Started);
        if let Some(wqe) = begun.find(|wqe| wqe.first == open.first) {
            wqe.phase = Phase::Failed(WcStatus::LocProtErr, vendor::memory(open.error));
        }
        self.fail_if_oldest(cx);
    }
}
