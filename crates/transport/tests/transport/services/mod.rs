//! The services besides a reliable connection, and what a receive queue may be.

mod raw;
pub mod tags;
pub mod uc_ud;
pub mod xrc;
