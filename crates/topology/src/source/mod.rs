//! What a stranger gave, as files and text: a tree that looks like `/`, an archive of one, and the
//! bounds and words for what cannot be taken. Nothing in this room knows of PCI.

pub mod archive;
pub mod bounds;
pub mod error;
pub mod tree;
