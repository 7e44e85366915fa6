//! The device: objects and progress.
// SKELETON

/// A resolved datagram destination.
#[derive(Debug)]
pub struct AddressHandle;
