//! What the doctor says of hosts whose trouble is known, as a person would read it.

use doctor::{Facts, Mechanism, Outcome, Probe, examine};
use std::collections::BTreeMap;
use topology::Tree;

/// Files by path; links by their target.
#[derive(Clone, Default)]
struct Host {
    files: BTreeMap<String, Vec<u8>>,
    links: BTreeMap<String, String>,
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
const ANSWERS: &str =
    "on-demand yes 63\nbounces no\nfirmware data_direct query_vuid crossing_vhca_mkey ats\n";

const ROOT: &str = "/sys/devices/pci0000:17/0000:17:00.0";
const UP: &str = "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0";

/// Configuration space of a port with ACS bits, or of a device without ACS and with ATS on or off.
fn space(port: Option<(u8, u8)>, ats: bool) -> Vec<u8> {
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
    fn file(mut self, path: &str, content: impl AsRef<[u8]>) -> Host {
        self.files.insert(path.into(), content.as_ref().to_vec());
        self
    }

    fn release(self, release: &str) -> Host {
        let config = self.files["/boot/config-6.18.2"].clone();
        self.file("/proc/version", format!("Linux version {release} (gcc)\n"))
            .file(&format!("/boot/config-{release}"), config)
    }

    /// What the adapter answered, and nothing else.
    fn answers(self, lines: &str) -> Host {
        self.file("/peerdma/probes", format!("device mlx5_0\n{lines}"))
    }

    fn without(mut self, path: &str) -> Host {
        self.files.retain(|name, _| !name.starts_with(path));
        self
    }

    fn function(mut self, path: &str, id: (u16, u16), class: u32, space: Vec<u8>) -> Host {
        let name = path.rsplit('/').next().unwrap();
        self.links.insert(format!("/sys/bus/pci/devices/{name}"), path.into());
        self.file(&format!("{path}/vendor"), format!("{:#06x}\n", id.0))
            .file(&format!("{path}/device"), format!("{:#06x}\n", id.1))
            .file(&format!("{path}/class"), format!("{class:#08x}\n"))
            .file(&format!("{path}/config"), space)
    }

    fn driver(mut self, path: &str, driver: &str, group: u32) -> Host {
        self.links.insert(format!("{path}/driver"), format!("../../bus/pci/drivers/{driver}"));
        self.links
            .insert(format!("{path}/iommu_group"), format!("../../kernel/iommu_groups/{group}"));
        self
    }

    /// A server on which everything that a released kernel offers works: an H100 and a ConnectX-7 below one switch.
    fn good() -> Host {
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
            .file(&format!("{gpu}/resource"), "0x0 0xffffff 0x40200\n0x2000000000 0x3fffffffff 0x14220c\n")
            .file("/proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n")
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
                "CONFIG_INFINIBAND_ON_DEMAND_PAGING=y\nCONFIG_DMABUF_MOVE_NOTIFY=y\nCONFIG_INFINIBAND_USER_MEM=y\n\
                 CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_PCI_P2PDMA=y\n",
            )
            .file("/proc/cpuinfo", "vendor_id : GenuineIntel\ncpu family : 6\nflags : fpu sse2\n")
            .file("/peerdma/probes", format!("device mlx5_0\n{ANSWERS}"))
    }

