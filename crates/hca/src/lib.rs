//! The virtual HCA: capabilities, PD, MKEY, CQ, SRQ, QP, AH, the transport and its progress.
//!
//! Work requests go in as values, completions and events come out as values; no C struct is known here, and
//! memory is seen only through MKEYs over a [`umem::DmaSpace`]. Nothing is global: a process may hold several
//! devices.
#![forbid(unsafe_code)]

pub mod device;
mod error;
pub mod key;
pub mod transport;
mod types;

pub use error::{Error, Result};
pub use types::*;
