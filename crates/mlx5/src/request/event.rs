//! Commands about event queues (`eqc`), and the driver's answers to page faults.

use super::part::request;
use crate::layout::bits::Field;

const fn context(bit: usize, width: usize) -> Field {
    Field::new(bit, width).at(0x80)
}

request! {
    CreateEq {
        page_offset: u64 = context(0x54, 6),
        log_eq_size: u32 = context(0x63, 5),
        uar_page: u32 = context(0x68, 24),
        intr: u16 = context(0xb4, 12),
        log_page_size: u32 = context(0xc3, 5),
        /// Types of events, of which 256 could be; the first word holds types 0 to 63.
        event_bitmask: u64 = Field::new(0x2c0, 64),
        pages: Vec<u64> = 0x110..,
    }

    DestroyEq {
        eq_number: u8 = Field::new(0x58, 8),
    }

    PageFaultResume {
        error: bool = Field::new(0x40, 1),
        /// In `trans_page_fault_info`, where events name requests.
        token: u64 = Field::new(0x68, 24),
        /// In `mem_page_fault_info`, where events name memory.
        memory_token: u64 = Field::new(0x50, 48),
    }
}
