//! What the demo prints once it has proven something.

use super::protocol::Ready;
use super::rate;
use crate::style::{self, Paint};
use hca::Counter;
use hca::directory::Reader;
use pcie::{Platform, Role, Target};
use registry::Client;
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
    /// How much of it.
    pub size: u64,
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

/// One side's facts.
pub struct SideReport {
    ready: Ready,
    way: Way,
    traffic: Option<Traffic>,
}

/// How the HCA reaches a side's GPU on the platform.
struct Way {
    hca_address: String,
    gpu_address: String,
    map_type: String,
    links: Vec<String>,
}

/// What a side's HCA counted.
#[derive(Clone, Copy)]
struct Traffic {
    sent_packets: u64,
    sent_bytes: u64,
    received_packets: u64,
    received_bytes: u64,
    retransmits: u64,
}

impl SideReport {
    /// Gathers the facts of a side, which must still have its device open.
    pub fn new(platform: &Platform, ready: Ready) -> SideReport {
        SideReport { way: Way::of(platform, &ready.gpu), traffic: Traffic::of(ready.pid), ready }
    }
}

impl Report {
    /// Prints it, the sentence first, or as JSON.
    pub fn print(&self, as_json: bool) {
        if as_json {
            return style::json(&self.json());
        }
        style::outln(format_args!("{}", self.sentence()));
        style::outln(format_args!(""));
        for (row, line) in style::table(&self.rows(), &[]).into_iter().enumerate() {
            style::outln(format_args!("{}", if row == 0 { Paint::Bold.over(line) } else { line }));
        }
    }

    fn sentence(&self) -> String {
        format!(
            "{} {} of GPU memory crossed to another process's GPU by RDMA WRITE and came back by RDMA READ, byte for byte (BLAKE3 {}…)",
            Paint::Good.over("Proven:"),
            style::bytes(self.size),
            &self.hash[..self.hash.len().min(16)],
        )
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, cell: &dyn Fn(&SideReport) -> String| {
            std::iter::once(name.to_owned()).chain(self.sides.iter().map(cell)).collect::<Vec<_>>()
        };
        let mut rows = vec![vec![String::new(), "near".into(), "far".into()]];
        rows.push(row("process", &|side| format!("pid {}", side.ready.pid)));
        rows.push(row("HCA", &|side| format!("{} at {}", side.ready.device, side.way.hca_address)));
        rows.push(row("GPU", &|side| format!("{} at {}", side.ready.gpu, side.way.gpu_address)));
        let buffers = self.sides.iter().map(|side| side.ready.buffers.len()).max().unwrap_or(0);
        for place in 0..buffers {
            let name = if place == 0 { "dma-buf" } else { "" };
            rows.push(row(name, &|side| match side.ready.buffers.get(place) {
                Some(buffer) => {
                    format!(
                        "{}: fd {}, lkey {:#x}, rkey {:#x}",
                        buffer.name, buffer.fd, buffer.lkey, buffer.rkey
                    )
                }
                None => String::new(),
            }));
        }
        rows.push(row("RoCEv2", &|side| {
            let endpoint = side.ready.endpoint;
            format!("{}, QP {:#08x}, MTU {}", endpoint.gid, endpoint.qpn, endpoint.mtu.bytes())
        }));
        rows.push(row("sent", &|side| side.traffic.map_or_else(String::new, Traffic::sent)));
        rows.push(row("received", &|side| {
            side.traffic.map_or_else(String::new, Traffic::received)
        }));
        rows.push(row("PCIe route", &|side| side.way.map_type.clone()));
        let hops = self.sides.iter().map(|side| side.way.links.len()).max().unwrap_or(0);
        for hop in 0..hops {
            rows.push(row("", &|side| match side.way.links.get(hop) {
                // Each buffer of a side is read or written once by the HCA over every link of the route.
                Some(link) => format!("{link}: {}", style::bytes(self.crossed())),
                None => String::new(),
            }));
        }
        for (name, transfer) in [("RDMA WRITE", self.write), ("RDMA READ", self.read)] {
            let cell = format!(
                "{} in {:.3} s: {}",
                style::bytes(transfer.bytes),
                transfer.seconds,
                rate(transfer.bytes, transfer.seconds)
            );
            rows.push(vec![name.to_owned(), cell]);
        }
        rows
    }

    /// Bytes that the requests of the demo moved between an HCA and its GPU, there and back.
    fn crossed(&self) -> u64 {
        self.write.bytes.saturating_add(self.read.bytes)
    }

    fn json(&self) -> serde_json::Value {
        let side = |name: &str, side: &SideReport| {
            let SideReport { ready, way, traffic } = side;
            json!({
                "side": name,
                "pid": ready.pid,
                "hca": { "name": ready.device, "address": way.hca_address },
                "gpu": { "name": ready.gpu, "address": way.gpu_address },
                "endpoint": ready.endpoint,
                "buffers": ready.buffers,
                "route": { "map_type": way.map_type, "links": way.links, "bytes_per_link": self.crossed() },
                "traffic": traffic.map(Traffic::json),
            })
        };
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
            "blake3": self.hash,
            "library": self.library.display().to_string(),
            "sides": [side("near", near), side("far", far)],
            "write": transfer(self.write),
            "read": transfer(self.read),
        })
    }
}

impl Way {
    /// The route of the platform's HCA to the GPU of that name.
    fn of(platform: &Platform, gpu: &str) -> Way {
        let ends = platform.with_role(Role::Hca).next().zip(platform.named(gpu));
        let Some((hca, gpu)) = ends else {
            // Both sides found them on the same platform, or they would not have got here.
            return Way {
                hca_address: String::new(),
                gpu_address: String::new(),
                map_type: String::new(),
                links: Vec::new(),
            };
        };
        let (map_type, links) = match platform.route(hca, Target::Function(gpu.address)) {
            Ok(route) => {
                (route.map_type(), route.links().iter().map(ToString::to_string).collect())
            }
            Err(error) => (error.map_type, Vec::new()),
        };
        Way {
            hca_address: hca.address.to_string(),
            gpu_address: gpu.address.to_string(),
            map_type: map_type.to_string(),
            links,
        }
    }
}

impl Traffic {
    /// From the shared directory of the process `pid`; `None` where it cannot be read.
    fn of(pid: u32) -> Option<Traffic> {
        let client = Client::connect(registry::Role::Observer).ok()?;
        let members = client.members().ok()?;
        let member = members.iter().find(|member| u32::try_from(member.pid) == Ok(pid))?;
        let reader = Reader::open(client.directory(member.slot).ok()?).ok()?;
        Some(Traffic {
            sent_packets: reader.counter(Counter::SentPackets),
            sent_bytes: reader.counter(Counter::SentBytes),
            received_packets: reader.counter(Counter::RcvdPackets),
            received_bytes: reader.counter(Counter::RcvdBytes),
            retransmits: reader.counter(Counter::Retransmits),
        })
    }

    fn sent(self) -> String {
        let again = if self.retransmits > 0 {
            format!(", {} of them again", self.retransmits)
        } else {
            String::new()
        };
        format!("{} in {} packets{again}", style::bytes(self.sent_bytes), self.sent_packets)
    }

    fn received(self) -> String {
        format!("{} in {} packets", style::bytes(self.received_bytes), self.received_packets)
    }

    fn json(self) -> serde_json::Value {
        json!({
            "sent_packets": self.sent_packets,
            "sent_bytes": self.sent_bytes,
            "received_packets": self.received_packets,
            "received_bytes": self.received_bytes,
            "retransmits": self.retransmits,
        })
    }
}
