//! The driver's answers to page faults.

use crate::layout::head::{Answer, done};
use crate::object::page_fault::ended;
use crate::object::shared::Shared;
use crate::request::event::PageFaultResume;

/// `PAGE_FAULT_RESUME`.
pub(crate) fn resume(shared: &Shared, request: &PageFaultResume) -> Answer {
    if let Some((qpn, fault, verdict)) = shared.faults.answered(request)? {
        ended(&shared.hca, 1);
        if let Ok(pair) = shared.objects.qps.get(qpn) {
            pair.back.resume(fault, verdict);
        }
    }
    done()
}
