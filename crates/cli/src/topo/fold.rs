//! What is equal, told once: names that differ in a number as `mlx5_{0..3}`, and adapters that every GPU sees alike as one column.

use super::{Pair, names};
use pcie::{Address, Function, Kind, Label, Machine};

/// Names as short as a shell would have them: `mlx5_{0..3}`, `mlx5_{0,2}`, `ib0, mlx5_{1..3}`.
pub fn names_of(names: &[String]) -> String {
    let mut groups: Vec<(&str, Vec<u64>)> = Vec::new();
    let mut whole: Vec<&str> = Vec::new();
    for name in names {
        let digits = name.chars().rev().take_while(char::is_ascii_digit).count();
        let (stem, number) = name.split_at(name.len() - digits);
        // a number with a leading zero is not the same name without it
        let plain =
            number.parse::<u64>().ok().filter(|n| n.to_string() == number && !stem.is_empty());
        match (plain, groups.iter_mut().find(|(s, _)| *s == stem)) {
            (Some(number), Some((_, numbers))) => numbers.push(number),
            (Some(number), None) => groups.push((stem, vec![number])),
            (None, _) => whole.push(name),
        }
    }
    let mut parts: Vec<String> =
        groups.into_iter().map(|(stem, numbers)| braced(stem, numbers)).collect();
    parts.extend(whole.into_iter().map(str::to_owned));
    parts.join(", ")
}

fn braced(stem: &str, mut numbers: Vec<u64>) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    if let [only] = numbers[..] {
        return format!("{stem}{only}");
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let parts: Vec<String> = ranges
        .iter()
        .flat_map(|&(first, last)| match last - first {
            0 => vec![first.to_string()],
            1 => vec![first.to_string(), last.to_string()],
            _ => vec![format!("{first}..{last}")],
        })
        .collect();
    format!("{stem}{{{}}}", parts.join(","))
}

/// Names of functions, folded; those without a name by their address.
pub fn functions(functions: &[&Function]) -> String {
    let name =
        |function: &&Function| names::own(function).unwrap_or_else(|| function.address.to_string());
    names_of(&functions.iter().map(name).collect::<Vec<_>>())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_a_shell_has_them() {
        for (names, expected) in [
            (&["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"][..], "mlx5_{0..3}"),
            (&["mlx5_0"], "mlx5_0"),
            (&["mlx5_0", "mlx5_1"], "mlx5_{0,1}"),
            (&["mlx5_4", "mlx5_0", "mlx5_6", "mlx5_5"], "mlx5_{0,4..6}"),
            (&["mlx5_0", "ib0", "mlx5_1"], "mlx5_{0,1}, ib0"),
            (&["rocep1s0f0", "rocep1s0f1"], "rocep1s0f{0,1}"),
            (&["a", "b"], "a, b"),
            (&["e01", "e02"], "e01, e02"),
            (
                &["18446744073709551615", "x18446744073709551615", "x18446744073709551614"],
                "x{18446744073709551614,18446744073709551615}, 18446744073709551615",
            ),
            (&["x99999999999999999999999"], "x99999999999999999999999"),
            (&[], ""),
        ] {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(names_of(&names), expected);
        }
    }
}
