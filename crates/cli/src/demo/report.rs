//! What the demo prints once it has proven something.

use super::counters::{Counters, RouteBytes};
use super::protocol::{Buffer, Ready};
use super::rate;
use crate::args::demo::{Memory, MemoryKind};
use crate::console::style::{self, Paint};
use crate::machine::pairs::Pair;
use hca::Counter;
use pcie::{Platform, Target};
use serde_json::json;
use std::path::PathBuf;

/// A transfer that was measured.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Bytes.
    pub bytes: u64,
    /// Seconds from the first request to the last completion.
    pub seconds: f64,
}

/// A proof and its circumstances.
pub struct Report {
    /// The file that was sent.
    pub file: PathBuf,
    /// How many bytes of it crossed.
    pub size: u64,
    /// The memory that it came from and went to.
    pub memory: Memory,
    /// BLAKE3 of what was sent, in hexadecimal.
    pub hash: String,
    /// Folder of the library that both sides loaded.
    pub library: PathBuf,
    /// Near and far.
    pub sides: [SideReport; 2],
    /// There.
    pub write: Transfer,
    /// And back.
    pub read: Transfer,
}

/// One side's facts: what it said, and what its library counted.
pub struct SideReport {
    ready: Ready,
    counters: Counters,
    hca_address: String,
    gpu_address: String,
    /// How near the two are.
    label: String,
    memory: Memory,
    /// The function that reads and writes it.
    by: String,
    /// What the HCA reaches.
    target: String,
    links: Vec<Link>,
}

/// A link, and the bytes that crossed it.
struct Link {
    name: String,
    bytes: u64,
}

