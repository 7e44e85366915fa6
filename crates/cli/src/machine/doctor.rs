//! `peerdma doctor`: which way between a GPU and an adapter works on a host, which does not, why,
//! and what to change.

use super::{names, probe};
use crate::args::machine::Doctor;
use crate::console::failure::{Failure, Outcome as Done};
use crate::console::style::{self, Paint, outln};
use ::doctor::{Condition, ConditionState, Facts, Finding, Mechanism, Outcome, examine};
use pcie::{Address, Machine};
use serde_json::{Value, json};
use std::path::Path;
use topology::Capture;

/// Exit statuses beyond 0: no GPU has trouble, all found a way.
const SOME_GPU_HAS_NONE: u8 = 2;
const SOME_GPU_UNKNOWN: u8 = 3;
const NOTHING_TO_EXAMINE: u8 = 4;

/// The command.
pub fn doctor(arguments: &Doctor) -> Done {
    let root = arguments.from.as_deref().unwrap_or(Path::new("/"));
    let failed = |error: topology::Error| {
        Failure::new("cannot examine the host")
            .because(error)
            .remedy("--from reads what `peerdma topo --from` does: see `peerdma topo --help`")
    };
    let (mut facts, capture) = match topology::tree(root).map_err(failed)? {
        Some(tree) => (Facts::read(&*tree), topology::of_tree(&*tree).map_err(failed)?),
        // a file of another tool: the PCIe tree and nothing else
        None => (Facts::default(), topology::read(root).map_err(failed)?),
    };
    if arguments.from.is_none() {
        probe::ask_devices(&mut facts, arguments.probe);
    }
    let findings = examine(&facts, &capture.machine);
    let status = status(&capture.machine, &findings);
    if arguments.json {
        style::json_with_list(
            &members(&capture, &facts, status),
            ("findings", findings.iter().map(value)),
        );
        return Ok(status);
    }
    heading(&capture, &facts);
    for mechanism in Mechanism::ALL {
        report(&capture.machine, mechanism, &findings, arguments.all);
    }
    conclusion(&capture.machine, status);
    Ok(status)
}

/// The ways that carry data over hardware; ATS speeds one up, the software HCA needs none.
fn carries(mechanism: Mechanism) -> bool {
    !matches!(mechanism, Mechanism::Ats | Mechanism::SoftwareHca)
}

fn status(machine: &Machine, findings: &[Finding]) -> u8 {
    let best = |gpu: Address| {
        let of_gpu =
            |f: &&Finding| carries(f.mechanism) && f.pair.is_some_and(|pair| pair.0 == gpu);
        findings.iter().filter(of_gpu).map(Finding::outcome).min()
    };
    let best: Vec<Option<Outcome>> =
        topology::accelerators(machine).iter().map(|gpu| best(gpu.address)).collect();
    match () {
        () if best.is_empty() || best.contains(&None) => NOTHING_TO_EXAMINE,
        () if best.contains(&Some(Outcome::DoesNot)) => SOME_GPU_HAS_NONE,
        () if best.contains(&Some(Outcome::Unknown)) => SOME_GPU_UNKNOWN,
        () => 0,
    }
}

fn heading(capture: &Capture, facts: &Facts) {
    let machine = &capture.machine;
    let mut text = vec![
        style::count(topology::accelerators(machine).len(), "GPU"),
        style::count(topology::adapters(machine).len(), "network adapter"),
    ];
    text.insert(
        0,
        facts.release.as_ref().map_or("kernel unknown".into(), |r| format!("kernel {r}")),
    );
    text.push(format!("read from {}", capture.format));
    let name = capture.name.as_deref().unwrap_or("Host");
    outln(format_args!("{}  {}", Paint::Bold.over(name), Paint::Dim.over(text.join(", "))));
    for note in &capture.notes {
        outln(format_args!("{} {note}", Paint::Warning.over("note:")));
    }
    outln(format_args!(""));
}

