//! What connects devices beside PCIe, and processors with each other: links between GPUs, sockets,
//! distances of NUMA nodes.

use crate::Address;
use std::collections::BTreeMap;
use std::fmt;

/// What a link between GPUs is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GpuLinkKind {
    /// NVIDIA's.
    NvLink,
    /// AMD's.
    Xgmi,
    /// NVIDIA's between a GPU and its processor.
    C2c,
}

impl fmt::Display for GpuLinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GpuLinkKind::NvLink => "NVLink",
            GpuLinkKind::Xgmi => "xGMI",
            GpuLinkKind::C2c => "C2C",
        })
    }
}

/// Where a link of a GPU leads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GpuLinkEnd {
    /// Another GPU.
    Gpu(Address),
    /// A switch that is no bridge of PCIe.
    Switch,
    /// A processor.
    Processor,
}

/// Links of one kind between a GPU and something else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuLink {
    /// What kind of links they are.
    pub kind: GpuLinkKind,
    /// The GPU.
    pub from: Address,
    /// The other end.
    pub to: GpuLinkEnd,
    /// How many links, if the source counts them.
    pub count: Option<u32>,
    /// Bytes per second of all in one direction, if the source says it.
    pub bytes_per_second: Option<u64>,
}

/// Processors: which NUMA node is in which socket, and how far nodes are from each other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sockets {
    /// Socket by node.
    pub of_node: BTreeMap<u32, u32>,
    /// What firmware says of two nodes (ACPI SLIT: 10 is the same).
    pub distances: BTreeMap<(u32, u32), u32>,
}

impl Sockets {
    /// How far two nodes are, as a number to compare: same node, same socket, then the others,
    /// within each by firmware's distance. Nodes that are not known are farther than any.
    pub fn distance(&self, a: Option<u32>, b: Option<u32>) -> (u32, u32) {
        let (Some(a), Some(b)) = (a, b) else { return (3, 0) };
        let firmware = self.distances.get(&(a, b)).copied().unwrap_or(0);
        let apart = match (self.of_node.get(&a), self.of_node.get(&b)) {
            _ if a == b => 0,
            (Some(a), Some(b)) if a == b => 1,
            _ => 2,
        };
        (apart, firmware)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_socket_are_nearer() {
        let sockets = Sockets {
            of_node: [(0, 0), (1, 0), (2, 1), (3, 1)].into(),
            distances: [((0, 2), 20), ((0, 3), 30)].into(),
        };
        let order = [(0, Some(0)), (1, Some(1)), (2, Some(2)), (3, Some(3)), (4, None)];
        let far: Vec<_> = order.iter().map(|&(_, node)| sockets.distance(Some(0), node)).collect();
        assert!(far.is_sorted() && far.windows(2).all(|pair| pair[0] < pair[1]), "{far:?}");
    }
}
