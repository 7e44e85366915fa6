//! The end of a page fault.

use crate::Cx;
use crate::qp::{FaultSide, Transport, Verdict};
use crate::requests::vendor;
use crate::values::WcStatus;

impl Transport {
    /// A fault was served, or cannot be: what met it goes on, or fails. A name that is not open
    /// means nothing.
    pub fn resume(&mut self, id: u64, verdict: Verdict, cx: &mut Cx<'_>) {
        self.unfold_at(cx.now);
        self.now = Some(cx.now);
        if verdict == Verdict::RefusedBelow && self.faults.refused_below(id, cx.now) {
            return;
        }
        if let Some((side, open)) = self.faults.close(id)
            && verdict != Verdict::Served
        {
            match side {
                FaultSide::Requests => self.fail_faulted(&open, cx),
                FaultSide::Landing => {
                    self.fail_oldest(WcStatus::LocProtErr, vendor::memory(open.error), cx);
                }
                FaultSide::Service => self.refuse_faulted(&open, cx),
                FaultSide::Answers => self.refuse_answer(&open, cx),
            }
        }
        self.transmit(cx);
    }
}
