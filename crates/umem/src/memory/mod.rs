//! What DMA addresses name: spaces, the segments in them, and the pages that an adapter translates
//! by.

pub(crate) mod device_memory;
pub(crate) mod page_size;
pub(crate) mod space;
pub(crate) mod translation;
