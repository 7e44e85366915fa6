//! The memory of one process as a DMA engine sees it: guarded touches, populated ranges, notifiers of unmapping.
#![cfg(target_os = "linux")]

mod grace;
pub mod guard;
mod interval;
mod map;
mod mirror;
mod pages;
mod private;
mod resident;
mod space;
mod sparse;
mod uffd;

pub use guard::{AtomicOp, Fault, Sink};
pub use map::{Mapping, populate};
pub use mirror::{
    Inside, Mirror, Paging, PagingCounts, PagingWatcher, Prefetch, Reach, TranslationCache, Turn,
};
pub use private::{
    AllHome, DeviceMemory, DevicePage, MigrateError, MigrationCounts, PrivateMemory, RangeFault,
};
pub use resident::{Pages, ProcessPages};
pub use space::{
    AddressSpace, Change, HeldByParent, Invalidate, NoMemory, PinError, Pinned, Registration,
    begin, can_watch, end, gone, invalidate, mark, page_size,
};
