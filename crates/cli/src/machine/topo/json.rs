//! The machine as JSON. What is unknown is `null`.

use crate::machine::names;
use crate::machine::pairs::{Pair, all_pairs, nearest};
use pcie::{Acs, AcsBits, Below, Function, GpuLink, GpuLinkEnd, Link, LinkId, Machine, Shown};
use serde_json::{Value, json};
use topology::Capture;

/// Everything that is known, with all pairs or the chosen ones.
pub fn value(capture: &Capture, chosen: &[Pair<'_>]) -> Value {
    let machine = &capture.machine;
    let all;
    let pairs = if chosen.is_empty() {
        all = all_pairs(machine);
        &all
    } else {
        chosen
    };
    let flows: Vec<pcie::Flow> =
        pairs.iter().map(|pair| pcie::Flow { links: pair.way.links.clone() }).collect();
    let shares =
        if chosen.is_empty() { vec![None; pairs.len()] } else { pcie::share(machine, &flows) };
    json!({
        "name": capture.name,
        "format": capture.format.to_string(),
        "notes": capture.notes,
        "cpu": machine.cpu().map(|cpu| json!({ "vendor": cpu.vendor, "family": cpu.family })),
        "host_bridges": machine.hosts().iter().map(|host| json!({
            "name": host.name,
            "certain": host.shown == Shown::Bridges,
            "numa_node": host.numa_node,
            "root_device": host.root_device.map(id),
        })).collect::<Vec<_>>(),
        "functions": machine.functions().map(|f| function(machine, f)).collect::<Vec<_>>(),
        "pairs": pairs
            .iter()
            .zip(shares)
            .map(|(p, share)| pair(machine, p, share))
            .collect::<Vec<_>>(),
        "nearest": nearest(machine).iter().map(|nearest| json!({
            "gpu": nearest.pair.gpu.address.to_string(),
            "nic": nearest.pair.nic.address.to_string(),
            "equals": nearest.equals.iter().map(|nic| nic.address.to_string()).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "gpu_links": machine.gpu_links().iter().map(gpu_link).collect::<Vec<_>>(),
        "sockets": machine.sockets().of_node.iter().map(|(node, socket)| json!({
            "numa_node": node,
            "socket": socket,
        })).collect::<Vec<_>>(),
    })
}

fn gpu_link(link: &GpuLink) -> Value {
    json!({
        "kind": link.kind.to_string(),
        "from": link.from.to_string(),
        "to": match link.to {
            GpuLinkEnd::Gpu(at) => at.to_string(),
            GpuLinkEnd::Switch => "switch".into(),
            GpuLinkEnd::Processor => "processor".into(),
        },
        "count": link.count,
        "bytes_per_second": link.bytes_per_second,
    })
}

fn id((vendor, device): (u16, u16)) -> String {
    format!("{vendor:04x}:{device:04x}")
}

fn link(link: Link) -> Value {
    let bytes_per_second = link.bytes_per_second();
    match link {
        Link::Lanes { speed_gts, width } => {
            json!({ "speed_gts": speed_gts, "width": width, "bytes_per_second": bytes_per_second })
        }
        Link::Rate { .. } => {
            json!({ "speed_gts": null, "width": null, "bytes_per_second": bytes_per_second })
        }
    }
}

fn function(machine: &Machine, function: &Function) -> Value {
    let acs = match function.acs {
        Acs::Unknown => Value::Null,
        Acs::Absent => json!("absent"),
        Acs::Enabled(bits) => json!(names_of(bits)),
    };
    json!({
        "address": function.address.to_string(),
        "role": names::role(function),
        "kind": format!("{:?}", function.kind),
        "name": names::own(function),
        "product": names::product(function),
        "id": function.id.map(id),
        "class": function.class.map(|class| format!("{class:06x}")),
        "below": match function.below {
            Below::Host(host) => machine.hosts()[host].name.clone(),
            Below::Port(port) => port.to_string(),
        },
        "numa_node": machine.numa_node_of(function),
        "iommu_group": function.iommu_group,
        "driver": function.driver,
        "interfaces": function.interfaces,
        "link": function.link.map(link),
        "best_link": function.best_link.map(link),
        "acs": acs,
        "acs_capable": function.acs_capable.map(names_of),
        "ats": function.ats,
        "vuid": function.vuid,
        "virtual_of": function.virtual_of.map(|at| at.to_string()),
        "memory_bytes": function.memory_bytes,
        "bar_bytes": function.bar_bytes,
    })
}

fn names_of(bits: AcsBits) -> Vec<&'static str> {
    bits.iter_names().map(|(name, _)| name).collect()
}

fn pair(machine: &Machine, pair: &Pair<'_>, share: Option<u64>) -> Value {
    let verdict = &pair.way.verdict;
    let addresses = |all: &[pcie::Address]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    let hop =
        |&hop: &LinkId| json!({ "hop": hop.to_string(), "link": machine.link(hop).map(link) });
    json!({
        "gpu": pair.gpu.address.to_string(),
        "nic": pair.nic.address.to_string(),
        "label": match pair.labels { [only] => json!(only.to_string()), _ => Value::Null },
        "possible_labels": pair.labels.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "p2pdma": verdict.map_type.to_string(),
        "distance": verdict.distance,
        "reason": (!verdict.reason.is_empty()).then_some(&verdict.reason),
        "acs_redirects_at": addresses(&verdict.redirects),
        "config_acs": pair.config_acs(machine).map(|acs| acs.to_string()),
        "config_acs_works": pcie::config_acs_works(machine),
        "boot_parameter": pair.remedy(machine),
        "acs_unread_at": addresses(&verdict.unread),
        "path": pair.way.links.iter().map(hop).collect::<Vec<_>>(),
        "bytes_per_second": pair.way.bytes_per_second,
        "bytes_per_second_at_once": share,
    })
}
