//! The memory of one process as a DMA engine sees it: copies that survive missing pages, notice of
//! what is unmapped, and pages that live in a device.
//!
//! It promises that a copy from or to memory that is not there answers with a [`Fault`] and never
//! ends the process, and that whoever registers a range hears of it before the range means other
//! memory, as far as calls are interposed, and soon after it otherwise.
//!
//! Start at [`guard`] for the copies and at [`AddressSpace::register`] for the notices. [`Mirror`]
//! follows a range whose pages come and go, [`PrivateMemory`] moves pages to a device's memory and
//! home again.
#![cfg(target_os = "linux")]

mod brought_in;
mod grace;
pub mod guard;
mod interval;
mod loan;
mod map;
mod map_pages;
mod mirror;
mod other_process;
mod page_size;
mod private;
mod shared;
mod shared_file;
mod space;
mod sparse;
mod uffd;

pub use brought_in::BroughtIn;
pub use guard::{AtomicOp, Fault, LoadFault, Sink, Source, StoreFault};
pub use loan::{Loan, NotLent, View, forget_all, forget_unused};
pub use map::{Mapping, populate};
pub use mirror::{
    Inside, Mirror, Pages, Paging, PagingCounts, PagingWatcher, Prefetch, ProcessPages, Reach,
    TranslationCache, Turn,
};
pub use other_process::{OtherProcess, permit_others};
pub use page_size::page_size;
pub use private::{
    AllHome, DeviceMemory, DevicePage, MigrateError, MigrationCounts, PrivateMemory, RangeFault,
};
pub use shared::{record_to_read, record_to_write};
pub use space::{
    AddressSpace, Change, HeldByParent, Invalidate, NoMemory, PinError, Pinned, Registration,
    begin, can_watch, end, gone, invalidate, mark, protected,
};
