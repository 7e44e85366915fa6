//! Memory: what it is made of, at which addresses programs have it, and copies between them.

mod alloc;
mod array;
mod device;
mod exported;
mod held;
mod ipc;
mod physical;
mod pool;
mod rows;
mod space;
mod span;
mod vmm;
mod word;

pub use alloc::{
    alloc, alloc_host, alloc_managed, free, free_host, migrate, register_host, unregister_host,
};
pub use array::{Array, Layout, Part, Shape};
pub use exported::IPC_BYTES;
pub(crate) use exported::{Which, which};
pub use held::HeldMemory;
pub use ipc::{IpcHandle, OpenedMemory, close_ipc, export_ipc, open_ipc};
pub use physical::{Physical, Wanted};
pub use pool::Pool;
pub use rows::{Rows, Side};
pub use space::{Device, DeviceAccess, Memory, Origin, Range, Space};
pub use span::{Span, copy_rows};
pub use vmm::{
    GRANULARITY, create, handle_at, import, is_mapped_on, map, release_reserved, reserve,
    set_access, unmap,
};
pub use word::{Width, Word};
