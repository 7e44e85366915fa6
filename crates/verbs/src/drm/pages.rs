//! The memory of this process as an on-demand region may reach it: all but the mappings of GPU
//! memory, which host pages do not back.

use super::cpu_map::is_device_memory;
use mm::{DevicePage, Fault, Pages, ProcessPages, Sink};
use std::ops::Range;

/// As [`ProcessPages`]. A fault on a GPU's mapping fails, and a snapshot leaves it out
/// (`hmm_vma_walk_test` of VM_PFNMAP).
pub struct HostPages;

fn is_device(range: &Range<u64>) -> bool {
    is_device_memory(range.start, range.end - range.start)
}

/// This process's pages, and those that are in GPUs' memories.
fn process() -> ProcessPages {
    // SAFETY: of these addresses only those of frames are used, which GPUs of this process gave as
    // `Sink`s.
    ProcessPages::with_devices(unsafe { Sink::vouched(0, u64::MAX) })
}

impl Pages for HostPages {
    fn fault(
        &self,
        range: &Range<u64>,
        write: bool,
        found: &mut dyn FnMut(DevicePage),
    ) -> Result<u64, Fault> {
        if is_device(range) { Err(Fault) } else { process().fault(range, write, found) }
    }

    fn devices(&self) -> Option<Sink<'static>> {
        process().devices()
    }

    fn to_host(&self, range: &Range<u64>) {
        process().to_host(range);
    }

    fn resident(&self, range: &Range<u64>, found: &mut dyn FnMut(Range<u64>)) {
        process().resident(range, &mut |here| {
            if !is_device(&here) {
                found(here);
            }
        });
    }
}
