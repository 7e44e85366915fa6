//! Parsers of option values. Each answers what was expected where a text is something else.

use std::net::IpAddr;

pub fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fraction) if fraction > 0.0 && fraction <= 1.0 => Ok(fraction),
        _ => Err("a number above 0, 1 at most, is expected".to_owned()),
    }
}

pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.05 to 3600 is expected".to_owned()),
    }
}

pub fn no_or_power_of_two(text: &str) -> Result<u32, String> {
    if text == "0" { Ok(0) } else { power_of_two(text) }
}

pub fn power_of_two(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(mib) if mib.is_power_of_two() && mib <= 1 << 16 => Ok(mib),
        _ => Err("a power of two from 1 to 65536 is expected".to_owned()),
    }
}

/// An address that a guest may share with this host.
pub fn of_host(text: &str) -> Result<IpAddr, String> {
    match text.parse().map(|ip: IpAddr| ip.to_canonical()) {
        Ok(ip) if ip.is_loopback() => Err("loopback addresses stay this host's alone".to_owned()),
        Ok(ip) if ip.is_unspecified() || ip.is_multicast() => Err("it names no host".to_owned()),
        Ok(ip) => Ok(ip),
        Err(_) => Err("an IP address is expected".to_owned()),
    }
}

/// Bytes from `N`, `NK`, `NM`, `NG`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.trim_end_matches("iB").trim_end_matches('B') {
        text if text.ends_with(['k', 'K']) => (&text[..text.len() - 1], 10),
        text if text.ends_with(['m', 'M']) => (&text[..text.len() - 1], 20),
        text if text.ends_with(['g', 'G']) => (&text[..text.len() - 1], 30),
        text => (text, 0),
    };
    let number: u64 =
        number.trim().parse().map_err(|_| "a number such as 4096, 64K or 256M".to_owned())?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err("at least one byte".to_owned()),
        Some(size) if size <= 1 << 40 => Ok(size),
        _ => Err("at most 1024G".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("2MiB"), Ok(2 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        for bad in ["", "K", "0", "-1", "1.5M", "99999999999G", "é"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
