//! What a registration asks for, and why it is refused.

pub(crate) mod dmabuf_range;
pub(crate) mod error;
pub(crate) mod rights;