impl SideReport {
    /// Gathers the facts of a side. The links of the platform's route come first, in its order,
    /// then whatever others bytes crossed; the bytes are the library's.
    pub fn new(
        platform: &Platform,
        memory: Memory,
        ready: Ready,
        counters: Counters,
    ) -> SideReport {
        let ends = platform.named(&ready.hca).zip(platform.named(&ready.gpu));
        let target = |gpu: &pcie::Function| match memory.is_gpus() {
            true => Target::Function(gpu.address),
            false => Target::HOST,
        };
        // Who reads and writes the memory.
        let by = |hca| match memory.kind {
            MemoryKind::DmabufDataDirect => platform.data_direct_of(hca),
            _ => Some(hca),
        };
        let ways = ends.and_then(|(hca, gpu)| Some((by(hca)?, gpu)));
        let route = ways.and_then(|(by, gpu)| platform.route(by, target(gpu)).ok());
        let mut names: Vec<String> = Vec::new();
        let on_route = route.iter().flat_map(|route| route.links()).map(ToString::to_string);
        for name in on_route.chain(counters.links().map(str::to_owned)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let link = |name: String| Link { bytes: counters.link(&name), name };
        SideReport {
            label: ends.map_or_else(String::new, |(hca, gpu)| {
                Pair::new(platform.machine(), gpu, hca).label()
            }),
            links: names.into_iter().map(link).collect(),
            hca_address: ends.map_or_else(String::new, |(hca, _)| hca.address.to_string()),
            gpu_address: ends.map_or_else(String::new, |(_, gpu)| gpu.address.to_string()),
            target: ends.map_or_else(String::new, |(_, gpu)| target(gpu).to_string()),
            by: ways.map_or_else(String::new, |(by, _)| by.address.to_string()),
            memory,
            ready,
            counters,
        }
    }

    /// The route between HCA and memory as the library took it.
    fn route(&self) -> Option<&RouteBytes> {
        self.counters.route_to(&self.target)
    }

    fn sent(&self) -> String {
        let again = match self.counters.value(Counter::Retransmits) {
            0 => String::new(),
            count => format!(", {count} resent"),
        };
        self.traffic(Counter::SentBytes, Counter::SentPackets) + &again
    }

    fn received(&self) -> String {
        self.traffic(Counter::RcvdBytes, Counter::RcvdPackets)
    }

    fn traffic(&self, bytes: Counter, packets: Counter) -> String {
        let bytes = style::bytes(self.counters.value(bytes));
        match self.counters.value(packets) {
            0 => format!("{bytes}, no packets"),
            packets => format!("{bytes}, {packets} packets"),
        }
    }

    /// Label and text, line by line; `near` and `far` give the same labels in the same order, but
    /// for the counted ones.
    fn lines(&self) -> Vec<(&'static str, Vec<String>)> {
        let Ready { pid, device, gpu, endpoint, buffers, .. } = &self.ready;
        let route = self.route().map_or_else(Vec::new, |route| {
            let (read, written) = (style::bytes(route.read), style::bytes(route.written));
            vec![route.map_type.clone(), format!("{read} read, {written} written")]
        });
        let link = |link: &Link| {
            let name = link.name.trim_start_matches("link ").trim_start_matches("interconnect ");
            format!("{name}: {}", style::bytes(link.bytes))
        };
        let mut memory = vec![format!("{} in {}", self.memory, self.target)];
        memory.extend(buffers.iter().map(buffer));
        if self.memory.kind == MemoryKind::DmabufDataDirect {
            memory.push(format!("read and written by {}", self.by));
        }
        if self.memory.kind == MemoryKind::DevicePrivate {
            let mapped = self.counters.value(Counter::PagePeerMapped);
            let fallback = self.counters.value(Counter::PagePeerFallback);
            memory.push(format!("{mapped} pages reached there, {fallback} brought home"));
        }
        if matches!(self.memory.kind, MemoryKind::Odp | MemoryKind::DevicePrivate) {
            let faults = self.counters.value(Counter::PageFaultsHandled);
            memory.push(format!("{faults} page faults served"));
        }
        vec![
            ("process", vec![format!("pid {pid}")]),
            (
                "HCA",
                vec![
                    format!("{device} at {}", self.hca_address),
                    nearness(&self.ready.choice, gpu, &self.label),
                ],
            ),
            ("GPU", vec![format!("{gpu} at {}", self.gpu_address)]),
            ("memory", memory),
            ("RoCEv2", vec![endpoint.gid.to_string()]),
            ("queue pair", vec![format!("{:#08x}, MTU {}", endpoint.qpn, endpoint.mtu.bytes())]),
            ("sent", vec![self.sent()]),
            ("received", vec![self.received()]),
            ("PCIe route", route),
            ("PCIe links", self.links.iter().map(link).collect()),
        ]
    }

    fn json(&self, name: &str) -> serde_json::Value {
        let SideReport { ready, counters, .. } = self;
        let links: Vec<_> = self
            .links
            .iter()
            .map(|link| json!({ "name": link.name, "bytes": link.bytes }))
            .collect();
        json!({
            "side": name,
            "pid": ready.pid,
            "hca": {
                "name": ready.device,
                "address": self.hca_address,
                "choice": ready.choice,
                "label": self.label,
            },
            "gpu": { "name": ready.gpu, "address": self.gpu_address },
            "endpoint": ready.endpoint,
            "memory": self.memory.kind.to_string(),
            "provider": self.memory.provider.to_string(),
            "page_faults": counters.value(Counter::PageFaultsHandled),
            "pages_in_gpu": counters.value(Counter::PagePeerMapped),
            "pages_brought_home": counters.value(Counter::PagePeerFallback),
            "buffers": ready.buffers,
            "route": self.route().map(|route| json!({
                "function": route.function,
                "map_type": route.map_type,
                "read_bytes": route.read,
                "written_bytes": route.written,
            })),
            "links": links,
            "traffic": {
                "sent_packets": counters.value(Counter::SentPackets),
                "sent_bytes": counters.value(Counter::SentBytes),
                "received_packets": counters.value(Counter::RcvdPackets),
                "received_bytes": counters.value(Counter::RcvdBytes),
                "retransmits": counters.value(Counter::Retransmits),
            },
        })
    }
}

fn nearness(choice: &str, gpu: &str, label: &str) -> String {
    let preposition = if choice == "nearest" { "to" } else { "from" };
    format!("the {choice} {preposition} {gpu}: {label}")
}

fn buffer(buffer: &Buffer) -> String {
    let Buffer { name, fd, lkey, rkey, .. } = buffer;
    let fd = fd.map_or_else(String::new, |fd| format!("fd {fd}, "));
    if lkey == rkey {
        format!("{name}: {fd}lkey = rkey {lkey:#x}")
    } else {
        format!("{name}: {fd}lkey {lkey:#x}, rkey {rkey:#x}")
    }
}

impl Report {
    /// Prints it, the sentence first, or as JSON.
    pub fn print(&self, as_json: bool) {
        if as_json {
            return style::json(&self.json());
        }
        for line in self.text(style::width()) {
            style::outln(format_args!("{line}"));
        }
    }

    fn text(&self, width: Option<usize>) -> Vec<String> {
        let [near, far] = &self.sides;
        let whose = match self.memory.provider.machines() {
            Some(kind) => kind.to_string(),
            None if self.memory.is_gpus() => "GPU".to_owned(),
            None => "host".to_owned(),
        };
        let mut text = vec![
            format!(
                "{} {} of {whose} memory went to another process's{} and back by RDMA.",
                Paint::Good.over("Proven:"),
                style::bytes(self.size),
                if self.memory.is_gpus() { " GPU" } else { "" },
            ),
            format!(
                "The far side's BLAKE3 {}… is the file's; what came back is the same.",
                &self.hash[..self.hash.len().min(12)],
            ),
            String::new(),
        ];
        let both = table(&[("near", near), ("far", far)]);
        let widest = both.iter().map(|line| line.chars().count()).max();
        if width.is_none_or(|width| widest.is_some_and(|widest| widest <= width)) {
            heading_and_rows(&mut text, both);
        } else {
            for side in [("near", near), ("far", far)] {
                heading_and_rows(&mut text, table(&[side]));
                text.push(String::new());
            }
        }
        let transfer = |(name, transfer): (&str, Transfer)| {
            vec![
                name.to_owned(),
                format!("{} in {:.3} s", style::bytes(transfer.bytes), transfer.seconds),
                rate(transfer.bytes, transfer.seconds),
            ]
        };
        let transfers = [("RDMA WRITE", self.write), ("RDMA READ", self.read)].map(transfer);
        text.extend(style::table(&transfers, &[1, 2]));
        text
    }

