//! Answers of the host's own devices to questions that only they can answer. Asking is the
//! caller's: this room reads files, and a capture keeps the answers in one ([`PROBES`]).

use crate::Facts;
use pcie::{Address, Function};
use topology::printable;

/// Where a capture keeps the answers.
pub const PROBES: &str = "/peerdma/probes";

/// What a device offers of memory whose pages come when they are used (`odp_caps` of
/// `ibv_query_device_ex(3)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnDemand {
    /// Whether it has it at all.
    pub supported: bool,
    /// What RC may do with it: bits of `enum ibv_odp_transport_cap_bits`.
    pub rc: u32,
}

/// What the firmware of a ConnectX offers (`QUERY_HCA_CAP`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FirmwareCaps {
    /// `HCA_CAP.data_direct`.
    pub data_direct: bool,
    /// `HCA_CAP_2.query_vuid`.
    pub query_vuid: bool,
    /// `HCA_CAP.crossing_vhca_mkey`.
    pub crossing_vhca_mkey: bool,
    /// `HCA_CAP.ats`.
    pub ats: bool,
}

impl FirmwareCaps {
    /// Each with its name.
    fn named(&mut self) -> [(&'static str, &mut bool); 4] {
        [
            ("data_direct", &mut self.data_direct),
            ("query_vuid", &mut self.query_vuid),
            ("crossing_vhca_mkey", &mut self.crossing_vhca_mkey),
            ("ats", &mut self.ats),
        ]
    }
}

/// What an RDMA device answered. What it was not asked is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Probe {
    /// Name of the RDMA device.
    pub device: String,
    /// Why it could not be opened.
    pub unopened: Option<String>,
    /// Whether its driver registers dma-bufs, with the words that say how that is known.
    pub registers_dmabuf: Option<(bool, String)>,
    /// The folder of its Data Direct function, or `None` within if it has none.
    pub data_direct: Option<Option<String>>,
    /// What it says of on-demand paging.
    pub on_demand: Option<OnDemand>,
    /// Whether this guest's memory is encrypted and DMA bounces (`IB_UVERBS_DEVICE_CC_DMA_BOUNCE`).
    pub bounces: Option<bool>,
    /// The capabilities that its firmware offers.
    pub firmware: Option<FirmwareCaps>,
    /// Bytes that it wrote to itself, or why it could not.
    pub loopback: Option<Result<u64, String>>,
    /// For each GPU that exports a dma-buf, the bytes of one that it registered, or why it did not.
    pub buffers: Vec<(Address, Result<u64, String>)>,
}

impl Facts {
    /// What the RDMA device of an adapter answered.
    pub(crate) fn probe(&self, nic: &Function) -> Option<&Probe> {
        self.probes.iter().find(|probe| nic.interfaces.contains(&probe.device))
    }

    /// Whether a buffer of this GPU was registered with this adapter: bytes, or why none was.
    pub(crate) fn registered(
        &self,
        gpu: &Function,
        nic: &Function,
    ) -> Option<&Result<u64, String>> {
        let buffers = self.probe(nic)?.buffers.iter();
        let of_gpu =
            buffers.filter(|(address, _)| *address == gpu.address).map(|(_, result)| result);
        // One exporter's success is enough; the first refusal tells otherwise.
        of_gpu.min_by_key(|result| result.is_err())
    }

    /// The answers as text, one a line.
    pub fn answers(&self) -> String {
        let mut text = String::new();
        let outcome = |result: &Result<u64, String>| match result {
            Ok(bytes) => format!("ok {bytes}"),
            Err(why) => format!("failed {}", printable(why)),
        };
        for probe in &self.probes {
            text += &format!("device {}\n", printable(&probe.device));
            if let Some(why) = &probe.unopened {
                text += &format!("unopened {}\n", printable(why));
            }
            if let Some((registers, evidence)) = &probe.registers_dmabuf {
                let answer = if *registers { "yes" } else { "no" };
                text += &format!("registers {answer} {}\n", printable(evidence));
            }
            if let Some(path) = &probe.data_direct {
                let path = path.as_deref().map_or_else(|| "none".into(), printable);
                text += &format!("data-direct {path}\n");
            }
            if let Some(OnDemand { supported, rc }) = probe.on_demand {
                let answer = if supported { "yes" } else { "no" };
                text += &format!("on-demand {answer} {rc}\n");
            }
            if let Some(bounces) = probe.bounces {
                text += &format!("bounces {}\n", if bounces { "yes" } else { "no" });
            }
            if let Some(mut firmware) = probe.firmware {
                let has = firmware.named().into_iter().filter(|(_, has)| **has);
                let names: Vec<&str> = has.map(|(name, _)| name).collect();
                text += &format!("firmware {}\n", names.join(" "));
            }
            if let Some(result) = &probe.loopback {
                text += &format!("loopback {}\n", outcome(result));
            }
            for (gpu, result) in &probe.buffers {
                text += &format!("buffer {gpu} {}\n", outcome(result));
            }
        }
        for (node, result) in &self.nodes {
            let outcome = outcome(&result.clone().map(|()| 0));
            text += &format!("node {} {outcome}\n", printable(node));
        }
        for (way, why) in &self.unexported {
            text += &format!("unexported {way} {}\n", printable(why));
        }
        if let Some(result) = &self.software_hca {
            text += &format!("software-hca {}\n", outcome(&result.clone().map(|()| 0)));
        }
        if let Some(result) = &self.kernel_watches {
            text += &format!("kernel-watches {}\n", outcome(&result.clone().map(|()| 0)));
        }
        if let Some(there) = self.rdma_core {
            text += &format!("rdma-core {}\n", if there { "yes" } else { "no" });
        }
        text
    }

