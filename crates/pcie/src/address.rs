//! PCI addresses: domain, bus, device, function.

use std::fmt;
use std::str::FromStr;

/// Address of a function, written `0000:3b:00.0`. Domains may exceed 16 bits (VMD).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// PCI segment.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus, 5 bits.
    pub device: u8,
    /// Function of the device, 3 bits.
    pub function: u8,
}

impl Address {
    /// Whether both are functions of one device.
    pub fn same_device(&self, other: &Address) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }

    /// The address in the lower 48 bits of a word, for shared memory.
    pub fn to_bits(self) -> u64 {
        u64::from(self.domain) << 16
            | u64::from(self.bus) << 8
            | u64::from(self.device & 31) << 3
            | u64::from(self.function & 7)
    }

    /// The address in the lower 48 bits of any word.
    pub fn from_bits(word: u64) -> Address {
        Address {
            domain: (word >> 16) as u32,
            bus: (word >> 8) as u8,
            device: (word >> 3 & 31) as u8,
            function: (word & 7) as u8,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// A text that is no PCI address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a PCI address such as 0000:3b:00.0")]
pub struct BadAddress(pub String);

impl FromStr for Address {
    type Err = BadAddress;

    /// Reads `domain:bus:device.function` in hexadecimal; the domain may be missing.
    fn from_str(text: &str) -> Result<Address, BadAddress> {
        let parse = || {
            let hex = |s: &str, most: usize| {
                let plain =
                    (1..=most).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_hexdigit());
                plain.then(|| u32::from_str_radix(s, 16).ok()).flatten()
            };
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            let (device, function) = (hex(device, 2)?, hex(function, 1)?);
            (device < 32 && function < 8).then_some(())?;
            Some(Address {
                domain: hex(domain, 8)?,
                bus: hex(bus, 2)? as u8,
                device: device as u8,
                function: function as u8,
            })
        };
        parse().ok_or_else(|| BadAddress(text.to_owned()))
    }
}

impl<'de> serde::Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Address, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for (text, back) in [
            ("0000:3b:00.0", "0000:3b:00.0"),
            ("3b:1f.7", "0000:3b:1f.7"),
            ("10000:e1:00.0", "10000:e1:00.0"),
            ("FFFF:FF:1F.7", "ffff:ff:1f.7"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), back);
        }
        for bad in [
            "",
            "0000:3b:00",
            "3b:20.0",
            "3b:00.8",
            "3b:00.-1",
            "+3b:00.0",
            "1:2:3:4.5",
            "x:00.0",
            ":00.0",
            "3b:.0",
        ] {
            assert_eq!(bad.parse::<Address>(), Err(BadAddress(bad.to_owned())));
        }
    }
}
