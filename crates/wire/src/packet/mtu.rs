//! Path MTU codes (`enum ibv_mtu`): how many payload bytes a packet may carry, 256 to 4096.

use super::codec::BTH_LEN;
use crate::network::udp;
use crate::{GRH_LEN, ICRC_LEN};

/// Most bytes around the payload that a network interface must leave room for: IPv6, UDP, BTH,
/// XRCETH, AtomicETH, ICRC. Linux's `iboe_get_mtu` counts the same.
pub const MAX_OVERHEAD: u32 = (GRH_LEN + udp::HEADER_LEN + BTH_LEN + 4 + 28 + ICRC_LEN) as u32;

/// Payload bytes of an `enum ibv_mtu` code (1 to 5), or `None` for other numbers.
pub const fn bytes(code: u32) -> Option<u32> {
    match code {
        1..=5 => Some(128 << code),
        _ => None,
    }
}

/// The `enum ibv_mtu` code of a number of payload bytes, or `None` when it is not 256, 512, 1024,
/// 2048 or 4096.
pub const fn code(bytes: u32) -> Option<u32> {
    match bytes {
        256 => Some(1),
        512 => Some(2),
        1024 => Some(3),
        2048 => Some(4),
        4096 => Some(5),
        _ => None,
    }
}

/// The code of the largest path MTU that fits an interface whose IP packets are at most
/// `interface_mtu` bytes, or `None` when not even 256 fits.
pub const fn of_interface(interface_mtu: u32) -> Option<u32> {
    let room = interface_mtu.saturating_sub(MAX_OVERHEAD);
    match room {
        0..256 => None,
        256..512 => Some(1),
        512..1024 => Some(2),
        1024..2048 => Some(3),
        2048..4096 => Some(4),
        4096.. => Some(5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_bytes_are_inverse() {
        for (known_code, known_bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(bytes(known_code), Some(known_bytes));
            assert_eq!(code(known_bytes), Some(known_code));
        }
        for wrong in [0, 6, 7, 32, u32::MAX] {
            assert_eq!(bytes(wrong), None);
            assert_eq!(code(wrong), None);
        }
    }

    #[test]
    fn usual_interfaces() {
        assert_eq!(of_interface(1500), Some(3));
        assert_eq!(of_interface(65_536), Some(5));
        assert_eq!(of_interface(9000), Some(5));
        assert_eq!(of_interface(4096 + 96), Some(5));
        assert_eq!(of_interface(4096 + 95), Some(4));
        assert_eq!(of_interface(256 + 96), Some(1));
        assert_eq!(of_interface(256 + 95), None);
        assert_eq!(of_interface(0), None);
    }
}
