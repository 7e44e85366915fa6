//! The platform's GPUs: found in the tree that a program under `peerdma run` has, opened at their
//! nodes.

mod attributes;
mod card;
mod tree;
mod visible;

pub use attributes::attribute;
pub use card::Gpu;
pub use tree::{Address, Found, found};
pub use visible::visible;
