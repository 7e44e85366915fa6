//! `peerdma topo`: a machine as a tree, who is near whom, and the ways between.

mod fold;
mod json;
mod links;
pub mod names;
mod svg;
mod text;
mod view;

use crate::args::Topo;
use crate::failure::{Context, Failure, Outcome};
use crate::style;
use pcie::{ConfigAcs, Function, Machine, Way, way};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use topology::{Capture, Error, Folder};

/// A GPU or other provider, the adapter that reaches for it, and the way.
pub struct Pair<'a> {
    /// Whose memory it is.
    pub gpu: &'a Function,
    /// Who reads and writes it.
    pub nic: &'a Function,
    /// How.
    pub way: Way,
    /// How near they are; several where that is not known.
    pub labels: &'static [pcie::Label],
}

impl<'a> Pair<'a> {
    /// The ACS bits that would let its traffic turn round below the root complex, if ACS alone prevents it.
    pub fn config_acs(&self, machine: &Machine) -> Option<ConfigAcs> {
        let redirects = &self.way.verdict.redirects;
        (!redirects.is_empty()).then(|| ConfigAcs::without_redirect(machine, redirects))
    }

    /// The boot parameter, of those that the machine's kernel knows, that would let its traffic turn round below the root complex, if ACS alone prevents it.
    pub fn remedy(&self, machine: &Machine) -> Option<String> {
        pcie::without_redirect(machine, &self.way.verdict.redirects)
    }

    /// What there is to say of the two.
    pub fn new(machine: &'a Machine, gpu: &'a Function, nic: &'a Function) -> Pair<'a> {
        let labels = pcie::labels(machine, gpu, nic);
        Pair { gpu, nic, way: way(machine, gpu, nic), labels }
    }

    /// `PIX`, or `PHB|NODE` where the source does not tell.
    pub fn label(&self) -> String {
        labels(self.labels)
    }
}

/// `PIX`, or `PHB|NODE`.
fn labels(labels: &[pcie::Label]) -> String {
    let all: Vec<String> = labels.iter().map(ToString::to_string).collect();
    all.join("|")
}

/// The command.
pub fn topo(arguments: &Topo) -> Outcome {
    if let Some(path) = &arguments.write_capture {
        return write_capture(arguments.from.as_deref(), path);
    }
    if arguments.rdma_topo {
        return rdma_topo(arguments.from.as_deref());
    }
    let mut capture = match &arguments.from {
        Some(path) => topology::read(path).map_err(refused)?,
        None => topology::this_machine().map_err(refused)?,
    };
    if let Some(acs) = &arguments.acs {
        boot(&mut capture, acs)?;
    }
    let machine = &capture.machine;
    let chosen = arguments
        .pair
        .iter()
        .map(|pair| chosen(machine, pair))
        .collect::<Outcome<Vec<Pair<'_>>>>()?;
    if let Some(path) = &arguments.svg {
        let near = || nearest(machine).into_iter().map(|nearest| nearest.pair).collect();
        let pairs = if chosen.is_empty() { near() } else { chosen };
        let picture = svg::picture(&capture, &pairs, arguments.all);
        std::fs::write(path, picture).what(format_args!("cannot write {}", path.display()))?;
        return Ok(0);
    }
    if arguments.json {
        style::json(&json::value(&capture, &chosen));
        return Ok(0);
    }
    match chosen.as_slice() {
        [] => text::machine(&capture, arguments.all),
        pairs => text::pairs(&capture, pairs),
    }
    Ok(0)
}

/// Makes the machine what it would be after a boot with `pci=config_acs=`.
fn boot(capture: &mut Capture, acs: &ConfigAcs) -> Outcome<()> {
    let machine = &capture.machine;
    let booted = machine.booted_with(acs).map_err(|error| {
        Failure::new(format_args!("cannot tell what pci=config_acs={acs} would do")).because(error)
    })?;
    capture.notes.push(format!("as after a boot with pci=config_acs={acs}"));
    let left = acs.left_to_firmware(machine);
    if !left.is_empty() {
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        capture.notes.push(format!(
            "x is as firmware left it, which may differ from now at {}; to keep the bits: pci=config_acs={}",
            left.join(", "),
            acs.keeping(machine)
        ));
    }
    capture.machine = booted;
    Ok(())
}

/// Every GPU with every adapter.
pub fn all_pairs(machine: &Machine) -> Vec<Pair<'_>> {
    let nics = topology::adapters(machine);
    let of = |gpu| nics.iter().map(move |nic| Pair::new(machine, gpu, nic));
    topology::accelerators(machine).into_iter().flat_map(of).collect()
}

