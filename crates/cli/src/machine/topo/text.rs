//! The machine in words.

use super::columns::{Column, columns};
use super::links;
use super::view::{Node, What, nodes};
use crate::console::style::{self, Paint, outln};
use crate::machine::pairs::{self, Nearest, Pair, all_pairs, nearest};
use crate::machine::{fold, names};
use pcie::{Address, Function, Link, LinkId, Machine, MapType};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use topology::Capture;

/// Columns of a table where no terminal says how many it has.
const WIDE: usize = 120;

/// The tree, the matrix, and the best adapter of each GPU.
pub fn machine(capture: &Capture, all: bool) {
    heading(capture);
    let machine = &capture.machine;
    if machine.functions().next().is_none() {
        outln(format_args!("No PCI device is visible there."));
        return;
    }
    let hosts = nodes(machine, all);
    if hosts.is_empty() {
        outln(format_args!(
            "No GPU, network adapter or NVMe drive; --all lists the other devices."
        ));
        return;
    }
    for host in &hosts {
        tree(capture, host);
    }
    matrix(capture);
    for line in links::lines(&capture.machine, room()) {
        outln(format_args!("{line}"));
    }
    best(capture);
}

/// Columns that a line may have.
fn room() -> usize {
    style::width().unwrap_or(WIDE)
}

fn heading(capture: &Capture) {
    let machine = &capture.machine;
    let name = capture.name.as_deref().unwrap_or("Machine");
    let mut facts = vec![format!("read from {}", capture.format)];
    if let Some(cpu) = machine.cpu() {
        facts.insert(0, format!("{} family {}", cpu.vendor, cpu.family));
    }
    outln(format_args!("{}  {}", Paint::Bold.over(name), Paint::Dim.over(facts.join(", "))));
    for note in &capture.notes {
        outln(format_args!("{} {note}", Paint::Warning.over("note:")));
    }
}

fn tree(capture: &Capture, host: &Node<'_>) {
    let What::Host(index) = host.what else { return };
    let bridge = &capture.machine.hosts()[index];
    let sockets = capture.machine.sockets();
    let several = sockets.of_node.values().collect::<BTreeSet<_>>().len() > 1;
    let node =
        match (bridge.numa_node, bridge.numa_node.and_then(|node| sockets.of_node.get(&node))) {
            (Some(node), Some(socket)) if several => format!("NUMA node {node}, socket {socket}"),
            (Some(node), _) => format!("NUMA node {node}"),
            (None, _) => "NUMA node unknown".into(),
        };
    outln(format_args!(""));
    outln(format_args!("{}  {}", Paint::Bold.over(&bridge.name), Paint::Dim.over(node)));
    branches(capture, &host.children, "");
}

