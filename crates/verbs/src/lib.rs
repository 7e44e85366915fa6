//! The drop-in libibverbs: the verbs C ABI over the software HCA.
//!
//! The crate `verbs_sys` has the C structs. Folders, each leaning only on those behind it: `edge`
//! has the symbols with their versions and what is no object; `mlx5dv`; `queues`, `regions` and
//! `objects` have a file for each kind of verbs object; `ucma` answers librdmacm; `engine` is the
//! one process-wide state, which begins with the first open device and ends with the last;
//! `connection`, `drm`; `platform` is the machine that the devices sit in; `base` turns pointers
//! from C into our objects. Protocol lives in `hca`, memory in `umem`. Begin at `edge/exports.rs`.
//!
//! What a function may assume is the contract of the verbs manual pages: a pointer is null or to a
//! live object of the right kind, and a struct's counted members are as long as it says. Null is
//! refused with EINVAL. Nothing unwinds into C.
#![cfg(target_os = "linux")]
// The unit tests are built without `exports`, which is what calls most functions.
#![cfg_attr(test, allow(dead_code))]

#[macro_use]
mod base;
mod connection;
mod drm;
mod edge;
mod engine;
mod mlx5dv;
mod nldev;
mod objects;
mod platform;
mod queues;
mod regions;
mod ucma;
