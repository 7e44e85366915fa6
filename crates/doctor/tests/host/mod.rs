//! Hosts as trees of files, of which each test changes what it is about.
#![allow(dead_code, reason = "no test program uses all of it")]

use doctor::{Facts, Outcome, examine};
use std::collections::BTreeMap;
use topology::Tree;

/// Files by path; links by their target.
#[derive(Clone, Default)]
pub struct Host {
    pub files: BTreeMap<String, Vec<u8>>,
    pub links: BTreeMap<String, String>,
}

impl Tree for Host {
    fn read(&self, path: &str) -> Option<Vec<u8>> {
        self.files.get(path).cloned()
    }
    fn list(&self, path: &str) -> Vec<String> {
        let start = format!("{}/", path.trim_end_matches('/'));
        let all = self.files.keys().chain(self.links.keys());
        let mut names: Vec<String> = all
            .filter_map(|p| Some(p.strip_prefix(&start)?.split('/').next()?.to_owned()))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
    fn link(&self, path: &str) -> Option<String> {
        self.links.get(path).cloned()
    }
    fn real(&self, path: &str) -> String {
        self.link(path).unwrap_or_else(|| path.to_owned())
    }
    fn start(&self, path: &str, most: usize) -> Option<Vec<u8>> {
        self.read(path).map(|bytes| bytes.into_iter().take(most).collect())
    }
    fn has_folder(&self, path: &str) -> bool {
        !self.list(path).is_empty()
    }
}

/// What a ConnectX with all that there is answers.
pub const ANSWERS: &str =
    "on-demand yes 63\nbounces no\nfirmware data_direct query_vuid crossing_vhca_mkey ats\n";

pub const ROOT: &str = "/sys/devices/pci0000:17/0000:17:00.0";
pub const UP: &str = "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0";

/// Configuration space of a port with ACS bits, or of a device without ACS and with ATS on or off.
pub fn space(port: Option<(u8, u8)>, ats: bool) -> Vec<u8> {
    let mut space = vec![0u8; 4096];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    put(6, &[0x10]);
    put(0x34, &[0x40]);
    let (kind, acs) = port.map_or((0u8, None), |(kind, acs)| (kind, Some(acs)));
    put(0x0e, &[u8::from(port.is_some())]);
    put(0x40, &[0x10, 0, kind << 4 | 2, 0]);
    let next = |id: u32, next: u32| (id | 1 << 16 | next << 20).to_le_bytes();
    match acs {
        Some(bits) => {
            put(0x100, &next(0x0d, 0));
            put(0x106, &[bits]);
        }
        None => {
            put(0x100, &next(0x0f, 0));
            put(0x106, &[0, u8::from(ats) << 7]);
        }
    }
    space
}

impl Host {
    pub fn file(mut self, path: &str, content: impl AsRef<[u8]>) -> Host {
        self.files.insert(path.into(), content.as_ref().to_vec());
        self
    }

    pub fn release(self, release: &str) -> Host {
        let config = self.files["/boot/config-6.18.2"].clone();
        self.file("/proc/version", format!("Linux version {release} (gcc)\n"))
            .file(&format!("/boot/config-{release}"), config)
    }

    /// What the adapter answered, and nothing else.
    pub fn answers(self, lines: &str) -> Host {
        self.file("/peerdma/probes", format!("device mlx5_0\n{lines}"))
    }

    pub fn without(mut self, path: &str) -> Host {
        self.files.retain(|name, _| !name.starts_with(path));
        self
    }

    pub fn function(mut self, path: &str, id: (u16, u16), class: u32, space: Vec<u8>) -> Host {
        let name = path.rsplit('/').next().unwrap();
        self.links.insert(format!("/sys/bus/pci/devices/{name}"), path.into());
        self.file(&format!("{path}/vendor"), format!("{:#06x}\n", id.0))
            .file(&format!("{path}/device"), format!("{:#06x}\n", id.1))
            .file(&format!("{path}/class"), format!("{class:#08x}\n"))
            .file(&format!("{path}/config"), space)
    }

    pub fn driver(mut self, path: &str, driver: &str, group: u32) -> Host {
        self.links.insert(format!("{path}/driver"), format!("../../bus/pci/drivers/{driver}"));
        self.links
            .insert(format!("{path}/iommu_group"), format!("../../kernel/iommu_groups/{group}"));
        self
    }