fn branches(capture: &Capture, children: &[Node<'_>], indent: &str) {
    for (index, child) in children.iter().enumerate() {
        let last = index + 1 == children.len();
        let (corner, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        outln(format_args!("{indent}{corner}{}", line(capture, child)));
        branches(capture, &child.children, &format!("{indent}{below}"));
    }
}

fn line(capture: &Capture, node: &Node<'_>) -> String {
    let mut text = String::new();
    if let Some(port) = node.port {
        text = Paint::Dim.over(format_args!("{} ", port.address));
    }
    if let Some(link) = node.link(&capture.machine) {
        let dash = if node.port.is_some() { "─ " } else { "" };
        text += &Paint::Dim.over(format_args!("{dash}{link} ─ "));
        if let Some(best) = node.better_link(&capture.machine) {
            text += &Paint::Warning.over(format_args!("(could run at {best}) "));
        }
    } else if node.port.is_some() {
        text += &Paint::Dim.over("─ ");
    }
    match node.what {
        What::Host(_) => text,
        What::Switch(function) => {
            text + &format!("{} {}", function.address, describe(function, "switch"))
        }
        What::Device(function) => {
            let virtuals = virtual_functions(&capture.machine, function);
            let role = names::role(function);
            let title = match names::own(function) {
                Some(own) if own.starts_with(role) => Paint::Good.over(own),
                Some(own) => format!("{} {own}", Paint::Good.over(role)),
                None => Paint::Good.over(role),
            };
            let product = describe(function, "");
            let gap = if product.is_empty() { "" } else { " " };
            text + &format!("{} {title}{gap}{product}{virtuals}", function.address)
        }
    }
}

/// How many virtual functions an adapter has.
fn virtual_functions(machine: &Machine, function: &Function) -> String {
    match machine.functions().filter(|f| f.virtual_of == Some(function.address)).count() {
        0 => String::new(),
        1 => Paint::Dim.over(", 1 virtual function"),
        many => Paint::Dim.over(format_args!(", {many} virtual functions")),
    }
}

fn describe(function: &Function, otherwise: &str) -> String {
    let product = names::product(function);
    let text = match (product, otherwise) {
        (Some(product), "") => product,
        (Some(product), word) => format!("{word} {product}"),
        (None, word) => word.to_owned(),
    };
    if text.is_empty() { text } else { Paint::Dim.over(text) }
}

fn matrix(capture: &Capture) {
    let pairs = all_pairs(&capture.machine);
    if pairs.is_empty() {
        return;
    }
    let columns = columns(&capture.machine, &pairs);
    let gpus = topology::accelerators(&capture.machine);
    let heads: Vec<[String; 2]> = columns.iter().map(head).collect();
    let cells: Vec<Vec<String>> = columns
        .iter()
        .map(|column| column.labels.iter().map(|labels| pairs::labels(labels)).collect())
        .collect();
    for range in ranges(&heads, &cells, &gpus) {
        let mut first = vec!["GPU".to_owned(), String::new()];
        let mut second = vec![String::new(), String::new()];
        for [name, below] in &heads[range.clone()] {
            first.push(name.clone());
            second.push(below.clone());
        }
        let mut rows = vec![first];
        if second.iter().any(|cell| !cell.is_empty()) {
            rows.push(second);
        }
        let headings = rows.len();
        for (index, gpu) in gpus.iter().enumerate() {
            let mut row = gpu_cells(gpu);
            row.extend(cells[range.clone()].iter().map(|column| column[index].clone()));
            rows.push(row);
        }
        outln(format_args!(""));
        style::show(style::table(&rows, &[]), headings);
    }
    legend(&pairs);
}

fn gpu_cells(gpu: &Function) -> Vec<String> {
    vec![gpu.address.to_string(), names::own(gpu).unwrap_or_default()]
}

/// The two lines above a column: a name and its address, or several names and how many they are.
fn head(column: &Column<'_>) -> [String; 2] {
    match column.adapters.as_slice() {
        [only] => match names::own(only) {
            Some(name) => [name, only.address.to_string()],
            None => [only.address.to_string(), String::new()],
        },
        several => [fold::functions(several), format!("{} alike", several.len())],
    }
}

/// Columns that fit beside each other, table by table.
fn ranges(heads: &[[String; 2]], cells: &[Vec<String>], gpus: &[&Function]) -> Vec<Range<usize>> {
    let length = |text: &String| text.chars().count();
    let widest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0) + 2;
    let names: usize =
        (0..2).map(|cell| widest(&mut gpus.iter().map(|gpu| length(&gpu_cells(gpu)[cell])))).sum();
    let room = room();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut used = 0;
    for (index, head) in heads.iter().enumerate() {
        let own = widest(&mut head.iter().chain(&cells[index]).map(length));
        match ranges.last_mut() {
            Some(range) if names + used + own <= room + 2 => {
                range.end = index + 1;
                used += own;
            }
            _ => {
                ranges.push(index..index + 1);
                used = own;
            }
        }
    }
    ranges
}

/// Explains the labels that occur.
fn legend(pairs: &[Pair<'_>]) {
    let words = [
        (pcie::Label::Pix, "one PCIe switch"),
        (pcie::Label::Pxb, "several PCIe switches"),
        (pcie::Label::Phb, "the host bridge"),
        (pcie::Label::Node, "host bridges of one NUMA node"),
        (pcie::Label::Sys, "NUMA nodes"),
    ];
    let used = words
        .iter()
        .filter(|(label, _)| pairs.iter().any(|pair| pair.labels.contains(label)))
        .map(|(label, words)| format!("{label} {words}"));
    let mut text = format!("Between them: {}", used.collect::<Vec<_>>().join(", "));
    if pairs.iter().any(|pair| pair.labels.len() > 1) {
        text += "; a|b: the source does not tell which";
    }
    outln(format_args!("{}", Paint::Dim.over(text)));
}

fn best(capture: &Capture) {
    let found = nearest(&capture.machine);
    if found.is_empty() {
        return;
    }
    let mut rows = vec![
        ["GPU", "NEAREST NIC", "LABEL", "P2PDMA", "NARROWEST LINK"].map(str::to_owned).to_vec(),
    ];
    for Nearest { pair, equals } in &found {
        rows.push(vec![
            names::label(pair.gpu),
            match equals.as_slice() {
                [_] => names::label(pair.nic),
                several => fold::functions(several),
            },
            pair.label(),
            pair.way.verdict.map_type.to_string(),
            pair.way.bytes_per_second.map_or_else(|| "unknown".into(), style::rate),
        ]);
    }
    outln(format_args!(""));
    style::show(style::table(&rows, &[]), 1);
    reasons(found.iter().map(|nearest| &nearest.pair));
}

/// Each reason once, with how many pairs have it.
fn reasons<'a>(pairs: impl Iterator<Item = &'a Pair<'a>> + Clone) {
    let unread: BTreeSet<Address> =
        pairs.clone().flat_map(|pair| pair.way.verdict.unread.iter().copied()).collect();
    if !unread.is_empty() {
        outln(format_args!(
            "{} the ACS bits of {} functions on these paths are not known (on the machine itself, \
             root can read them)",
            Paint::Warning.over("UNKNOWN:"),
            unread.len()
        ));
    }
    let mut count: BTreeMap<(MapType, &str), usize> = BTreeMap::new();
    for pair in pairs {
        let verdict = &pair.way.verdict;
        if !verdict.reason.is_empty() && verdict.unread.is_empty() {
            *count.entry((verdict.map_type, &verdict.reason)).or_default() += 1;
        }
    }
    const MOST: usize = 3;
    for ((map_type, reason), pairs) in count.iter().take(MOST) {
        let pairs = if *pairs == 1 { "1 pair".to_owned() } else { format!("{pairs} pairs") };
        outln(format_args!(
            "{} {reason} ({pairs})",
            Paint::Warning.over(format_args!("{map_type}:"))
        ));
    }
    if count.len() > MOST {
        outln(format_args!("… and {} more reasons; --json has all", count.len() - MOST));
    }
}

/// The ways of chosen pairs, hop by hop, and what each gets when all run at once.
pub fn pairs(capture: &Capture, pairs: &[Pair<'_>]) {
    heading(capture);
    let machine = &capture.machine;
    let flows: Vec<pcie::Flow> =
        pairs.iter().map(|pair| pcie::Flow { links: pair.way.links.clone() }).collect();
    let shares = pcie::share(machine, &flows);
    for (pair, share) in pairs.iter().zip(shares) {
        let verdict = &pair.way.verdict;
        outln(format_args!(""));
        outln(format_args!(
            "{} reaches {}",
            Paint::Bold.over(names::label(pair.nic)),
            Paint::Bold.over(names::label(pair.gpu))
        ));
        let fact = |name: &str, value: String| outln(format_args!("  {name:<10}{value}"));
        fact("label", pair.label());
        fact("P2PDMA", format!("{}, distance {}", verdict.map_type, verdict.distance));
        if !verdict.reason.is_empty() {
            fact("because", verdict.reason.clone());
        }
        if let Some(parameter) = pair.remedy(machine) {
            fact("shorter", format!("boot with {parameter}"));
            // the release does not tell whether this one is read rightly
            if let (Some(acs), None) = (pair.config_acs(machine), pcie::config_acs_works(machine)) {
                fact("", format!("or, from Linux 6.15 on, with {}", acs.parameter()));
            }
        }
        if let (Some(gpu), Some(nic)) = (pair.gpu.iommu_group, pair.nic.iommu_group) {
            let both = || format!("both in group {gpu}");
            let each = || format!("groups {gpu} and {nic}");
            fact("IOMMU", if gpu == nic { both() } else { each() });
        }
        for (index, &hop) in pair.way.links.iter().enumerate() {
            fact(if index == 0 { "path" } else { "" }, hop_text(machine, hop));
        }
        fact("narrowest", pair.way.bytes_per_second.map_or_else(|| "unknown".into(), style::rate));
        if pairs.len() > 1 {
            fact("at once", share.map_or_else(|| "unknown".into(), style::rate));
        }
    }
}

fn hop_text(machine: &Machine, hop: LinkId) -> String {
    let name = match hop {
        LinkId::RootComplex(host) => format!("root complex of {}", machine.hosts()[host].name),
        hop => hop.to_string(),
    };
    match (hop, machine.link(hop)) {
        (_, Some(link @ Link::Lanes { .. })) => {
            format!("{name:<26}  {link}, {}", style::rate(link.bytes_per_second()))
        }
        (_, Some(link)) => format!("{name:<26}  {link}"),
        (LinkId::Below(_) | LinkId::Above(_), None) => format!("{name:<26}  rate unknown"),
        (_, None) => name,
    }
}
