//! Names and addresses that differ in a number alone, written once: `mlx5_{0..3}`,
//! `0000:{09..28}:00.0`.

use super::names;
use pcie::{Address, Function};
use std::collections::BTreeMap;

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
    let mut parts: Vec<String> = groups
        .into_iter()
        .map(|(stem, n)| stem.to_owned() + &in_braces(n, |n| n.to_string()))
        .collect();
    parts.extend(whole.into_iter().map(str::to_owned));
    parts.join(", ")
}

/// Numbers as a shell would have them: `{0..3,7}`, one alone without braces.
fn in_braces(mut numbers: Vec<u64>, text: impl Fn(u64) -> String) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    if let [only] = numbers[..] {
        return text(only);
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
            0 => vec![text(first)],
            1 => vec![text(first), text(last)],
            _ => vec![format!("{}..{}", text(first), text(last))],
        })
        .collect();
    format!("{{{}}}", parts.join(","))
}

/// Longest list of functions: longer ones are counted.
const LONGEST: usize = 40;

/// Names of functions, folded, and of those without a name the addresses. Where that is long, the
/// first and how many there are.
pub fn functions(functions: &[&Function]) -> String {
    let names: Vec<String> = functions.iter().filter_map(|function| names::own(function)).collect();
    let nameless = functions.iter().filter(|function| names::own(function).is_none());
    let nameless: Vec<Address> = nameless.map(|function| function.address).collect();
    let mut parts = addresses_of(&nameless);
    if !names.is_empty() {
        parts.insert(0, names_of(&names));
    }
    let text = parts.join(", ");
    match functions {
        [first, .., _] if text.chars().count() > LONGEST => {
            let first = names::own(first).unwrap_or_else(|| first.address.to_string());
            format!("{first} and {} more", functions.len() - 1)
        }
        _ => text,
    }
}

/// Addresses with a range in place of the one number in which they differ: `0000:{09..28}:00.0`.
fn addresses_of(addresses: &[Address]) -> Vec<String> {
    let folded = [1, 0, 2, 3].map(|at| differing(addresses, at));
    folded.into_iter().min_by_key(Vec::len).unwrap_or_default()
}

/// Digits of an address's numbers, and what follows each.
const NUMBERS: [(usize, &str); 4] = [(4, ":"), (2, ":"), (2, "."), (1, "")];

/// Addresses as one for all that differ in the number at this place alone.
fn differing(addresses: &[Address], place: usize) -> Vec<String> {
    let mut alike: BTreeMap<[u64; 4], Vec<u64>> = BTreeMap::new();
    for at in addresses {
        let mut numbers =
            [at.domain, at.bus.into(), at.device.into(), at.function.into()].map(u64::from);
        let own = std::mem::take(&mut numbers[place]);
        alike.entry(numbers).or_default().push(own);
    }
    let text = |(numbers, own): ([u64; 4], Vec<u64>)| {
        let number = |(at, (digits, end)): (usize, (usize, &str))| match at == place {
            true => in_braces(own.clone(), |n| format!("{n:0digits$x}")) + end,
            false => format!("{:0digits$x}{end}", numbers[at]),
        };
        NUMBERS.into_iter().enumerate().map(number).collect::<String>()
    };
    alike.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::Kind;

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

    fn folded(addresses: &[&str]) -> String {
        let function =
            |at: &&str| Function::new(at.parse().unwrap(), Kind::Endpoint, pcie::Below::Host(0));
        let all: Vec<Function> = addresses.iter().map(function).collect();
        functions(&all.iter().collect::<Vec<_>>())
    }

    #[test]
    fn addresses_as_a_shell_has_them() {
        let row: Vec<String> = (0x09..0x29).map(|bus| format!("{bus:02x}:00.0")).collect();
        let row: Vec<&str> = row.iter().map(String::as_str).collect();
        assert_eq!(folded(&row), "0000:{09..28}:00.0");
        assert_eq!(folded(&row[..1]), "0000:09:00.0");
        assert_eq!(folded(&[]), "");
        for (addresses, expected) in [
            (&["09:00.0", "09:00.1"][..], "0000:09:00.{0,1}"),
            (&["0001:09:00.0", "0003:09:00.0"], "{0001,0003}:09:00.0"),
            (&["09:01.0", "09:02.0", "09:03.0"], "0000:09:{01..03}.0"),
            (&["09:00.0", "0b:00.0", "0c:00.0"], "0000:{09,0b,0c}:00.0"),
            (&["09:00.0", "0a:01.1"], "0000:09:00.0, 0000:0a:01.1"),
            (&["09:00.0", "09:00.1", "0a:00.0", "0a:00.1"], "0000:{09,0a}:00.0, 0000:{09,0a}:00.1"),
            (&["09:00.0", "0a:01.1", "0c:02.0", "10:11.4"], "0000:09:00.0 and 3 more"),
        ] {
            assert_eq!(folded(addresses), expected);
        }
    }
}