/// How near a pair is, to compare: by what is between, by the distance of the nodes that it names, by the way's rate.
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
    /// Of equals the one that the fewest GPUs before got.
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

/// The pair of a `--pair GPU,NIC`.
fn chosen<'a>(machine: &'a Machine, text: &str) -> Outcome<Pair<'a>> {
    let Some((gpu, nic)) = text.split_once(',') else {
        return Err(Failure::new(format_args!(
            "--pair {text}: two names with a comma between are expected"
        ))
        .remedy("for instance --pair 0000:3b:00.0,mlx5_0"));
    };
    Ok(Pair::new(machine, named(machine, gpu)?, named(machine, nic)?))
}

fn named<'a>(machine: &'a Machine, name: &str) -> Outcome<&'a Function> {
    let name = name.trim();
    let by_name = machine.functions().find(|function| {
        function.name == name
            || function.interfaces.iter().any(|own| own == name)
            || names::own(function).is_some_and(|own| own.eq_ignore_ascii_case(name))
    });
    let by_address = || machine.function(name.parse().ok()?);
    by_name.or_else(by_address).ok_or_else(|| {
        Failure::new(format_args!("there is no {name} on this machine"))
            .remedy("`peerdma topo --all` lists the devices with their names and addresses")
    })
}

fn refused(error: Error) -> Failure {
    Failure::new("cannot read the machine").because(error)
}

fn write_capture(from: Option<&Path>, to: &Path) -> Outcome {
    let file = File::create(to).what(format_args!("cannot create {}", to.display()))?;
    let out = BufWriter::new(file);
    match from {
        Some(from) => topology::take_file(from, out).map_err(refused)?,
        None => take_this_host(out).what(format_args!("cannot write {}", to.display()))?,
    }
    let capture = topology::read(to).map_err(refused)?;
    style::outln(format_args!(
        "{}: {} functions below {} host bridges. Read it with `peerdma topo --from {0}`.",
        to.display(),
        capture.machine.functions().count(),
        capture.machine.hosts().len(),
    ));
    if capture.machine.functions().any(|function| function.acs == pcie::Acs::Unknown) {
        style::errln(format_args!(
            "ACS and ATS are not all in it: configuration space beyond 64 bytes is read as root only."
        ));
    }
    Ok(0)
}

/// This host, with what its devices answer: a capture cannot be asked.
fn take_this_host(out: impl std::io::Write) -> std::io::Result<()> {
    let tree = Folder::new(Path::new("/"));
    let mut facts = ::doctor::Facts::default();
    crate::doctor::ask_devices(&mut facts, false);
    topology::take_with(&tree, &[(::doctor::PROBES, facts.answers().as_bytes())], out)
}

fn rdma_topo(from: Option<&Path>) -> Outcome {
    let dump = match from {
        Some(from) => topology::dump_file(from).map_err(refused)?,
        None => topology::dump(&Folder::new(Path::new("/"))),
    };
    style::outln(format_args!("{dump}"));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::{Below, HostBridge, Kind, Role, Shown, Sockets};

    /// A GPU on node 0, and adapters on each of four nodes, two to a socket; on node 0 below no switch that the GPU is below.
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

    #[test]
    fn gpus_are_known_by_their_number() {
        let machine = machine(Sockets::default(), &[1]);
        assert_eq!(named(&machine, "gpu0").unwrap().address.to_string(), "0000:00:01.0");
        assert_eq!(names::label(named(&machine, "card3").unwrap()), "GPU0 0000:00:01.0");
    }
}