    /// A server on which everything that a released kernel offers works: an H100 and a ConnectX-7
    /// below one switch.
    pub fn good() -> Host {
        let port = |acs| space(Some((6, acs)), false);
        let (gpu, nic) =
            (format!("{UP}/0000:19:00.0/0000:1a:00.0"), format!("{UP}/0000:19:01.0/0000:1b:00.0"));
        Host::default()
            .function(ROOT, (0x8086, 0x352a), 0x060400, space(Some((4, 0x1d)), false))
            .function(UP, (0x1000, 0xc030), 0x060400, space(Some((5, 0)), false))
            .function(&format!("{UP}/0000:19:00.0"), (0x1000, 0xc030), 0x060400, port(0))
            .function(&format!("{UP}/0000:19:01.0"), (0x1000, 0xc030), 0x060400, port(0))
            .function(&gpu, (0x10de, 0x2330), 0x030200, space(None, false))
            .function(&nic, (0x15b3, 0x1021), 0x020700, space(None, true))
            .driver(&gpu, "nvidia", 7)
            .driver(&nic, "mlx5_core", 8)
            .file(&format!("{nic}/infiniband/mlx5_0/fw_ver"), "28.42\n")
            .file(
                &format!("{gpu}/resource"),
                "0x0 0xffffff 0x40200\n\
                 0x2000000000 0x3fffffffff 0x14220c\n",
            )
            .file(
                "/proc/self/limits",
                "Max locked memory         unlimited            \
                 unlimited            bytes\n",
            )
            .file("/sys/kernel/iommu_groups/7/type", "DMA\n")
            .file("/sys/kernel/iommu_groups/8/type", "DMA\n")
            .file("/sys/kernel/mm/memory_peers/nv_mem/version", "1.0\n")
            .file("/proc/version", "Linux version 6.18.2 (gcc)\n")
            .file("/proc/cmdline", "root=/dev/sda1\n")
            .file("/proc/modules", "nvidia_peermem 16384 0 - Live 0x0\nmlx5_ib 1 0 - Live 0x0\n")
            .file(
                "/proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08\n",
            )
            .file(
                "/boot/config-6.18.2",
                "CONFIG_INFINIBAND_ON_DEMAND_PAGING=y\nCONFIG_DMABUF_MOVE_NOTIFY=y\n\
                 CONFIG_INFINIBAND_USER_MEM=y\n\
                 CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_PCI_P2PDMA=y\n",
            )
            .file("/proc/cpuinfo", "vendor_id : GenuineIntel\ncpu family : 6\nflags : fpu sse2\n")
            .file("/peerdma/probes", format!("device mlx5_0\n{ANSWERS}"))
    }

    /// One line for each mechanism: what comes of it, and why.
    pub fn says(&self) -> String {
        let machine = topology::of_tree(self).unwrap().machine;
        let mut text = String::new();
        for finding in examine(&Facts::read(self), &machine) {
            let word = match finding.outcome() {
                Outcome::Works => "works",
                Outcome::Unknown => "unknown",
                Outcome::DoesNot => "does not",
            };
            text += &format!("{}: {word}\n", finding.mechanism.id());
            if let Some(condition) = finding.decisive() {
                text += &format!(
                    "  {}\n  {}\n  {}\n",
                    condition.what, condition.evidence, condition.remedy
                );
            }
        }
        text
    }

    /// What every condition of one mechanism is, a line each.
    pub fn conditions(&self, mechanism: &str) -> String {
        let machine = topology::of_tree(self).unwrap().machine;
        let findings = examine(&Facts::read(self), &machine);
        let of = findings.iter().filter(|finding| finding.mechanism.id() == mechanism);
        of.flat_map(|finding| &finding.conditions).map(|c| format!("{}\n", c.what)).collect()
    }

    /// What is said of one mechanism.
    pub fn says_of(&self, mechanism: &str) -> String {
        let all = self.says();
        let start =
            all.find(&format!("{mechanism}: ")).unwrap_or_else(|| panic!("{mechanism}: {all}"));
        let rest = &all[start..];
        let end = rest[1..].match_indices('\n').find(|(at, _)| !rest[at + 2..].starts_with(' '));
        rest[..end.map_or(rest.len(), |(at, _)| at + 2)].to_owned()
    }
}

/// Vital Product Data with a VUID.
pub fn vpd(vuid: &str) -> Vec<u8> {
    let len = vuid.len() as u8;
    [&[0x90, len + 3, 0, b'V', b'U', len], vuid.as_bytes(), &[0x78]].concat()
}

pub const GPU: &str = "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0";
pub const NIC: &str = "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:01.0/0000:1b:00.0";
pub const SIDE: &str =
    "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:02.0/0000:1c:00.0";

/// A ConnectX-8 with its side function below the switch of a Grace machine's GPU.
pub fn grace(release: &str) -> Host {
    let port = |acs| space(Some((6, acs)), false);
    let asked = format!("device mlx5_0\nregisters yes EBADF\ndata-direct {SIDE}\n{ANSWERS}");
    Host::good()
        .function(&format!("{UP}/0000:19:02.0"), (0x15b3, 0x1976), 0x060400, port(0x19))
        .function(SIDE, (0x15b3, 0x2100), 0x080100, space(None, true))
        .function(GPU, (0x10de, 0x2941), 0x030200, space(None, false))
        .function(NIC, (0x15b3, 0x1023), 0x020700, space(None, true))
        .file(&format!("{SIDE}/vpd"), vpd("one"))
        .file(&format!("{NIC}/vpd"), vpd("one"))
        .file("/proc/cpuinfo", "CPU implementer : 0x41\nCPU part : 0xd4f\n")
        .file(&format!("{UP}/0000:19:00.0/config"), port(0x15))
        .file(&format!("{ROOT}/config"), space(Some((4, 0x1c)), false))
        .driver(SIDE, "mlx5_ib", 7)
        .driver(GPU, "nvidia", 7)
        .file("/proc/version", format!("Linux version {release} (gcc)\n"))
        .file("/usr/lib64/libmlx5.so.1", b"\0MLX5_1.24\0MLX5_1.25\0     ")
        .file("/peerdma/probes", asked)
}

/// An MI300X with amdgpu beside the ConnectX.
pub fn amd(release: &str) -> Host {
    Host::good()
        .function(GPU, (0x1002, 0x74a1), 0x120000, space(None, false))
        .driver(GPU, "amdgpu", 7)
        .file("/proc/version", format!("Linux version {release} (gcc)\n"))
        .file(&format!("/boot/config-{release}"), Host::good().files["/boot/config-6.18.2"].clone())
        .file(&format!("{GPU}/mem_info_vram_total"), "137438953472\n")
}
