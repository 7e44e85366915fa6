//! dmabuf
