//! How near two GPUs are to each other (`nvmlGpuTopologyLevel_t`).

use cuda::gpu::Found;

/// Levels as NVML numbers them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// The same board.
    Internal = 0,
    /// Below one switch.
    Single = 10,
    /// Below several switches, without a host bridge between them.
    Multiple = 20,
    /// Below one host bridge.
    HostBridge = 30,
    /// Of one NUMA node.
    Node = 40,
    /// Of one machine.
    System = 50,
}

/// The level of the nearest that two GPUs share.
pub fn level(one: &Found, other: &Found) -> Level {
    if one.address == other.address {
        return Level::Internal;
    }
    let pairs = one.bridges.iter().zip(&other.bridges);
    let shared = pairs.take_while(|(a, b)| a == b).count();
    let below = |gpu: &Found| gpu.bridges.len() - shared;
    let root = |gpu: &Found| {
        let first = gpu.bridges.first().unwrap_or(&gpu.address);
        (first.domain, first.bus)
    };
    match shared {
        // what is below the port that both are below: a downstream port each, or more switches
        1.. if below(one) <= 1 && below(other) <= 1 => Level::Single,
        1.. => Level::Multiple,
        _ if root(one) == root(other) => Level::HostBridge,
        _ if one.numa_node == other.numa_node => Level::Node,
        _ => Level::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(address: &str, bridges: &[&str], numa_node: i32) -> Found {
        Found {
            number: 0,
            address: address.parse().unwrap(),
            bridges: bridges.iter().map(|bridge| bridge.parse().unwrap()).collect(),
            name: String::new(),
            node: "/dev/null".into(),
            memory_bytes: 0,
            bar_bytes: 0,
            numa_node,
            id: (0, 0),
            subsystem: (0, 0),
            link: (0, 0),
        }
    }

    #[test]
    fn levels_are_those_of_the_nearest_that_is_shared() {
        let switch = ["15:01.0", "16:00.0"];
        let one = gpu("1a:00.0", &[switch[0], switch[1], "17:00.0"], 0);
        let beside = gpu("1b:00.0", &[switch[0], switch[1], "17:01.0"], 0);
        let deeper = gpu("1f:00.0", &[switch[0], switch[1], "17:02.0", "1d:00.0", "1e:00.0"], 0);
        let bridge = gpu("20:00.0", &["15:02.0"], 0);
        let node = gpu("30:00.0", &["2f:00.0"], 0);
        let far = gpu("98:00.0", &["97:01.0"], 1);
        let of = |other| level(&one, other);
        assert_eq!(of(&one), Level::Internal);
        assert_eq!((of(&beside), level(&beside, &one)), (Level::Single, Level::Single));
        assert_eq!(of(&deeper), Level::Multiple);
        assert_eq!(
            (of(&bridge), of(&node), of(&far)),
            (Level::HostBridge, Level::Node, Level::System)
        );
    }
}
