//! Pairs of a GPU and a network adapter: the way between them, how near they are, and which adapter
//! is the nearest of a GPU.

use pcie::{ConfigAcs, Function, Machine, RoutePlan, route_plan};

/// A GPU or other provider, the adapter that reaches for it, and the way.
pub struct Pair<'a> {
    /// The function whose memory is read and written.
    pub gpu: &'a Function,
    /// The adapter that reads and writes it.
    pub nic: &'a Function,
    /// The way that the bytes take, and Linux's verdict on it.
    pub way: RoutePlan,
    /// How near they are; several where that is not known.
    pub labels: &'static [pcie::Label],
}

impl<'a> Pair<'a> {
    /// The ACS bits that would let its traffic turn round below the root complex, if ACS alone
    /// prevents it.
    pub fn config_acs(&self, machine: &Machine) -> Option<ConfigAcs> {
        let redirects = &self.way.verdict.redirects;
        (!redirects.is_empty()).then(|| ConfigAcs::without_redirect(machine, redirects))
    }

    /// The boot parameter, of those that the machine's kernel knows, that would let its traffic
    /// turn round below the root complex, if ACS alone prevents it.
    pub fn remedy(&self, machine: &Machine) -> Option<String> {
        pcie::without_redirect(machine, &self.way.verdict.redirects)
    }

    /// The two with the way between them and how near they are.
    pub fn new(machine: &'a Machine, gpu: &'a Function, nic: &'a Function) -> Pair<'a> {
        let labels = pcie::labels(machine, gpu, nic);
        Pair { gpu, nic, way: route_plan(machine, gpu, nic), labels }
    }

    /// `PIX`, or `PHB|NODE` where the source does not tell.
    pub fn label(&self) -> String {
        labels(self.labels)
    }
}

/// `PIX`, or `PHB|NODE`.
pub fn labels(labels: &[pcie::Label]) -> String {
    let all: Vec<String> = labels.iter().map(ToString::to_string).collect();
    all.join("|")
}

/// Every GPU with every adapter.
pub fn all_pairs(machine: &Machine) -> Vec<Pair<'_>> {
    let nics = topology::adapters(machine);
    let of = |gpu| nics.iter().map(move |nic| Pair::new(machine, gpu, nic));
    topology::accelerators(machine).into_iter().flat_map(of).collect()
}

/// How near a pair is, to compare: by what is between, by the distance of the nodes that it names,
/// by the way's rate.
fn nearness(machine: &Machine, pair: &Pair<'_>) -> impl Ord + use<> {
    let (gpu, nic) = (machine.numa_node_of(pair.gpu), machine.numa_node_of(pair.nic));
    let apart = machine.sockets().distance(gpu, nic);
    (pair.labels, apart, u64::MAX - pair.way.bytes_per_second.unwrap_or(0))
}

/// A GPU with every adapter, the nearest first.
pub fn by_nearness<'a>(machine: &'a Machine, gpu: &'a Function) -> Vec<Pair<'a>> {
    let nics = topology::adapters(machine).into_iter();
    let mut pairs: Vec<Pair<'a>> = nics.map(|nic| Pair::new(machine, gpu, nic)).collect();
    pairs.sort_by_key(|pair| (nearness(machine, pair), pair.nic.address));
    pairs
}

/// The nearest adapter of a GPU, and those that are as near.
pub struct Nearest<'a> {
    /// The nearest adapter; among equals, the one that the fewest GPUs before got.
    pub pair: Pair<'a>,
    /// All that are as near, that one among them, in order of their address.
    pub equals: Vec<&'a Function>,
}

/// Every GPU with its nearest adapters.
pub fn nearest(machine: &Machine) -> Vec<Nearest<'_>> {
    let mut found: Vec<Nearest<'_>> = Vec::new();
    for gpu in topology::accelerators(machine) {
        let mut pairs = by_nearness(machine, gpu);
        let Some(best) = pairs.first().map(|pair| nearness(machine, pair)) else { continue };
        pairs.retain(|pair| nearness(machine, pair) == best);
        let equals: Vec<&Function> = pairs.iter().map(|pair| pair.nic).collect();
        let taken = |nic: &Function| {
            found.iter().filter(|other| other.pair.nic.address == nic.address).count()
        };
        let pair = pairs.into_iter().min_by_key(|pair| (taken(pair.nic), pair.nic.address));
        found.extend(pair.map(|pair| Nearest { pair, equals }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::fold;
    use pcie::{Below, HostBridge, Kind, Role, Shown, Sockets};

    /// A GPU on node 0, and adapters on each of four nodes, two to a socket; on node 0 below no
    /// switch that the GPU is below.
    fn machine(sockets: Sockets, nodes: &[u32]) -> Machine {
        let host = |node: u32| HostBridge {
            name: format!("h{node}"),
            shown: Shown::Bridges,
            numa_node: Some(node),
            root_device: None,
        };
        let function = |at: String, role, host, name: String| Function {
            role,
            interfaces: vec![name],
            ..Function::new(at.parse().unwrap(), Kind::Endpoint, Below::Host(host))
        };
        let mut functions = vec![Function {
            index: Some(0),
            ..function("00:01.0".into(), Role::Gpu, 0, "card3".into())
        }];
        for (number, node) in nodes.iter().enumerate() {
            let at = format!("{:02x}:00.0", 0x10 + number);
            functions.push(function(at, Role::Hca, *node as usize, format!("mlx5_{number}")));
        }
        let mut machine = Machine::new(None, (0..4).map(host).collect(), functions).unwrap();
        machine.set_sockets(sockets);
        machine
    }

    fn equals(machine: &Machine) -> String {
        fold::functions(&nearest(machine)[0].equals)
    }

    #[test]
    fn ties_are_broken_by_sockets_and_equals_told() {
        let sockets =
            || Sockets { of_node: [(0, 0), (1, 0), (2, 1), (3, 1)].into(), ..Sockets::default() };
        // all are beyond the node: without sockets they are equals
        assert_eq!(equals(&machine(Sockets::default(), &[3, 2, 1])), "mlx5_{0..2}");
        assert_eq!(equals(&machine(sockets(), &[3, 2, 1, 1])), "mlx5_{2,3}");
        assert_eq!(equals(&machine(sockets(), &[3, 2])), "mlx5_{0,1}");
        // firmware's distance decides within
        let far = Sockets { distances: [((0, 2), 20), ((0, 3), 30)].into(), ..sockets() };
        assert_eq!(equals(&machine(far, &[3, 2])), "mlx5_1");
    }
}
