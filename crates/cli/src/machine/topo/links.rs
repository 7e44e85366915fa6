//! Links of GPUs beside PCIe, in words.

use crate::console::style;
use crate::machine::{fold, names};
use pcie::{GpuLink, GpuLinkEnd, GpuLinkKind, Machine};
use std::collections::{BTreeMap, BTreeSet};

/// A line for each kind and number of links: who has them, and where to. What does not fit into
/// `room` columns goes on below, indented.
pub fn lines(machine: &Machine, room: usize) -> Vec<String> {
    // one GPU's links of a kind to one place are one, whether counted or given by their rate
    type LinkWay = (GpuLinkKind, Option<u32>, Option<u64>);
    let mut to_gpus: BTreeMap<LinkWay, Vec<(Name, Name)>> = BTreeMap::new();
    let mut elsewhere: BTreeMap<(LinkWay, GpuLinkEnd), Vec<String>> = BTreeMap::new();
    let name =
        |at| machine.function(at).map(|gpu| names::own(gpu).unwrap_or_else(|| at.to_string()));
    for ((kind, from, to), (count, rate)) in gathered(machine.gpu_links()) {
        let Some(gpu) = name(from) else { continue };
        match to {
            GpuLinkEnd::Gpu(other) => {
                let Some(other) = name(other) else { continue };
                to_gpus.entry((kind, count, rate)).or_default().push((gpu.into(), other.into()));
            }
            end => elsewhere.entry(((kind, count, rate), end)).or_default().push(gpu),
        }
    }
    let mut lines = Vec::new();
    for ((kind, count, rate), pairs) in to_gpus {
        let title = format!("{}: ", title(kind, count, rate));
        lines.extend(wrapped(title, &between(pairs), room));
    }
    for (((kind, count, rate), end), gpus) in elsewhere {
        let end = match end {
            GpuLinkEnd::Processor => "the processor",
            _ => "the NVSwitches",
        };
        lines.push(format!("{}: {} to {end}", title(kind, count, rate), fold::names_of(&gpus)));
    }
    lines
}

type Gathered = BTreeMap<(GpuLinkKind, pcie::Address, GpuLinkEnd), (Option<u32>, Option<u64>)>;

fn gathered(links: &[GpuLink]) -> Gathered {
    let mut all = Gathered::new();
    let add = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => a.checked_add(b),
        (a, b) => a.or(b),
    };
    for link in links {
        let (count, rate) = all.entry((link.kind, link.from, link.to)).or_default();
        *count = add(count.map(u64::from), link.count.map(u64::from))
            .and_then(|sum| sum.try_into().ok());
        *rate = add(*rate, link.bytes_per_second);
    }
    all
}

fn title(kind: GpuLinkKind, count: Option<u32>, rate: Option<u64>) -> String {
    let count = count.map(|count| format!(" ×{count}")).unwrap_or_default();
    let rate = rate.map(|rate| format!(" {}", style::rate(rate))).unwrap_or_default();
    format!("{kind}{count}{rate}")
}

/// A name, in the order in which people count: `GPU2` before `GPU10`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    stem: String,
    number: Option<u64>,
    whole: String,
}

impl From<String> for Name {
    fn from(whole: String) -> Name {
        let stem = whole.trim_end_matches(|c: char| c.is_ascii_digit());
        Name { stem: stem.to_owned(), number: whole[stem.len()..].parse().ok(), whole }
    }
}

/// Pairs of GPUs: all of some, or each with those that it is linked to.
fn between(pairs: Vec<(Name, Name)>) -> Vec<String> {
    let mut of: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
    for (gpu, other) in pairs {
        of.entry(gpu).or_default().insert(other);
    }
    let texts = |names: &mut dyn Iterator<Item = &Name>| -> Vec<String> {
        names.map(|name| name.whole.clone()).collect()
    };
    let each_other = of.iter().all(|(gpu, others)| {
        others.len() + 1 == of.len()
            && others.iter().all(|other| other != gpu && of.contains_key(other))
    });
    if each_other && of.len() > 1 {
        return vec![format!("each of {} with each", fold::names_of(&texts(&mut of.keys())))];
    }
    // told at one end
    let mut told: Vec<String> = Vec::new();
    for (gpu, others) in &of {
        let later =
            |other: &&Name| gpu < *other || !of.get(other).is_some_and(|back| back.contains(gpu));
        let later = texts(&mut others.iter().filter(later));
        if !later.is_empty() {
            told.push(format!("{} – {}", gpu.whole, fold::names_of(&later)));
        }
    }
    told
}

/// Parts in a row, as many to a line as fit.
fn wrapped(title: String, parts: &[String], room: usize) -> Vec<String> {
    let mut lines = vec![title];
    let mut begun = false;
    for (index, part) in parts.iter().enumerate() {
        let part = if index + 1 < parts.len() { format!("{part};") } else { part.clone() };
        let line = lines.last().map_or(0, |line| line.chars().count());
        if begun && line.saturating_add(part.chars().count()).saturating_add(1) > room {
            lines.push(format!("  {part}"));
            continue;
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(if begun { " " } else { "" });
            line.push_str(&part);
        }
        begun = true;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(pairs: &[(&str, &str)]) -> String {
        let name = |text: &str| Name::from(text.to_owned());
        super::between(pairs.iter().map(|(a, b)| (name(a), name(b))).collect()).join("; ")
    }

    #[test]
    fn whom_links_connect() {
        let all = ["GPU0", "GPU1", "GPU2"];
        let mesh: Vec<(&str, &str)> = all
            .iter()
            .flat_map(|a| all.iter().filter(move |b| a != *b).map(move |b| (*a, *b)))
            .collect();
        assert_eq!(between(&mesh), "each of GPU{0..2} with each");
        let ring = [("GPU0", "GPU1"), ("GPU1", "GPU0"), ("GPU1", "GPU2"), ("GPU2", "GPU1")];
        assert_eq!(between(&ring), "GPU0 – GPU1; GPU1 – GPU2");
        assert_eq!(between(&[("GPU2", "GPU0")]), "GPU2 – GPU0", "told by one end only");
        let counted = [("GPU10", "GPU2"), ("GPU2", "GPU10"), ("GPU2", "GPU3"), ("GPU3", "GPU2")];
        assert_eq!(between(&counted), "GPU2 – GPU{3,10}", "GPU10 comes after GPU2");
    }

    #[test]
    fn a_long_line_goes_on_below() {
        let parts = ["a – b", "c – d", "e – f"].map(str::to_owned);
        let lines = |room| wrapped("XGMI: ".into(), &parts, room);
        assert_eq!(lines(usize::MAX), ["XGMI: a – b; c – d; e – f"]);
        assert_eq!(lines(19), ["XGMI: a – b; c – d;", "  e – f"]);
        assert_eq!(lines(18), ["XGMI: a – b;", "  c – d; e – f"]);
        assert_eq!(lines(0), ["XGMI: a – b;", "  c – d;", "  e – f"]);
    }
}
