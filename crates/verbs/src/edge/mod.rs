//! What programs call: the exported symbols, contexts and their tables, and functions that are of
//! no object.

pub(crate) mod compat;
pub(crate) mod device_list;
pub(crate) mod device_private;
// A test program has no symbol versions, and its own open(2) and the like.
#[cfg(not(test))]
pub(crate) mod exports;
pub(crate) mod marshal;
pub(crate) mod mlx5dv_device;
pub(crate) mod open;
pub(crate) mod rate;
pub(crate) mod start;
pub(crate) mod strings;
pub(crate) mod sysfs_face;
pub(crate) mod sysfs_files;
pub(crate) mod tables;
pub(crate) mod unsupported;
