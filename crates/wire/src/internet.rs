//! The Internet checksum (RFC 1071) of IP, UDP, TCP and ICMP headers.

/// Sum of big-endian 16-bit words, an odd last byte being the high half of one. Sums of parts that begin at even places may
/// be added up.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    sum + rest.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// The ones' complement sum: 0xffff over bytes with their right checksum among them.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum of bytes in which its own place is 0.
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        // Section 3.
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0x220d);
        assert_eq!(checksum(&[0x12]), !0x1200);
    }
}
