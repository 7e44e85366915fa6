//! From what a source says of devices to a [`pcie::Machine`]: what they are, what they hang below,
//! and what a machine has at most. The form of a source is unknown here.

pub mod assemble;
pub mod build;
pub mod config;
pub mod distinct;
pub mod kinds;
pub mod products;
pub mod roles;