/// One mechanism: pairs with the same answer together.
fn report(machine: &Machine, mechanism: Mechanism, findings: &[Finding], all: bool) {
    let mut groups: Vec<(Outcome, Vec<&Finding>)> = Vec::new();
    for finding in findings.iter().filter(|finding| finding.mechanism == mechanism) {
        let outcome = finding.outcome();
        let same = |other: &&Finding| reason(other) == reason(finding);
        match groups.iter_mut().find(|(o, group)| *o == outcome && group.first().is_some_and(same))
        {
            Some((_, group)) => group.push(finding),
            None => groups.push((outcome, vec![finding])),
        }
    }
    groups.sort_by_key(|(outcome, _)| *outcome);
    for (outcome, group) in groups {
        let (mark, word, paint) = match outcome {
            Outcome::Works => ("✓", "works", Paint::Good),
            Outcome::Unknown => ("?", "unknown", Paint::Warning),
            Outcome::DoesNot => ("✗", "does not", Paint::Error),
        };
        let line = format!("{mark} {mechanism:<28}{word}");
        outln(format_args!("{}{}", paint.over(line), Paint::Dim.over(who(machine, &group))));
        let conditions: Vec<&Condition> = match group.first() {
            Some(finding) if all => finding.conditions.iter().collect(),
            Some(finding) => finding.decisive().into_iter().collect(),
            None => Vec::new(),
        };
        for condition in conditions {
            explain(condition, all);
        }
    }
}

/// What decides, without what differs between pairs that fail for one reason.
fn reason(finding: &Finding) -> Option<(&str, ConditionState, &str)> {
    finding.decisive().map(|c| (c.what.as_str(), c.state, c.remedy.as_str()))
}

fn who(machine: &Machine, group: &[&Finding]) -> String {
    let name = |address: Address| {
        machine
            .function(address)
            .map_or_else(String::new, |f| names::own(f).unwrap_or_else(|| f.address.to_string()))
    };
    let pairs: Vec<String> = group
        .iter()
        .filter_map(|finding| finding.pair)
        .map(|(gpu, nic)| format!("{} – {}", name(gpu), name(nic)))
        .collect();
    const MOST: usize = 3;
    match pairs.len() {
        0 => String::new(),
        1..=MOST => format!("   {}", pairs.join(", ")),
        more => format!("   {}, … ({more} pairs)", pairs[..MOST - 1].join(", ")),
    }
}

fn explain(condition: &Condition, all: bool) {
    if all {
        let mark = match condition.state {
            ConditionState::Holds => "yes",
            ConditionState::Unknown => "unknown",
            ConditionState::Fails => "no",
        };
        outln(format_args!("    {mark:<8}{}", condition.what));
    } else {
        outln(format_args!("    needs   {}", condition.what));
    }
    outln(format_args!("    {}   {}", Paint::Dim.over("found"), condition.evidence));
    if !condition.remedy.is_empty() {
        outln(format_args!("    {}   {}", Paint::Good.over("to do"), condition.remedy));
    }
}

fn conclusion(machine: &Machine, status: u8) {
    let text = match status {
        0 => "Every GPU has a way to an adapter.".to_owned(),
        SOME_GPU_HAS_NONE => {
            "Some GPU has no way to any adapter; the lines above say what to change.".to_owned()
        }
        SOME_GPU_UNKNOWN => {
            "For some GPU it is not known whether a way works: run the doctor as root, on the host \
             itself."
                .to_owned()
        }
        _ => {
            let (gpus, nics) =
                (topology::accelerators(machine).len(), topology::adapters(machine).len());
            let lacks = match (gpus, nics) {
                (0, 0) => "no GPU and no RDMA adapter",
                (0, _) => "no GPU",
                _ => "no RDMA adapter",
            };
            format!(
                "There is {lacks} here. GPUDirect RDMA on hardware needs both, a kernel of 5.12 or \
                 later, and drivers that export and register dma-bufs. The software HCA needs none \
                 of it: `peerdma demo`."
            )
        }
    };
    outln(format_args!(""));
    outln(format_args!("{text}"));
}

/// What JSON has beside the findings.
fn members(capture: &Capture, facts: &Facts, status: u8) -> serde_json::Map<String, Value> {
    [
        ("format", json!(capture.format.to_string())),
        ("host", json!(capture.name)),
        ("kernel", json!(facts.release)),
        ("status", json!(status)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect()
}

fn value(finding: &Finding) -> Value {
    let outcome = match finding.outcome() {
        Outcome::Works => "works",
        Outcome::Unknown => "unknown",
        Outcome::DoesNot => "does-not",
    };
    let state = |state: ConditionState| match state {
        ConditionState::Holds => json!(true),
        ConditionState::Unknown => Value::Null,
        ConditionState::Fails => json!(false),
    };
    json!({
        "mechanism": finding.mechanism.id(),
        "gpu": finding.pair.map(|pair| pair.0.to_string()),
        "nic": finding.pair.map(|pair| pair.1.to_string()),
        "outcome": outcome,
        "conditions": finding.conditions.iter().map(|condition| json!({
            "what": condition.what,
            "holds": state(condition.state),
            "evidence": condition.evidence,
            "remedy": (!condition.remedy.is_empty()).then_some(&condition.remedy),
        })).collect::<Vec<_>>(),
    })
}
