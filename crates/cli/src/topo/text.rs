//! The machine in words.

use super::view::{Node, What, nodes};
use super::{Pair, all_pairs, names, nearest};
use crate::style::{self, Paint, outln};
use pcie::{Address, Function, Link, LinkId, Machine, MapType};
use std::collections::{BTreeMap, BTreeSet};
use topology::Capture;

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
    best(capture);
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
    let node = match bridge.numa_node {
        Some(node) => format!("NUMA node {node}"),
        None => "NUMA node unknown".into(),
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
            let role = Paint::Good.over(names::role(function));
            let own = names::own(function).map(|name| format!(" {name}")).unwrap_or_default();
            let product = describe(function, "");
            let gap = if product.is_empty() { "" } else { " " };
            text + &format!("{} {role}{own}{gap}{product}", function.address)
        }
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
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut heading = vec!["GPU".to_owned(), String::new()];
    let mut second = vec![String::new(), String::new()];
    for nic in topology::adapters(&capture.machine) {
        heading.push(names::own(nic).map_or_else(|| nic.address.to_string(), str::to_owned));
        second.push(names::own(nic).map_or_else(String::new, |_| nic.address.to_string()));
    }
    rows.push(heading);
    if second.iter().any(|cell| !cell.is_empty()) {
        rows.push(second);
    }
    let headings = rows.len();
    for pair in &pairs {
        let address = pair.gpu.address.to_string();
        if rows.len() == headings || rows.last().is_some_and(|row| row[0] != address) {
            let name = names::own(pair.gpu).unwrap_or_default().to_owned();
            rows.push(vec![address, name]);
        }
        if let Some(row) = rows.last_mut() {
            row.push(pair.label());
        }
    }
    outln(format_args!(""));
    style::show(style::table(&rows, &[]), headings);
    legend(&pairs);
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
    let pairs = nearest(&capture.machine);
    if pairs.is_empty() {
        return;
    }
    let mut rows = vec![
        ["GPU", "NEAREST NIC", "LABEL", "P2PDMA", "NARROWEST LINK"].map(str::to_owned).to_vec(),
    ];
    for pair in &pairs {
        rows.push(vec![
            names::label(pair.gpu),
            names::label(pair.nic),
            pair.label(),
            pair.way.verdict.map_type.to_string(),
            pair.way.bytes_per_second.map_or_else(|| "unknown".into(), rate),
        ]);
    }
    outln(format_args!(""));
    style::show(style::table(&rows, &[]), 1);
    reasons(&pairs);
}

/// Each reason once, with how many pairs have it.
fn reasons(pairs: &[Pair<'_>]) {
    let unread: BTreeSet<Address> =
        pairs.iter().flat_map(|pair| pair.way.verdict.unread.iter().copied()).collect();
    if !unread.is_empty() {
        outln(format_args!(
            "{} the ACS bits of {} functions on these paths are not known (on the machine itself, root can read them)",
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
        if let Some(acs) = pair.remedy(machine) {
            fact("shorter", format!("boot with {}", acs.parameter()));
        }
        if let (Some(gpu), Some(nic)) = (pair.gpu.iommu_group, pair.nic.iommu_group) {
            let both = || format!("both in group {gpu}");
            let each = || format!("groups {gpu} and {nic}");
            fact("IOMMU", if gpu == nic { both() } else { each() });
        }
        for (index, &hop) in pair.way.links.iter().enumerate() {
            fact(if index == 0 { "path" } else { "" }, hop_text(machine, hop));
        }
        fact("narrowest", pair.way.bytes_per_second.map_or_else(|| "unknown".into(), rate));
        if pairs.len() > 1 {
            fact("at once", share.map_or_else(|| "unknown".into(), rate));
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
            format!("{name:<28}{link}, {}", rate(link.bytes_per_second()))
        }
        (_, Some(link)) => format!("{name:<28}{link}"),
        (LinkId::Below(_) | LinkId::Above(_), None) => format!("{name:<28}rate unknown"),
        (_, None) => name,
    }
}

/// Bytes per second as people write a link's rate.
pub fn rate(bytes_per_second: u64) -> String {
    format!("{:.1} GB/s", bytes_per_second as f64 / 1e9)
}
