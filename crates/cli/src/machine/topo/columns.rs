//! The columns of the matrix: adapters that hang at one place and that every GPU sees alike are
//! one.

use crate::machine::pairs::Pair;
use pcie::{Address, Function, Kind, Label, Machine};

/// Adapters that hang at one place and that every GPU sees alike.
pub struct Column<'a> {
    pub adapters: Vec<&'a Function>,
    /// How near each GPU is.
    pub labels: Vec<&'static [Label]>,
}

/// The adapters as columns.
pub fn columns<'a>(machine: &Machine, pairs: &[Pair<'a>]) -> Vec<Column<'a>> {
    let mut columns: Vec<(Option<Address>, Column<'a>)> = Vec::new();
    for nic in topology::adapters(machine) {
        let of_nic = pairs.iter().filter(|pair| pair.nic.address == nic.address);
        let (labels, found): (Vec<_>, Vec<_>) = of_nic.map(|pair| (pair.labels, pair.nic)).unzip();
        let Some(&nic) = found.first() else { continue };
        let place = place(machine, nic);
        let same = |(other, column): &&mut (Option<Address>, Column<'_>)| {
            *other == place && place.is_some() && column.labels == labels
        };
        match columns.iter_mut().find(same) {
            Some((_, column)) => column.adapters.push(nic),
            None => columns.push((place, Column { adapters: vec![nic], labels })),
        }
    }
    columns.into_iter().map(|(_, column)| column).collect()
}

/// The switch that a function hangs below, or else the port.
fn place(machine: &Machine, function: &Function) -> Option<Address> {
    let above: Vec<&Function> = machine.upwards(function).skip(1).collect();
    let switch = above.iter().find(|f| matches!(f.kind, Kind::SwitchUpstream | Kind::Bridge));
    switch.or(above.first()).map(|f| f.address)
}
