//! Links of GPUs beside PCIe, in words.

use super::{fold, names};
use pcie::{GpuLink, GpuLinkEnd, GpuLinkKind, Machine};
use std::collections::BTreeMap;

/// A line for each kind and number of links: who has them, and where to.
pub fn lines(machine: &Machine) -> Vec<String> {
    // one GPU's links of a kind to one place are one, whether counted or given by their rate
    type Way = (GpuLinkKind, Option<u32>, Option<u64>);
    let mut to_gpus: BTreeMap<Way, Vec<(String, String)>> = BTreeMap::new();
    let mut elsewhere: BTreeMap<(Way, GpuLinkEnd), Vec<String>> = BTreeMap::new();
    let name =
        |at| machine.function(at).map(|gpu| names::own(gpu).unwrap_or_else(|| at.to_string()));
    for ((kind, from, to), (count, rate)) in gathered(machine.gpu_links()) {
        let Some(gpu) = name(from) else { continue };
        match to {
            GpuLinkEnd::Gpu(other) => {
                let Some(other) = name(other) else { continue };
                to_gpus.entry((kind, count, rate)).or_default().push((gpu, other));
            }
            end => elsewhere.entry(((kind, count, rate), end)).or_default().push(gpu),
        }
    }
    let mut lines = Vec::new();
    for ((kind, count, rate), pairs) in to_gpus {
        lines.push(format!("{}: {}", title(kind, count, rate), between(&pairs)));
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
    let rate = rate.map(|rate| format!(" {}", super::text::rate(rate))).unwrap_or_default();
    format!("{kind}{count}{rate}")
}

/// Pairs of GPUs: all of some, or each with those that it is linked to.
fn between(pairs: &[(String, String)]) -> String {
    let mut of: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (gpu, other) in pairs {
        of.entry(gpu).or_default().push(other.clone());
    }
    let all: Vec<String> = of.keys().map(|&gpu| gpu.to_owned()).collect();
    let each_other = of.iter().all(|(gpu, others)| {
        others.len() + 1 == all.len()
            && others.iter().all(|other| other != gpu && of.contains_key(other.as_str()))
    });
    if each_other && all.len() > 1 {
        return format!("each of {} with each", fold::names_of(&all));
    }
    // told at one end
    let mut told: Vec<String> = Vec::new();
    for (gpu, others) in &of {
        let later: Vec<String> = others
            .iter()
            .filter(|other| {
                gpu < &other.as_str()
                    || !of.get(other.as_str()).is_some_and(|back| back.iter().any(|b| b == gpu))
            })
            .cloned()
            .collect();
        if !later.is_empty() {
            told.push(format!("{gpu} – {}", fold::names_of(&later)));
        }
    }
    told.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_links_connect() {
        let pairs = |text: &[(&str, &str)]| -> Vec<(String, String)> {
            text.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        let all = ["GPU0", "GPU1", "GPU2"];
        let mesh: Vec<(&str, &str)> = all
            .iter()
            .flat_map(|a| all.iter().filter(move |b| a != *b).map(move |b| (*a, *b)))
            .collect();
        assert_eq!(between(&pairs(&mesh)), "each of GPU{0..2} with each");
        let ring = [("GPU0", "GPU1"), ("GPU1", "GPU0"), ("GPU1", "GPU2"), ("GPU2", "GPU1")];
        assert_eq!(between(&pairs(&ring)), "GPU0 – GPU1; GPU1 – GPU2");
        assert_eq!(between(&pairs(&[("GPU2", "GPU0")])), "GPU2 – GPU0", "told by one end only");
    }
}
