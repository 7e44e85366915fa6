//! Who the device says that it is.

/// PCI vendor.
pub const VENDOR: u16 = 0x15b3;
/// PCI device: ConnectX-8.
pub const DEVICE: u16 = 0x1023;
/// Most bytes of a VUID: what `QUERY_VUID` has room for.
pub(crate) const VUID_LEN: usize = 128;
/// Version of the firmware that we are, one that NVIDIA published for the ConnectX-8.
pub(crate) const FIRMWARE: (u16, u16, u16) = (40, 46, 1006);
