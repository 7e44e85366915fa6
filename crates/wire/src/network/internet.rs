//! The Internet checksum (RFC 1071) of IP, UDP, TCP and ICMP headers.

/// Sum of big-endian 16-bit words, an odd last byte being the high half of one. Sums of parts that
/// begin at even places may be added up.
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

/// Sum of the pseudo header that the checksums of UDP, TCP and ICMPv6 cover besides their own bytes
/// (RFC 9293 section 3.1, RFC 8200 section 8.1): both addresses as they stand in the IP header, the
/// protocol, and the length of what it covers in bytes.
pub fn pseudo_header(addresses: &[u8], protocol: u8, len: usize) -> u64 {
    sum(addresses) + u64::from(protocol) + len as u64
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

    #[test]
    fn a_pseudo_header_sums_like_its_bytes() {
        let addresses = [0xfd; 32];
        let bytes = [&addresses[..], &[0, 1, 2, 3], &[0, 0, 0, 58]].concat();
        assert_eq!(fold(pseudo_header(&addresses, 58, 0x1_0203)), fold(sum(&bytes)));
    }
}
