//! Providers of device memory behind one trait.
//!
//! A [`Provider`] allocates [`Memory`] that can be exported as a dma-buf descriptor, and says
//! honestly what its exports are. The [`SoftwareGpu`] has a card's worth of memory, a BAR window
//! that may be smaller, and a few kernels; it needs no device. With the feature `providers`, which
//! the preloaded library is without, there are those of the machine too: see [`providers`].
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
#[cfg(feature = "providers")]
pub mod providers;
mod software;
mod vram;

pub use buffer::Buffer;
pub use card::Config;
pub use error::Error;
pub use gem::Gem;
#[cfg(feature = "hash")]
pub use hash::Digest;
pub use provider::{Memory, Provider, Residence, Traits};
pub use software::SoftwareGpu;