    fn json(&self) -> serde_json::Value {
        let transfer = |transfer: Transfer| {
            json!({
                "bytes": transfer.bytes,
                "seconds": transfer.seconds,
                "bytes_per_second": (transfer.bytes as f64 / transfer.seconds.max(1e-9)) as u64,
            })
        };
        let [near, far] = &self.sides;
        json!({
            "proven": true,
            "file": self.file.display().to_string(),
            "bytes": self.size,
            "memory": self.memory.kind.to_string(),
            "provider": self.memory.provider.to_string(),
            "blake3": self.hash,
            "library": self.library.display().to_string(),
            "sides": [near.json("near"), far.json("far")],
            "write": transfer(self.write),
            "read": transfer(self.read),
        })
    }
}

fn heading_and_rows(text: &mut Vec<String>, table: Vec<String>) {
    let mut lines = table.into_iter();
    text.extend(lines.next().map(|heading| Paint::Bold.over(heading)));
    text.extend(lines);
}

/// Sides beside each other, a label before each group of lines.
fn table(sides: &[(&str, &SideReport)]) -> Vec<String> {
    let mut heading = vec![String::new()];
    heading.extend(sides.iter().map(|(name, _)| (*name).to_owned()));
    let mut rows = vec![heading];
    let columns: Vec<_> = sides.iter().map(|(_, side)| side.lines()).collect();
    for (group, (label, _)) in columns.first().into_iter().flatten().enumerate() {
        let lines = columns.iter().map(|column| column[group].1.len()).max().unwrap_or(0);
        for line in 0..lines {
            let mut row = vec![if line == 0 { (*label).to_owned() } else { String::new() }];
            row.extend(columns.iter().map(|c| c[group].1.get(line).cloned().unwrap_or_default()));
            rows.push(row);
        }
    }
    style::table(&rows, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::demo::ProviderKind;

    const MEMORY: Memory = Memory { kind: MemoryKind::Dmabuf, provider: ProviderKind::Software };

    fn side(gpu: &str, counters: &str) -> SideReport {
        let ready = Ready {
            pid: 4_194_304,
            device: "peerdma0".into(),
            hca: "peerdma0".into(),
            choice: "nearest".into(),
            gpu: gpu.into(),
            endpoint: peerdma::Endpoint {
                qpn: 0xabcdef,
                psn: 1,
                mtu: peerdma::Mtu::B4096,
                gid: "fe80::1111:2222:3333:4444".parse().unwrap(),
                lid: 0,
            },
            buffers: vec![Buffer {
                name: "returned".into(),
                fd: Some(14),
                len: 1,
                lkey: 0x294,
                rkey: 0x294,
            }],
            target: peerdma::RemoteSlice { addr: 0, len: 1, rkey: 0 },
        };
        SideReport::new(&Platform::default(), MEMORY, ready, Counters::parse(counters))
    }

    fn report() -> Report {
        let counters = "link link below 0000:17:00.0 30\n\
                        route 0000:18:00.0 0000:1a:00.0 BUS_ADDR 10 20\n\
                        sent_pkts 123456\nsent_bytes 104752742\nretransmits 12\n";
        let transfer = Transfer { bytes: 1 << 20, seconds: 0.5 };
        Report {
            file: "/bin/true".into(),
            size: 1023 << 20,
            memory: MEMORY,
            hash: "0123456789abcdef0123".into(),
            library: "/lib".into(),
            sides: [side("gpu0", counters), side("gpu1", "")],
            write: transfer,
            read: transfer,
        }
    }

    #[test]
    fn figures_are_those_of_the_library() {
        let json = report().json();
        let [near, far] = [&json["sides"][0], &json["sides"][1]];
        assert_eq!(near["route"]["map_type"], "BUS_ADDR");
        assert_eq!(near["route"]["written_bytes"], 20);
        assert_eq!(near["links"][0], json!({ "name": "link below 0000:17:00.0", "bytes": 30 }));
        assert_eq!(near["links"][1]["bytes"], 0, "what the library does not name was not crossed");
        assert!(far["route"].is_null());
        assert_eq!(far["links"].as_array().unwrap().len(), 6);
        let text = report().text(None).join("\n");
        assert!(text.contains("below 0000:17:00.0: 30 B"), "{text}");
        assert!(text.contains("10 B read, 20 B written"), "{text}");
    }

    #[test]
    fn the_text_fits_eighty_columns_and_less() {
        for (width, narrow) in [(80, false), (60, true)] {
            for line in report().text(Some(width)) {
                let seen = anstream::adapter::strip_str(&line).to_string();
                let sentence = narrow && !seen.starts_with(' ') && seen.len() > 60;
                assert!(seen.chars().count() <= width || sentence, "{width}: {seen}");
            }
        }
    }
}
