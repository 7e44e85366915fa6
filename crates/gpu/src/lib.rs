//! Providers of device memory behind one trait.
//!
//! A [`Provider`] allocates [`Memory`] that can be exported as a dma-buf descriptor, and says honestly what its
//! exports can do. The [`SoftwareGpu`] has a card's worth of memory, a BAR window that may be smaller, and a few kernels; it
//! needs no device.
#![deny(unsafe_code)]

mod buffer;
mod card;
mod error;
mod gem;
#[cfg(feature = "hash")]
mod hash;
mod kernels;
mod lease;
mod private;
mod provider;
mod software;
mod vram;

pub use buffer::Buffer;
pub use card::Config;
pub use error::Error;
pub use gem::Gem;
#[cfg(feature = "hash")]
pub use hash::Digest;
pub use provider::{Memory, Provider, Traits};
pub use software::SoftwareGpu;
