//! A machine from its parts, within bounds: names cleaned, GPUs numbered, and no more functions and
//! pairs than can be judged.

use super::roles;
use crate::Error;
use crate::source::bounds::clean;
use pcie::{Cpu, Function, HostBridge, Machine, Role};

/// Most functions of a machine: a large one with all virtual functions has some thousand.
const MOST_FUNCTIONS: usize = 16 << 10;
/// Most pairs of a GPU and an adapter, such as 32 of the one with 128 of the other: each is judged,
/// and the doctor writes some KiB about it.
const MOST_PAIRS: usize = 4 << 10;

/// Puts a machine together from what a source said: names cleaned, and no more than can be judged.
pub(crate) fn machine(
    what: &'static str,
    cpu: Option<Cpu>,
    mut hosts: Vec<HostBridge>,
    mut functions: Vec<Function>,
) -> Result<Machine, Error> {
    few_enough(what, functions.len())?;
    let cpu = cpu.map(|cpu| Cpu { vendor: clean(&cpu.vendor), ..cpu });
    for host in &mut hosts {
        host.name = clean(&host.name);
    }
    for function in &mut functions {
        function.name = clean(&function.name);
        function.driver = function.driver.as_deref().map(clean);
        function.product = function.product.as_deref().map(clean);
        function.vuid = function.vuid.as_deref().map(clean);
        function.interfaces = function.interfaces.iter().map(|name| clean(name)).collect();
    }
    number(&mut functions);
    let machine = Machine::new(cpu, hosts, functions).map_err(|error| Error::Tree(what, error))?;
    few_pairs(what, &machine)?;
    Ok(machine)
}

/// Refuses more pairs than can be judged.
pub(crate) fn few_pairs(what: &'static str, machine: &Machine) -> Result<(), Error> {
    let (gpus, adapters) = (roles::accelerators(machine).len(), roles::adapters(machine).len());
    if gpus.saturating_mul(adapters) > MOST_PAIRS {
        let reason = format!("{gpus} GPUs with {adapters} adapters are more than one machine has");
        return Err(Error::malformed(what, reason));
    }
    Ok(())
}

/// Numbers GPUs as their vendors' tools do, in order of their address, where the source has not.
fn number(functions: &mut [Function]) {
    let mut gpus: Vec<&mut Function> =
        functions.iter_mut().filter(|f| f.role == Role::Gpu && f.name.is_empty()).collect();
    gpus.sort_by_key(|gpu| gpu.address);
    if gpus.iter().all(|gpu| gpu.index.is_none()) {
        for (index, gpu) in (0..).zip(gpus) {
            gpu.index = Some(index);
        }
    }
}

/// Refuses more functions than a machine has, before they are put together.
pub(crate) fn few_enough(what: &'static str, functions: usize) -> Result<(), Error> {
    if functions > MOST_FUNCTIONS {
        let reason = format!("more than {MOST_FUNCTIONS} PCI functions");
        return Err(Error::malformed(what, reason));
    }
    Ok(())
}
