//! Targets of the crate `link`.

/// The kernel's listing of addresses and interfaces.
pub fn netlink(data: &[u8]) {
    link::parse_anything(data);
}

/// An address message and an interface message with an attribute each.
pub fn netlink_seeds() -> Vec<Vec<u8>> {
    let mut address = vec![2, 24, 0, 0, 2, 0, 0, 0];
    address.extend([8, 0, 1, 0, 192, 0, 2, 1]);
    let mut interface = vec![0; 16];
    interface.extend([8, 0, 4, 0, 0xdc, 5, 0, 0]);
    vec![address, interface]
}
