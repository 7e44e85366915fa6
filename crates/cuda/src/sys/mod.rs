//! What the driver asks of the system: the GPU's node, mappings, copies that answer an error where
//! memory is gone; and what crosses the edge to C. The only unsafe code of this crate is in the
//! files of this folder.

mod abi;
mod copy;
mod map;
mod migrate;
mod node;

pub use abi::{Code, In, Out, Text, contained};
pub use copy::{Fault, Place, copy, fill, is_word};
pub use map::{Access, Mapping, Where, is_mapped, map_file, page_size};
pub use migrate::migrate;
pub use node::{Domain, Node, duplicate};
