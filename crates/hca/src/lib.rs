//! The virtual HCA: capabilities, PD, MKEY, CQ, SRQ, QP, AH, the transport and its progress.
//!
//! Work requests go in as values, completions and events come out as values; no C struct is known here, and
//! memory is seen only through MKEYs over a [`umem::DmaSpace`]. Nothing is global: a process may hold several
//! devices.
#![forbid(unsafe_code)]

// Until link and registry land, the engine is compiled only with `--features engine`.
#[cfg(not(feature = "engine"))]
pub mod device {
    //! Stands in until the engine is compiled by default.
    /// A resolved datagram destination.
    #[derive(Debug)]
    pub struct AddressHandle(crate::types::AhAttr);
    impl AddressHandle {
        /// For tests.
        pub fn unrouted(attr: crate::types::AhAttr) -> std::sync::Arc<AddressHandle> {
            std::sync::Arc::new(AddressHandle(attr))
        }
        /// The attributes.
        pub fn attr(&self) -> &crate::types::AhAttr {
            &self.0
        }
    }
}

#[cfg(feature = "engine")]
mod ah;
#[cfg(feature = "engine")]
mod caps;
#[cfg(feature = "engine")]
mod cq;
#[cfg(feature = "engine")]
pub mod device;
#[cfg(feature = "engine")]
pub mod directory;
mod error;
#[cfg(feature = "engine")]
mod event;
pub mod key;
#[cfg(feature = "engine")]
mod mr;
#[cfg(feature = "engine")]
mod pd;
#[cfg(feature = "engine")]
mod progress;
#[cfg(feature = "engine")]
mod qp;
#[cfg(feature = "engine")]
mod srq;
#[cfg(feature = "engine")]
mod timers;
pub mod transport;
mod types;

#[cfg(feature = "engine")]
pub use caps::{DeviceAttr, GidEntry, PortAttr};
#[cfg(feature = "engine")]
pub use cq::Cq;
pub use device::AddressHandle;
#[cfg(feature = "engine")]
pub use device::{Device, DeviceConfig};
pub use error::{Error, Result};
#[cfg(feature = "engine")]
pub use event::{AsyncEvent, CqNotify, EventSink, EventSource};
#[cfg(feature = "engine")]
pub use mr::Mr;
#[cfg(feature = "engine")]
pub use pd::Pd;
#[cfg(feature = "engine")]
pub use qp::{Qp, QpInit};
#[cfg(feature = "engine")]
pub use srq::{Srq, SrqAttr};
pub use types::*;
