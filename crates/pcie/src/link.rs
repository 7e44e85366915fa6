//! Links: the wires below a port and the internal hops of a machine, with their rates.

use crate::Address;
use serde::Deserialize;
use std::fmt;

/// Speed and width of a PCIe link.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Signalling rate of a lane in GT/s: 2.5, 5, 8, 16, 32 or 64.
    pub speed_gts: f64,
    /// Lanes.
    pub width: u32,
}

impl Link {
    /// Bytes per second in one direction after line coding (8b/10b up to 5 GT/s, 128b/130b up to 32, 242/256 flits at 64); packet
    /// headers are not deducted.
    pub fn bytes_per_second(&self) -> u64 {
        let coding = match self.speed_gts {
            s if s <= 5.0 => 8.0 / 10.0,
            s if s <= 32.0 => 128.0 / 130.0,
            _ => 242.0 / 256.0,
        };
        (self.speed_gts * 1e9 * coding / 8.0 * f64::from(self.width)) as u64
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GT/s x{}", self.speed_gts, self.width)
    }
}

/// One hop that bytes cross.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LinkId {
    /// The link below this root port or switch downstream port.
    Below(Address),
    /// The root complex behind a host bridge, by its index in the machine.
    RootComplex(usize),
    /// Between the sockets of two NUMA nodes, the lower one first.
    Sockets(u32, u32),
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkId::Below(port) => write!(f, "link below {port}"),
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
        let rate = |speed_gts, width| Link { speed_gts, width }.bytes_per_second() / 1_000_000;
        assert_eq!(rate(2.5, 1), 250);
        assert_eq!(rate(8.0, 16), 15_753);
        assert_eq!(rate(16.0, 16), 31_507);
        assert_eq!(rate(32.0, 16), 63_015);
        assert_eq!(rate(64.0, 16), 121_000);
    }
}
