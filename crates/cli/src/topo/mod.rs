//! `peerdma topo`: a machine as a tree, who is near whom, and the ways between.

mod json;
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
    /// What would let its traffic turn round below the root complex, if ACS alone prevents it.
    pub fn remedy(&self, machine: &Machine) -> Option<ConfigAcs> {
        let redirects = &self.way.verdict.redirects;
        (!redirects.is_empty()).then(|| ConfigAcs::without_redirect(machine, redirects))
    }

    /// What there is to say of the two.
    pub fn new(machine: &'a Machine, gpu: &'a Function, nic: &'a Function) -> Pair<'a> {
        let labels = pcie::labels(machine, gpu, nic);
        Pair { gpu, nic, way: way(machine, gpu, nic), labels }
    }

    /// `PIX`, or `PHB|NODE` where the source does not tell.
    pub fn label(&self) -> String {
        let all: Vec<String> = self.labels.iter().map(ToString::to_string).collect();
        all.join("|")
    }
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
        let pairs = if chosen.is_empty() { nearest(machine) } else { chosen };
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

/// A GPU with every adapter, the nearest first: by label, then by the way's rate.
pub fn by_nearness<'a>(machine: &'a Machine, gpu: &'a Function) -> Vec<Pair<'a>> {
    let nics = topology::adapters(machine).into_iter();
    let mut pairs: Vec<Pair<'a>> = nics.map(|nic| Pair::new(machine, gpu, nic)).collect();
    pairs.sort_by_key(|pair| {
        let rate = pair.way.bytes_per_second.unwrap_or(0);
        (pair.labels.first().copied(), u64::MAX - rate, pair.nic.address)
    });
    pairs
}

/// Every GPU with its nearest adapter: by label, then by the way's rate, then the one that the fewest GPUs before got.
pub fn nearest(machine: &Machine) -> Vec<Pair<'_>> {
    let nics = topology::adapters(machine);
    let mut found: Vec<Pair<'_>> = Vec::new();
    for gpu in topology::accelerators(machine) {
        let taken =
            |nic: &Function| found.iter().filter(|pair| pair.nic.address == nic.address).count();
        let best = nics.iter().map(|nic| Pair::new(machine, gpu, nic)).min_by_key(|pair| {
            let rate = pair.way.bytes_per_second.unwrap_or(0);
            (pair.labels.first().copied(), u64::MAX - rate, taken(pair.nic), pair.nic.address)
        });
        found.extend(best);
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
        function.name == name || function.interfaces.iter().any(|own| own == name)
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
        None => topology::take(&Folder::new(Path::new("/")), out)
            .what(format_args!("cannot write {}", to.display()))?,
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

fn rdma_topo(from: Option<&Path>) -> Outcome {
    let root = from.unwrap_or(Path::new("/"));
    if !root.is_dir() {
        return Err(Failure::new(format_args!("{} is not a folder", root.display()))
            .because("an rdma_topo dump is made of a folder with /sys in it"));
    }
    style::outln(format_args!("{}", topology::dump(&Folder::new(root))));
    Ok(0)
}
