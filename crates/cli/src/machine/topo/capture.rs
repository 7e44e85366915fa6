//! A machine as a file for elsewhere: what `--write-capture` takes, and the dump of `--rdma-topo`.

use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style;
use crate::machine::probe;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use topology::{Error, Folder};

/// What helps where a file cannot be written.
pub const WRITABLE: &str = "name a file in a folder that is there and that you may write";

/// The failure of a machine that cannot be read.
pub fn refused(error: Error) -> Failure {
    Failure::new("cannot read the machine")
        .because(error)
        .remedy("--help lists what --from reads; `peerdma platforms` lists ready-made machines")
}

/// Writes what a machine shows of itself to `to`: this host, or what `from` holds.
pub fn write(from: Option<&Path>, to: &Path) -> Outcome {
    let file = File::create(to)
        .what(format_args!("cannot create {}", to.display()))
        .map_err(|failure| failure.remedy(WRITABLE))?;
    let out = BufWriter::new(file);
    match from {
        Some(from) => topology::take_file(from, out).map_err(refused)?,
        None => take_this_host(out).what(format_args!("cannot write {}", to.display()))?,
    }
    let capture = topology::read(to).map_err(refused)?;
    style::outln(format_args!(
        "{}: {} below {}. Read it with `peerdma topo --from {0}`.",
        to.display(),
        style::count(capture.machine.functions().count(), "function"),
        style::count(capture.machine.hosts().len(), "host bridge"),
    ));
    if capture.machine.functions().any(|function| function.acs == pcie::Acs::Unknown) {
        style::errln(format_args!(
            "ACS and ATS are not all in it: configuration space beyond 64 bytes is read as root \
             only."
        ));
    }
    Ok(0)
}

/// This host, with what its devices answer: a capture cannot be asked.
fn take_this_host(out: impl std::io::Write) -> std::io::Result<()> {
    let tree = Folder::new(Path::new("/"));
    let mut facts = ::doctor::Facts::default();
    probe::ask_devices(&mut facts, false);
    topology::take_with(&tree, &[(::doctor::PROBES, facts.answers().as_bytes())], out)
}

/// Prints the dump that rdma-core's rdma_topo reads.
pub fn rdma_topo(from: Option<&Path>) -> Outcome {
    let dump = match from {
        Some(from) => topology::dump_file(from).map_err(refused)?,
        None => topology::dump(&Folder::new(Path::new("/"))),
    };
    style::outln(format_args!("{dump}"));
    Ok(0)
}
