//! Links: the wires below a port and the internal hops of a machine, with their rates.

use crate::Address;
use serde::Deserialize;
use std::fmt;

/// What is known of a PCIe link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Link {
    /// Speed and width.
    Lanes {
        /// Signalling rate of a lane in GT/s: 2.5, 5, 8, 16, 32 or 64.
        speed_gts: f64,
        /// Lanes, 1 to 32.
        width: u32,
    },
    /// The product only, after line coding (hwloc keeps no more).
    Rate {
        /// Bytes per second in one direction.
        bytes_per_second: u64,
    },
}

/// Lanes that are not there, or a speed no lane has.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("no link has {width} lanes of {speed_gts} GT/s")]
pub struct NoSuchLink {
    speed_gts: f64,
    width: u32,
}

impl Link {
    /// A link of `width` lanes of `speed_gts` GT/s.
    ///
    /// # Errors
    /// A width outside 1 to 32, a speed that is not above 0 or beyond 256 GT/s.
    pub fn lanes(speed_gts: f64, width: u32) -> Result<Link, NoSuchLink> {
        let known = speed_gts > 0.0 && speed_gts <= 256.0 && (1..=32).contains(&width);
        if known {
            Ok(Link::Lanes { speed_gts, width })
        } else {
            Err(NoSuchLink { speed_gts, width })
        }
    }

    /// Bytes per second in one direction after line coding (8b/10b up to 5 GT/s, 128b/130b up to
    /// 32, 242/256 flits at 64); packet headers are not deducted.
    pub fn bytes_per_second(&self) -> u64 {
        let (speed_gts, width) = match *self {
            Link::Lanes { speed_gts, width } => (speed_gts, width),
            Link::Rate { bytes_per_second } => return bytes_per_second,
        };
        let coding = match speed_gts {
            s if s <= 5.0 => 8.0 / 10.0,
            s if s <= 32.0 => 128.0 / 130.0,
            _ => 242.0 / 256.0,
        };
        (speed_gts * 1e9 * coding / 8.0 * f64::from(width)) as u64
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lanes {
    speed_gts: f64,
    width: u32,
}

impl<'de> Deserialize<'de> for Link {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Link, D::Error> {
        let Lanes { speed_gts, width } = Lanes::deserialize(deserializer)?;
        Link::lanes(speed_gts, width).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Lanes { speed_gts, width } => write!(f, "{speed_gts} GT/s x{width}"),
            Link::Rate { bytes_per_second } => {
                write!(f, "{:.1} GB/s", *bytes_per_second as f64 / 1e9)
            }
        }
    }
}

/// One hop that bytes cross.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LinkId {
    /// The link below this root port or switch downstream port.
    Below(Address),
    /// The link above this function, where the port at its other end is not known (virtual
    /// machines, NCCL's files).
    Above(Address),
    /// The root complex behind a host bridge, by its index in the machine.
    RootComplex(usize),
    /// Between the sockets of two NUMA nodes, the lower one first.
    Sockets(u32, u32),
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkId::Below(port) => write!(f, "link below {port}"),
            LinkId::Above(function) => write!(f, "link above {function}"),
            LinkId::RootComplex(host) => write!(f, "root complex {host}"),
            LinkId::Sockets(a, b) => write!(f, "interconnect node {a} - node {b}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_after_line_coding() {
        let rate = |speed_gts, width| {
            Link::lanes(speed_gts, width).unwrap().bytes_per_second() / 1_000_000
        };
        assert_eq!(rate(2.5, 1), 250);
        assert_eq!(rate(8.0, 16), 15_753);
        assert_eq!(rate(16.0, 16), 31_507);
        assert_eq!(rate(32.0, 16), 63_015);
        assert_eq!(rate(64.0, 16), 121_000);
        assert_eq!(Link::Rate { bytes_per_second: 7 }.bytes_per_second(), 7);
        for (speed_gts, width) in [(0.0, 4), (f64::NAN, 4), (8.0, 0), (8.0, 33), (512.0, 4)] {
            assert!(Link::lanes(speed_gts, width).is_err());
        }
    }
}