    /// Takes answers that [`Facts::answers`] wrote; lines that it did not write are passed over.
    pub(crate) fn take_answers(&mut self, text: &str) {
        let outcome = |text: &str| {
            let (word, rest) = text.split_once(' ')?;
            match word {
                "ok" => Some(Ok(rest.parse().ok()?)),
                "failed" => Some(Err(rest.to_owned())),
                _ => None,
            }
        };
        for (word, rest) in text.lines().filter_map(|line| line.split_once(' ')) {
            if word == "device" {
                self.probes.push(Probe { device: rest.to_owned(), ..Probe::default() });
            } else if word == "software-hca" {
                self.software_hca = outcome(rest).map(|result| result.map(|_: u64| ()));
            } else if word == "kernel-watches" {
                self.kernel_watches = outcome(rest).map(|result| result.map(|_: u64| ()));
            } else if word == "rdma-core" {
                self.rdma_core = Some(rest == "yes");
            } else if word == "unexported" {
                let parts = rest.split_once(' ');
                self.unexported.extend(parts.map(|(way, why)| (way.to_owned(), why.to_owned())));
            } else if word == "node" {
                let parts = rest.split_once(' ');
                let found = parts.and_then(|(node, rest)| Some((node.to_owned(), outcome(rest)?)));
                self.nodes.extend(found.map(|(node, result)| (node, result.map(|_| ()))));
            }
            let Some(probe) = self.probes.last_mut() else { continue };
            match word {
                "unopened" => probe.unopened = Some(rest.to_owned()),
                "registers" => {
                    probe.registers_dmabuf = rest
                        .split_once(' ')
                        .map(|(answer, evidence)| (answer == "yes", evidence.to_owned()));
                }
                "data-direct" => {
                    probe.data_direct = Some(Some(rest.to_owned()).filter(|path| path != "none"));
                }
                "on-demand" => {
                    probe.on_demand = rest.split_once(' ').and_then(|(answer, rc)| {
                        Some(OnDemand { supported: answer == "yes", rc: rc.parse().ok()? })
                    });
                }
                "bounces" => probe.bounces = Some(rest == "yes"),
                "firmware" => {
                    let firmware = probe.firmware.insert(FirmwareCaps::default());
                    for (name, has) in firmware.named() {
                        *has = rest.split(' ').any(|word| word == name);
                    }
                }
                "loopback" => probe.loopback = outcome(rest),
                "buffer" => {
                    let parts = rest.split_once(' ');
                    let found =
                        parts.and_then(|(gpu, rest)| Some((gpu.parse().ok()?, outcome(rest)?)));
                    probe.buffers.extend(found);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_being_written() {
        let gpu = "0000:1a:00.0".parse().unwrap();
        let mut facts = Facts::default();
        facts.probes = vec![
            Probe {
                device: "mlx5_0".into(),
                registers_dmabuf: Some((true, "it says EBADF".into())),
                data_direct: Some(Some("/sys/devices/x y".into())),
                loopback: Some(Ok(65536)),
                buffers: vec![(gpu, Ok(4096)), (gpu, Err("EBUSY, busy".into()))],
                unopened: None,
                on_demand: Some(OnDemand { supported: true, rc: 0x3f }),
                bounces: Some(false),
                firmware: Some(FirmwareCaps {
                    data_direct: true,
                    query_vuid: false,
                    crossing_vhca_mkey: true,
                    ats: false,
                }),
            },
            Probe {
                device: "mlx5_1".into(),
                unopened: Some("EACCES".into()),
                data_direct: Some(None),
                loopback: Some(Err("no port".into())),
                on_demand: Some(OnDemand { supported: false, rc: 0 }),
                bounces: Some(true),
                firmware: Some(FirmwareCaps::default()),
                ..Probe::default()
            },
        ];
        facts.software_hca = Some(Err("no".into()));
        facts.kernel_watches = Some(Ok(()));
        facts.rdma_core = Some(false);
        facts.nodes = vec![
            ("/dev/udmabuf".into(), Ok(())),
            ("/dev/dma_heap/system".into(), Err("Permission denied (os error 13)".into())),
        ];
        facts.unexported = vec![("cuda".into(), "no libcuda.so.1".into())];
        let mut read = Facts::default();
        read.take_answers(&facts.answers());
        assert_eq!(read.probes, facts.probes);
        assert_eq!(read.software_hca, facts.software_hca);
        assert_eq!(read.kernel_watches, facts.kernel_watches);
        assert_eq!(read.rdma_core, facts.rdma_core);
        assert_eq!(read.nodes, facts.nodes);
        assert_eq!(read.unexported, facts.unexported);
        read.take_answers(
            "buffer x ok\nregisters\nnonsense \u{1b}\non-demand\nnode x\nfirmware\n\n",
        );
    }
}