    /// One line for each mechanism: what comes of it, and why.
    fn says(&self) -> String {
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

    /// What is said of one mechanism.
    fn says_of(&self, mechanism: &str) -> String {
        let all = self.says();
        let start =
            all.find(&format!("{mechanism}: ")).unwrap_or_else(|| panic!("{mechanism}: {all}"));
        let rest = &all[start..];
        let end = rest[1..].match_indices('\n').find(|(at, _)| !rest[at + 2..].starts_with(' '));
        rest[..end.map_or(rest.len(), |(at, _)| at + 2)].to_owned()
    }
}

const NOTHING_TO_MOVE: &str = "\
dma-buf-dynamic: does not
  the GPU's driver moves exported buffers and tells importers
  NVIDIA's exporter is static: it never moves a buffer
  nothing to do: on this GPU the pinned way is all there is, and it suffices
";

#[test]
fn all_well() {
    let says = Host::good().says();
    let expected = format!(
        "peer-direct: works\ndma-buf-pinned: works\n{NOTHING_TO_MOVE}\
data-direct: does not
  the adapter is a ConnectX-8 or later
  0000:1b:00.0: 15b3:1021
  no other adapter has a Data Direct function; use dma-buf in its pinned form
device-private: does not
  the kernel gives peers the address of a device-private page (the patch series of 2024 and 2025)
  kernel 6.18.2: no released kernel has it
  nothing to do: on-demand paging works by migrating the page to host memory
ats: works
software-hca: works
"
    );
    assert_eq!(says, expected);
}

#[test]
fn a_bare_container() {
    let host = Host::default()
        .file("/proc/version", "Linux version 6.1.0-9-cloud-amd64 (gcc)\n")
        .file("/proc/modules", "")
        .file("/proc/cpuinfo", "vendor_id : GenuineIntel\ncpu family : 6\n");
    assert_eq!(host.says(), "software-hca: works\n");
    let power = host.file("/proc/cpuinfo", "processor : 0\ncpu : POWER9, altivec supported\n");
    assert!(power.says().starts_with("software-hca: does not\n"), "{}", power.says());
    assert!(power.says().contains("ppc64le"), "{}", power.says());
    assert!(Host::default().says().starts_with("software-hca: unknown\n"));
}

#[test]
fn an_old_kernel() {
    let old = |release: &str| {
        Host::good()
            .file("/proc/version", format!("Linux version {release} (gcc)\n"))
            .says_of("dma-buf-pinned")
    };
    assert_eq!(
        old("5.4.0-generic"),
        "dma-buf-pinned: does not\n  the RDMA core registers dma-bufs (kernel 5.12)\n  kernel 5.4.0-generic\n  \
         use a kernel of 5.12 or later\n"
    );
    // Red Hat's 4.18 has it: the number says nothing
    let backported = old("4.18.0-553.el8.x86_64");
    assert!(backported.starts_with("dma-buf-pinned: unknown"), "{backported}");
    assert!(backported.contains("this distribution backports"), "{backported}");
}

#[test]
fn a_driver_without_dma_buf() {
    let nic = format!("{UP}/0000:19:01.0/0000:1b:00.0");
    let host = Host::good().driver(&nic, "mlx4_core", 8);
    assert_eq!(
        host.says_of("dma-buf-pinned"),
        "dma-buf-pinned: does not\n  the adapter's driver registers dma-bufs\n  driver mlx4_core, kernel 6.18.2\n  \
         this driver has none; use Peer-Direct or another adapter\n"
    );
    let closed = Host::good().file(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n",
    );
    assert!(closed.says_of("dma-buf-pinned").contains("install the open kernel modules"));
    assert!(closed.says_of("peer-direct").contains("works"));
}

#[test]
fn acs_redirect_on_the_path() {
    // RR and CR on both ports, and a host bridge that is on no list
    let port = |acs| space(Some((6, acs)), false);
    let host = Host::good()
        .file(&format!("{UP}/0000:19:00.0/config"), port(0x0c))
        .file(&format!("{UP}/0000:19:01.0/config"), port(0x0c));
    assert_eq!(
        host.says_of("dma-buf-pinned"),
        "dma-buf-pinned: does not\n  PCIe carries the adapter's requests to the GPU\n  P2PDMA NOT_SUPPORTED, PIX: host bridge \
         pci0000:17 (8086:352a) is not on the kernel's list of those that route between ports\n  boot with \
         pci=config_acs=x0x00xx@0000:19:00.0;x0x00xx@0000:19:01.0\n"
    );
    // what Linux set at boot and may stay is named, or it would be lost
    let all = host.clone().file(&format!("{UP}/0000:19:01.0/config"), port(0x1d));
    let said = all.says_of("dma-buf-pinned");
    assert!(said.contains("=x0x00xx@0000:19:00.0;x0100x1@0000:19:01.0\n"), "{said}");
    // without root the bits are not known, and so is the verdict
    let short = |path: &str| host.files[path][..64].to_vec();
    let paths = [format!("{UP}/0000:19:00.0/config"), format!("{UP}/0000:19:01.0/config")];
    let unread = paths.iter().fold(host.clone(), |h, path| h.file(path, short(path)));
    assert!(unread.says_of("dma-buf-pinned").starts_with("dma-buf-pinned: unknown\n"));
}

#[test]
fn an_iommu_in_the_way() {
    let host = Host::good().file("/sys/kernel/iommu_groups/8/type", "identity\n");
    assert!(host.says_of("ats").contains("/sys/kernel/iommu_groups/8/type: identity"));
    let off = Host::good().file("/proc/cmdline", "ro intel_iommu=off quiet\n");
    assert!(off.says_of("ats").contains("boot without intel_iommu=off"), "{}", off.says_of("ats"));
    let told = Host::good().file("/proc/cmdline", "pci=noats quiet\n");
    assert!(told.says_of("ats").contains("boot without pci=noats"));
    // redirect with direct translated peer traffic: only translated requests turn round at the switch
    let port = space(Some((6, 0x0c)), false);
    let host = Host::good().file(&format!("{UP}/0000:19:01.0/config"), port);
    assert!(host.says_of("ats").contains("set DT beside RR and CR"), "{}", host.says_of("ats"));
}

#[test]
fn peermem_without_its_symbols() {
    let host = Host::good()
        .without("/sys/kernel/mm/memory_peers/nv_mem")
        .file("/sys/kernel/mm/memory_peers/other/version", "1\n");
    assert_eq!(
        host.says_of("peer-direct"),
        "peer-direct: does not\n  a peer memory client knows the GPU\n  /sys/kernel/mm/memory_peers: other, though nvidia_peermem is \
         loaded: it was built without the peer symbols\n  install DOCA-OFED first, then rebuild the NVIDIA modules against it\n"
    );
    let stock = Host::good().without("/sys/kernel/mm");
    assert!(stock.says_of("peer-direct").contains("DOCA-OFED"));
}

/// Vital Product Data with a VUID.
fn vpd(vuid: &str) -> Vec<u8> {
    let len = vuid.len() as u8;
    [&[0x90, len + 3, 0, b'V', b'U', len], vuid.as_bytes(), &[0x78]].concat()
}

const GPU: &str = "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0";
const NIC: &str = "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:01.0/0000:1b:00.0";
const SIDE: &str = "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:02.0/0000:1c:00.0";

/// A ConnectX-8 with its side function below the switch of a Grace machine's GPU.
fn grace(release: &str) -> Host {
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

#[test]
fn data_direct_with_and_without_its_fix() {
    assert_eq!(grace("6.18.2").says_of("data-direct"), "data-direct: works\n");
    assert!(grace("6.16.4").says_of("data-direct").contains("use 6.18 or later"));
    assert!(grace("6.11.0").says_of("data-direct").contains("use a kernel of 6.12 or later"));
    let old = grace("6.18.2").file("/usr/lib64/libmlx5.so.1", b"\0MLX5_1.24\0        ");
    assert!(old.says_of("data-direct").contains("newest symbol version MLX5_1.24"));
}

#[test]
fn data_direct_asks_for_all_that_it_needs() {
    let good = || grace("6.18.2");
    let nvrm = |version: &str| {
        format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}\n")
    };
    for (host, outcome, said) in [
        (
            good().function(GPU, (0x10de, 0x2330), 0x030200, space(None, false)),
            "unknown",
            "coherent",
        ),
        (
            good().file("/proc/cpuinfo", "vendor_id : GenuineIntel\ncpu family : 6\n"),
            "does not",
            "beside an x86",
        ),
        (good().file("/proc/driver/nvidia/version", nvrm("550.54.15")), "does not", "570.26"),
        (
            good().function(NIC, (0x15b3, 0x1021), 0x020700, space(None, true)),
            "does not",
            "ConnectX-8 or later",
        ),
        (good().file(&format!("{NIC}/vpd"), vpd("two")), "does not", "another VUID"),
        (good().without(&format!("{NIC}/vpd")), "unknown", "run the doctor as root"),
        (good().without("/peerdma"), "unknown", "the driver was not asked"),
        (good().file("/peerdma/probes", "device mlx5_0\ndata-direct none\n"), "does not", "ENODEV"),
        (
            good().answers(&format!("data-direct {SIDE}\nfirmware data_direct query_vuid ats\n")),
            "does not",
            "crossing_vhca_mkey 0",
        ),
        (good().answers(&format!("data-direct {SIDE}\n")), "unknown", "firmware was not asked"),
        (
            good().answers("firmware data_direct ats\n"),
            "does not",
            "data_direct or query_vuid is 0",
        ),
        (good().driver(GPU, "nvidia", 9), "does not", "ENOTSUPP"),
        (good().driver(SIDE, "vfio-pci", 7), "does not", "drivers_probe"),
    ] {
        let says = host.says_of("data-direct");
        assert!(
            says.starts_with(&format!("data-direct: {outcome}\n")) && says.contains(said),
            "{said}: {says}"
        );
    }
}

#[test]
fn a_source_that_does_not_list_every_function_leaves_data_direct_open() {
    let xml = r#"<system version="1"><cpu numaid="0" arch="arm64"><pci busid="0000:01:00.0" class="0x060400">
        <pci busid="0000:03:00.0" class="0x030200" vendor="0x10de" device="0x2941"/>
        <pci busid="0000:04:00.0" class="0x020700" vendor="0x15b3" device="0x1023"/></pci></cpu></system>"#;
    let machine = topology::parse(xml.as_bytes(), "x").unwrap().machine;
    let findings = examine(&Facts::default(), &machine);
    let outcome = |m| findings.iter().find(|f| f.mechanism == m).unwrap().outcome();
    assert_eq!(outcome(Mechanism::DataDirect), Outcome::Unknown);
    assert_eq!(outcome(Mechanism::SoftwareHca), Outcome::Unknown);
}

#[test]
fn the_boot_parameter_is_one_that_the_kernel_knows() {
    let port = |acs| space(Some((6, acs)), false);
    let redirected = |release: &str| {
        Host::good()
            .file("/proc/version", format!("Linux version {release} (gcc)\n"))
            .file(&format!("{UP}/0000:19:00.0/config"), port(0x0c))
            .file(&format!("{UP}/0000:19:01.0/config"), port(0x0c))
            .says_of("dma-buf-pinned")
    };
    let old = "boot with pci=disable_acs_redir=0000:19:00.0;0000:19:01.0\n";
    assert!(redirected("6.8.0").contains(old), "{}", redirected("6.8.0"));
    assert!(redirected("6.12.9").contains(old), "{}", redirected("6.12.9"));
    assert!(redirected("6.15.0").contains("pci=config_acs="), "{}", redirected("6.15.0"));
    let apart = |release| grace(release).driver(GPU, "nvidia", 9).says_of("data-direct");
    assert!(apart("6.12.1").contains("stable kernel of April 2025"), "{}", apart("6.12.1"));
    assert!(apart("6.18.2").contains("  boot with pci=config_acs="), "{}", apart("6.18.2"));
}

#[test]
fn peer_direct_is_not_judged_by_a_list_that_it_does_not_ask() {
    let port = |acs| space(Some((6, acs)), false);
    let host = Host::good()
        .file(&format!("{UP}/0000:19:00.0/config"), port(0x0c))
        .file(&format!("{UP}/0000:19:01.0/config"), port(0x0c));
    assert!(host.says_of("dma-buf-pinned").starts_with("dma-buf-pinned: does not"));
    let says = host.says_of("peer-direct");
    assert!(says.starts_with("peer-direct: unknown") && says.contains("does not ask"), "{says}");
    let limited =
        Host::good().file("/proc/self/limits", "Max locked memory 8388608 8388608 bytes\n");
    assert!(limited.says_of("peer-direct").contains("RLIMIT_MEMLOCK 8192 KiB"));
    let root = limited.file("/proc/self/status", "CapEff:\t000001ffffffffff\n");
    assert_eq!(root.says_of("peer-direct"), "peer-direct: works\n");
}

/// An MI300X with amdgpu beside the ConnectX.
fn amd(release: &str) -> Host {
    Host::good()
        .function(GPU, (0x1002, 0x74a1), 0x120000, space(None, false))
        .driver(GPU, "amdgpu", 7)
        .file("/proc/version", format!("Linux version {release} (gcc)\n"))
        .file(&format!("/boot/config-{release}"), Host::good().files["/boot/config-6.18.2"].clone())
        .file(&format!("{GPU}/mem_info_vram_total"), "137438953472\n")
}

#[test]
fn configuration_bounds_what_a_kernel_can() {
    assert_eq!(amd("6.18.2").says_of("dma-buf-pinned"), "dma-buf-pinned: works\n");
    for name in ["INFINIBAND_USER_MEM", "DMA_SHARED_BUFFER", "PCI_P2PDMA"] {
        let config = String::from_utf8(amd("6.18.2").files["/boot/config-6.18.2"].clone()).unwrap();
        let host = amd("6.18.2")
            .file("/boot/config-6.18.2", config.replace(&format!("CONFIG_{name}=y"), ""));
        let says = host.says_of("dma-buf-pinned");
        assert!(says.contains(&format!("use a kernel built with CONFIG_{name}")), "{says}");
    }
    let small = amd("6.18.2").file(&format!("{GPU}/resource"), "0x0 0xfffffff 0x14220c\n");
    assert!(small.says_of("dma-buf-pinned").contains("Resizable BAR"));
    assert!(amd("6.12.1").says_of("dma-buf-pinned").contains("6.15 or later"));
    // before 7.2 a fault may find no queue
    assert!(amd("6.18.2").says_of("dma-buf-dynamic").contains("register one on-demand region"));
    assert_eq!(amd("7.2.0").says_of("dma-buf-dynamic"), "dma-buf-dynamic: works\n");
    let held = amd("6.18.2").driver(GPU, "vfio-pci", 7);
    assert!(held.says_of("dma-buf-pinned").contains("held for a guest"));
}

#[test]
fn a_buffer_that_was_registered_is_the_proof() {
    let host = |answer: &str| {
        Host::good()
            .without("/boot")
            .file("/proc/version", "Linux version 5.14.0-1.el9 (gcc)\n")
            .file("/peerdma/probes", format!("device mlx5_0\nbuffer 0000:1a:00.0 {answer}\n"))
    };
    assert_eq!(host("ok 2097152").says_of("dma-buf-pinned"), "dma-buf-pinned: works\n");
    let failed = host("failed EBUSY").says_of("dma-buf-pinned");
    assert!(failed.starts_with("dma-buf-pinned: does not") && failed.contains("EBUSY"), "{failed}");
    // no buffer came to be registered: that is told as well, of the way that this GPU's maker has
    let none = Host::good().answers("unexported cuda it exports none\nunexported drm no node\n");
    let says = none.says_of("dma-buf-pinned");
    assert!(
        says.starts_with("dma-buf-pinned: unknown") && says.contains("cuda: it exports none\n"),
        "{says}"
    );
    let closed = Host::good().file("/peerdma/probes", "device mlx5_0\nunopened EACCES\n");
    assert!(
        closed.says_of("dma-buf-pinned").contains("uverbs"),
        "{}",
        closed.says_of("dma-buf-pinned")
    );
}

#[test]
fn an_adapter_without_on_demand_paging_lets_nothing_move() {
    let dynamic = |host: Host| host.says_of("dma-buf-dynamic");
    assert_eq!(dynamic(amd("7.2.0")), "dma-buf-dynamic: works\n");
    let none = dynamic(amd("7.2.0").answers("on-demand no 0\n"));
    assert!(
        none.starts_with("dma-buf-dynamic: does not") && none.contains("no IBV_ODP_SUPPORT"),
        "{none}"
    );
    // writes but no reads
    let half = dynamic(amd("7.2.0").answers("on-demand yes 4\n"));
    assert!(half.starts_with("dma-buf-dynamic: does not") && half.contains("RC 0x4"), "{half}");
    let unasked = dynamic(amd("7.2.0").without("/peerdma"));
    assert!(unasked.starts_with("dma-buf-dynamic: unknown"), "{unasked}");
    assert!(unasked.contains("the device was not asked"), "{unasked}");
}

#[test]
fn address_translation_is_the_firmwares_too() {
    let none = Host::good().answers("firmware data_direct\n").says_of("ats");
    assert!(none.starts_with("ats: does not") && none.contains("QUERY_HCA_CAP: ats 0"), "{none}");
    let unasked = Host::good().without("/peerdma").says_of("ats");
    assert!(unasked.starts_with("ats: unknown"), "{unasked}");
    let other = Host::good().driver(NIC, "mlx4_core", 8).says_of("ats");
    assert!(other.contains("this driver has none"), "{other}");
}

#[test]
fn a_guest_with_encrypted_memory() {
    let cpu = |vendor: &str, flags: &str| {
        let text = format!("vendor_id : {vendor}\ncpu family : 6\nflags : fpu {flags}\n");
        Host::good().without("/peerdma").file("/proc/cpuinfo", text)
    };
    let arm = |host: Host| host.file("/proc/cpuinfo", "CPU implementer : 0x41\n");
    for (host, outcome, said) in [
        (cpu("GenuineIntel", "vmx"), "works", ""),
        (cpu("GenuineIntel", "hypervisor"), "works", ""),
        (cpu("GenuineIntel", "hypervisor tdx_guest"), "unknown", "Intel TDX"),
        // a host that could run such guests is none
        (cpu("AuthenticAMD", "svm sev sev_es sev_snp"), "works", ""),
        (cpu("AuthenticAMD", "hypervisor sev"), "unknown", "AMD SEV"),
        (cpu("AuthenticAMD", "hypervisor"), "unknown", "shows no sign"),
        (
            cpu("AuthenticAMD", "hypervisor").file("/sys/devices/system/cpu/sev/vmpl", "0\n"),
            "unknown",
            "SEV-SNP",
        ),
        (
            cpu("AuthenticAMD", "hypervisor").file("/sys/devices/platform/sev-guest/uevent", ""),
            "unknown",
            "sev-guest",
        ),
        (arm(Host::good()), "works", ""),
        (
            arm(Host::good()).file("/sys/devices/platform/arm-cca-dev/uevent", ""),
            "unknown",
            "arm-cca-dev",
        ),
        (Host::good().without("/proc/cpuinfo"), "unknown", "/proc/cpuinfo could not be read"),
        // the adapter's own word, where the kernel knows to say it
        (cpu("AuthenticAMD", "hypervisor").answers("bounces no\n"), "unknown", "shows no sign"),
        (cpu("AuthenticAMD", "hypervisor").answers("bounces no\n").release("7.3.0"), "works", ""),
        (Host::good().answers("bounces yes\n"), "does not", "system_cc_shared"),
    ] {
        let says = host.says_of("peer-direct");
        let right = says.starts_with(&format!("peer-direct: {outcome}\n")) && says.contains(said);
        assert!(right, "{outcome} {said}: {says}");
        let pinned = host.says_of("dma-buf-pinned");
        let expected = if outcome == "works" { "works" } else { "unknown" };
        assert!(pinned.starts_with(&format!("dma-buf-pinned: {expected}\n")), "{said}: {pinned}");
    }
}

#[test]
fn a_gpu_that_is_held_for_a_guest_gives_its_bar() {
    let host = |release: &str, config: &str| {
        let held = amd(release).driver(GPU, "vfio-pci", 7);
        let before = held.files[&format!("/boot/config-{release}")].clone();
        held.file(&format!("/boot/config-{release}"), [&before, config.as_bytes()].concat())
    };
    let dynamic = |host: Host| host.says_of("dma-buf-dynamic");
    assert_eq!(dynamic(host("7.2.0", "CONFIG_VFIO_PCI_DMABUF=y\n")), "dma-buf-dynamic: works\n");
    let unset = dynamic(host("7.2.0", ""));
    assert!(unset.contains("use a kernel built with CONFIG_VFIO_PCI_DMABUF"), "{unset}");
    let old = dynamic(host("6.18.2", "CONFIG_VFIO_PCI_DMABUF=y\n"));
    assert!(old.contains("use a kernel of 6.19 or later"), "{old}");
    let pinned = host("7.2.0", "CONFIG_VFIO_PCI_DMABUF=y\n").says_of("dma-buf-pinned");
    assert!(pinned.contains("can only be revoked"), "{pinned}");
}

#[test]
fn device_files_that_the_user_may_not_open() {
    let host = |line: &str| {
        Host::good()
            .file(&format!("{NIC}/infiniband_verbs/uverbs3/uevent"), "")
            .file("/peerdma/probes", format!("node {line}\n"))
    };
    let closed = host("/dev/infiniband/uverbs3 failed Permission denied (os error 13)");
    let says = closed.says_of("dma-buf-pinned");
    assert!(says.contains("/dev/infiniband/uverbs3: Permission denied"), "{says}");
    assert_eq!(
        host("/dev/infiniband/uverbs3 ok 0").says_of("dma-buf-pinned"),
        "dma-buf-pinned: works\n"
    );
    let other = host("/dev/infiniband/uverbs1 failed Permission denied (os error 13)");
    assert_eq!(other.says_of("dma-buf-pinned"), "dma-buf-pinned: works\n");
}

#[test]
fn what_decides_nothing_is_told_as_it_is() {
    let host = Host::good()
        .file(
            "/boot/config-6.18.2",
            "CONFIG_SYNC_FILE=y\n# CONFIG_UDMABUF is not set\nCONFIG_DMABUF_HEAPS=y\n",
        )
        .file(
            "/peerdma/probes",
            "node /dev/udmabuf failed No such file\nnode /dev/dma_heap/system ok 0\n",
        );
    let machine = topology::of_tree(&host).unwrap().machine;
    let findings = examine(&Facts::read(&host), &machine);
    let evidence = |mechanism, what: &str| {
        let finding = findings.iter().find(|finding| finding.mechanism == mechanism).unwrap();
        let found = finding.conditions.iter().find(|condition| condition.what.contains(what));
        found.unwrap_or_else(|| panic!("{what}")).evidence.clone()
    };
    assert_eq!(evidence(Mechanism::PinnedDmaBuf, "fences"), "CONFIG_SYNC_FILE=y");
    assert_eq!(
        evidence(Mechanism::SoftwareHca, "dma-bufs of host memory"),
        "/dev/udmabuf: No such file, CONFIG_UDMABUF is not set, /dev/dma_heap/system may be opened, CONFIG_DMABUF_HEAPS=y"
    );
    assert!(evidence(Mechanism::PinnedDmaBuf, "RDMA device").ends_with("firmware 28.42"));
    let named = host.file(&format!("{NIC}/infiniband/mlx5_0/board_id"), "MT_0000000838\n");
    let findings = examine(&Facts::read(&named), &machine);
    let finding = findings.iter().find(|f| f.mechanism == Mechanism::PinnedDmaBuf).unwrap();
    assert!(finding.conditions.iter().any(|c| c.evidence.contains("28.42, MT_0000000838")));
}

#[test]
fn hints_where_acs_could_not_be_read() {
    let path = format!("{UP}/0000:19:00.0/config");
    let short = Host::good().files[&path][..64].to_vec();
    let apart = Host::good().file(&path, short);
    let says = apart.says_of("dma-buf-pinned");
    assert!(says.contains("IOMMU groups 7 and 8, which suggest redirect"), "{says}");
    let together = apart.driver(NIC, "mlx5_core", 7).says_of("dma-buf-pinned");
    assert!(together.contains("both in IOMMU group 7, which suggests no redirect"), "{together}");
    // a parameter that is there already, and did not do
    let port = |acs| space(Some((6, acs)), false);
    let told = Host::good()
        .file(&format!("{UP}/0000:19:00.0/config"), port(0x0c))
        .file(&format!("{UP}/0000:19:01.0/config"), port(0x0c))
        .file("/proc/cmdline", "ro pci=disable_acs_redir=0000:01:00.0 quiet\n");
    let says = told.says_of("dma-buf-pinned");
    assert!(says.contains("booted with pci=disable_acs_redir=0000:01:00.0"), "{says}");
}

#[test]
fn a_capture_gives_the_same_verdict_for_every_condition() {
    let release = |host: Host| {
        host.file("/proc/sys/kernel/osrelease", "6.18.2-local\n")
            .file("/boot/config-6.18.2-local", "CONFIG_PCI_P2PDMA=y\n")
    };
    let bare_peers = |mut host: Host| {
        host = host.without("/sys/kernel/mm");
        host.files.insert("/sys/kernel/mm/memory_peers/.keep".into(), Vec::new());
        host
    };
    let virtual_function = |mut host: Host| {
        host.links.insert(format!("{SIDE}/physfn"), "../0000:1b:00.0".into());
        host
    };
    let full_library = grace("6.18.2").file(
        "/usr/lib64/libmlx5.so.1",
        [b"\x7fELF\0".repeat(99), b"\0MLX5_1.1\0MLX5_1.25\0x\0".to_vec()].concat(),
    );
    let hosts = [
        Host::default(),
        Host::good(),
        grace("6.18.2"),
        full_library,
        grace("6.16.4")
            .without("/peerdma")
            .file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n"),
        amd("7.2.0"),
        amd("6.12.1").file(&format!("{GPU}/p2pmem/size"), "4096\n"),
        Host::good().without("/boot"),
        Host::good().without("/proc/self").without("/sys/kernel/mm"),
        Host::good().file("/sys/module/nvidia_peermem/version", "580.1\n"),
        release(Host::good()),
        Host::good()
            .file(
                "/proc/cpuinfo",
                "vendor_id : AuthenticAMD\ncpu family : 25\nflags : hypervisor\n",
            )
            .file("/sys/devices/system/cpu/sev/vmpl", "0\n"),
        Host::good().file("/sys/devices/platform/sev-guest/uevent", ""),
        Host::good().file("/sys/devices/virtual/misc/tdx_guest/uevent", ""),
        Host::good().file("/sys/devices/platform/arm-cca-dev/uevent", ""),
        Host::good().file(&format!("{NIC}/infiniband_verbs/uverbs3/uevent"), "").file(
            "/peerdma/probes",
            "node /dev/infiniband/uverbs3 failed EACCES\nnode /dev/udmabuf ok 0\n",
        ),
        Host::good().file(
            "/boot/config-6.18.2",
            "CONFIG_SYNC_FILE=y\nCONFIG_UDMABUF=m\nCONFIG_DMABUF_HEAPS=y\n",
        ),
        amd("7.2.0").driver(GPU, "vfio-pci", 7),
        Host::good().file("/proc/cmdline", "pci=config_acs=xx1@0000:19:00.0\n"),
        bare_peers(Host::good()),
        virtual_function(grace("6.18.2")),
    ];
    for (index, host) in hosts.into_iter().enumerate() {
        let mut home = Vec::new();
        topology::take(&host, &mut home).unwrap();
        let path = std::env::temp_dir()
            .join(format!("peerdma-doctor-{}-{index}.tar.gz", std::process::id()));
        std::fs::write(&path, &home).unwrap();
        let tree = topology::tree(&path);
        std::fs::remove_file(&path).unwrap();
        let Ok(Some(tree)) = tree else {
            assert_eq!(index, 0, "only a machine without anything makes an empty capture");
            continue;
        };
        let (there, here) = (topology::of_tree(&host).unwrap(), topology::of_tree(&*tree).unwrap());
        assert_eq!(there.machine, here.machine, "{index}");
        let (facts, home) = (Facts::read(&host), Facts::read(&*tree));
        assert_eq!(examine(&facts, &there.machine), examine(&home, &here.machine), "{index}");
    }
}

#[test]
fn data_direct_with_other_acs_gets_the_exact_parameter() {
    let host =
        grace("6.18.2").file(&format!("{UP}/0000:19:02.0/config"), space(Some((6, 0x1d)), false));
    let said = host.says_of("data-direct");
    assert!(
        said.contains(
            "pci=config_acs=xx110x1@0000:19:02.0;xx101x1@0000:19:00.0;xx111x0@0000:17:00.0"
        ),
        "{said}"
    );
}

#[test]
fn what_the_devices_answer_goes_before_versions() {
    let host = Host::good().file("/proc/version", "Linux version 6.18.2.el9 (gcc)\n");
    let machine = topology::of_tree(&host).unwrap().machine;
    let pinned = |probe: Probe| {
        let mut facts = Facts::read(&host);
        facts.probes = vec![probe];
        let findings = examine(&facts, &machine);
        findings.into_iter().find(|f| f.mechanism == Mechanism::PinnedDmaBuf).unwrap()
    };
    let probe = |registers, loopback| Probe {
        device: "mlx5_0".into(),
        registers_dmabuf: Some((registers, "it was asked".into())),
        loopback,
        ..Probe::default()
    };
    let works = pinned(probe(true, Some(Ok(65536))));
    assert_eq!(works.outcome(), Outcome::Works);
    let evidence: Vec<&str> = works.conditions.iter().map(|c| c.evidence.as_str()).collect();
    assert!(evidence.contains(&"mlx5_0: it was asked"), "{evidence:?}");
    assert!(evidence.iter().any(|e| e.ends_with("wrote 65536 bytes to itself")), "{evidence:?}");
    assert_eq!(pinned(probe(false, None)).decisive().unwrap().evidence, "mlx5_0: it was asked");
    let mute = pinned(probe(true, Some(Err("no port is active".into()))));
    assert_eq!(mute.outcome(), Outcome::DoesNot);
    assert!(mute.decisive().unwrap().evidence.ends_with("no port is active"));
}

#[test]
fn the_software_hca_is_judged_by_its_proof() {
    let machine = topology::of_tree(&Host::default()).unwrap().machine;
    let software = |proof| {
        let mut facts = Facts::read(
            &Host::default()
                .file("/proc/modules", "rdma_rxe 1 0 - Live\n")
                .file("/proc/cpuinfo", "cpu family : 6\n"),
        );
        facts.software_hca = proof;
        examine(&facts, &machine).pop().unwrap().outcome()
    };
    assert_eq!(software(None), Outcome::Unknown, "a module may hold the port");
    assert_eq!(software(Some(Ok(()))), Outcome::Works);
    assert_eq!(software(Some(Err("port 4791 is taken".into()))), Outcome::DoesNot);
}
