//! `peerdma topo`: a machine as a tree, who is near whom, and the ways between.

mod capture;
mod columns;
mod json;
mod links;
mod svg;
mod text;
mod view;

use crate::args::machine::Topo;
use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style;
use crate::machine::names;
use crate::machine::pairs::{Pair, nearest};
use capture::refused;
use pcie::{ConfigAcs, Function, Machine};
use topology::Capture;

/// The command.
pub fn topo(arguments: &Topo) -> Outcome {
    if let Some(path) = &arguments.write_capture {
        return capture::write(arguments.from.as_deref(), path);
    }
    if arguments.rdma_topo {
        return capture::rdma_topo(arguments.from.as_deref());
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
        std::fs::write(path, picture)
            .what(format_args!("cannot write {}", path.display()))
            .map_err(|failure| failure.remedy(capture::WRITABLE))?;
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
            "x is as firmware left it, which may differ from now at {}; to keep the bits: \
             pci=config_acs={}",
            left.join(", "),
            acs.keeping(machine)
        ));
    }
    capture.machine = booted;
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::{Below, HostBridge, Kind, Role, Shown};

    #[test]
    fn gpus_are_known_by_their_number() {
        let host = HostBridge {
            name: "h0".into(),
            shown: Shown::Bridges,
            numa_node: Some(0),
            root_device: None,
        };
        let gpu = Function {
            role: Role::Gpu,
            index: Some(0),
            interfaces: vec!["card3".into()],
            ..Function::new("00:01.0".parse().unwrap(), Kind::Endpoint, Below::Host(0))
        };
        let machine = Machine::new(None, vec![host], vec![gpu]).unwrap();
        assert_eq!(named(&machine, "gpu0").unwrap().address.to_string(), "0000:00:01.0");
        assert_eq!(names::label(named(&machine, "card3").unwrap()), "GPU0 0000:00:01.0");
    }
}
