//! A capture, taken from a host and read elsewhere, says what the host itself says: of every
//! condition, where it holds and where it does not.

mod host;

use doctor::{ConditionState, Facts, examine};
use flate2::Compression;
use flate2::write::GzEncoder;
use host::{GPU, Host, NIC, SIDE, UP, amd, grace, space, vpd};
use std::collections::BTreeSet;
use std::io::Write;

/// Conditions that a host cannot fail: notes, and what only a live host is asked.
const CERTAIN: [&str; 4] = [
    "dma-bufs of host memory, for programs that ask for them (udmabuf, dma-heap)",
    "fences of a buffer for programs that ask for them (DMA_BUF_IOCTL_EXPORT_SYNC_FILE)",
    "the RDMA core registers dma-bufs",
    "the address that peers use (iova) is page-aligned, and the access is not on demand",
];

/// Every condition that fails, or is unknown, on a host below: of one that does nowhere, nobody
/// would notice that a capture lacks its facts.
const DOUBTED: [&str; 49] = [
    "ACS lets the two meet at their switch",
    "ACS of the switch between suits translated requests with relaxed ordering",
    "Address Translation Services are on in the adapter",
    "CONFIG_DEVICE_PRIVATE is set",
    "CONFIG_DMABUF_MOVE_NOTIFY is set",
    "CONFIG_DMA_SHARED_BUFFER is set",
    "CONFIG_HMM_MIRROR is set",
    "CONFIG_INFINIBAND_ON_DEMAND_PAGING is set",
    "CONFIG_INFINIBAND_USER_MEM is set",
    "CONFIG_PCI_P2PDMA is set",
    "CONFIG_VFIO_PCI_DMABUF is set",
    "CONFIG_ZONE_DEVICE is set",
    "CUDA exports buffers through PCIe (12.8, driver 570.26)",
    "GPU and Data Direct function are in one IOMMU group",
    "Linux on x86-64 or 64-bit ARM",
    "PCIe carries the adapter's requests to the GPU",
    "UDP port 4791 is free",
    "a BAR shows the GPU's memory",
    "a fault after a move is served (kernel 7.2)",
    "a peer memory client knows the GPU",
    "an IOMMU translates for the adapter",
    "firmware lets a key stand for another one (HCA_CAP.crossing_vhca_mkey)",
    "firmware offers it, and the driver gave the function to the adapter (HCA_CAP.data_direct, \
     query_vuid)",
    "mlx5 has Data Direct (kernel 6.12)",
    "mlx5_ib drives the Data Direct function",
    "rdma-core offers it (libmlx5 with MLX5_1.25)",
    "the Data Direct function is below the GPU's switch",
    "the Data Direct function is the adapter's (equal VUIDs)",
    "the GPU's driver exports video memory that stays there when pinned",
    "the GPU's driver moves exported buffers and tells importers",
    "the GPU's memory is coherent with the processor's (Grace)",
    "the RDMA core registers dma-bufs (kernel 5.12)",
    "the adapter has a Data Direct function",
    "the adapter is a ConnectX-8 or later",
    "the adapter shows an RDMA device",
    "the adapter shows an RDMA device that this user may open",
    "the adapter's driver gives a buffer back when it is revoked",
    "the adapter's driver lets a registered buffer move (mlx5 does)",
    "the adapter's driver registers dma-bufs",
    "the adapter's firmware gives keys translated addresses (HCA_CAP.ats)",
    "the adapter's hardware and firmware page on demand (odp_caps)",
    "the kernel gives peers the address of a device-private page (the patch series of 2024 and \
     2025)",
    "the kernel has not the fault of 6.16 and 6.17 that gives Data Direct keys a wrong page size",
    "the kernel was not told to leave ATS off",
    "the kernel was not told to leave the IOMMU off",
    "the kernel's RDMA core takes peer memory clients (no released kernel does)",
    "the machine is no guest with encrypted memory (SEV, TDX, CCA), or the adapter reaches it \
     nevertheless",
    "the user may lock as much memory as it registers",
    "vfio-pci exports a BAR as a dma-buf to who holds the GPU (kernel 6.19)",
];

/// Two nodes in as many sockets, the adapter on the second by its processors.
fn two_sockets(host: Host) -> Host {
    host.file("/sys/devices/system/node/node0/cpumap", "00000000,0000000f\n")
        .file("/sys/devices/system/node/node0/distance", "10 21\n")
        .file("/sys/devices/system/node/node1/cpumap", "00000000,000000f0\n")
        .file("/sys/devices/system/node/node1/distance", "21 10\n")
        .file("/sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n")
        .file("/sys/devices/system/cpu/cpu4/topology/physical_package_id", "1\n")
        .file(&format!("{NIC}/local_cpus"), "00000000,000000f0\n")
        .file(&format!("{GPU}/numa_node"), "0\n")
}

/// The Data Direct function below another root port.
fn far_side(mut host: Host) -> Host {
    let far = "/sys/devices/pci0000:80/0000:80:00.0/0000:81:00.0";
    let port = far.rsplit_once('/').map_or("", |(port, _)| port);
    let name = SIDE.rsplit('/').next().unwrap_or_default().to_owned();
    host.links.remove(&format!("/sys/bus/pci/devices/{name}"));
    host.function(port, (0x8086, 0x352a), 0x060400, space(Some((4, 0x1d)), false))
        .function(far, (0x15b3, 0x2100), 0x080100, space(None, true))
        .file(&format!("{far}/vpd"), vpd("one"))
        .driver(far, "mlx5_ib", 9)
}

/// The configuration that a kernel shows itself.
fn packed(host: Host, config: &str) -> Host {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(config.as_bytes()).unwrap();
    host.file("/proc/config.gz", packed.finish().unwrap())
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
        amd("6.18.2").driver(GPU, "vfio-pci", 7),
        Host::good().file("/proc/cmdline", "pci=config_acs=xx1@0000:19:00.0\n"),
        bare_peers(Host::good()),
        virtual_function(grace("6.18.2")),
        two_sockets(Host::good()),
        // the configuration that a kernel shows itself
        packed(Host::good().without("/boot"), "CONFIG_PCI_P2PDMA=y\n"),
        packed(Host::good().without("/boot"), "CONFIG_INFINIBAND_USER_MEM=m\n"),
        Host::good().without("/peerdma").release("5.4.0-generic"),
        Host::good().without("/peerdma").driver(NIC, "mlx4_core", 8),
        Host::good().without(&format!("{NIC}/infiniband")),
        Host::good().without(&format!("{GPU}/resource")),
        Host::good().file("/proc/modules", "rdma_rxe 1 0 - Live 0x0\n"),
        Host::good().file("/proc/cmdline", "pci=noats intel_iommu=off\n"),
        Host::good().file("/sys/kernel/iommu_groups/8/type", "identity\n"),
        Host::good().function(NIC, (0x15b3, 0x1021), 0x020700, space(None, false)),
        amd("7.2.0").driver(GPU, "vfio-pci", 7).driver(NIC, "bnxt_en", 8),
        grace("6.11.0"),
        grace("6.18.2").without(&format!("{NIC}/vpd")),
        grace("6.18.2").driver(GPU, "nvidia", 9).driver(SIDE, "vfio-pci", 7),
        grace("6.18.2").file("/usr/lib64/libmlx5.so.1", b"\0MLX5_1.24\0        "),
        grace("6.18.2").file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n",
        ),
        grace("6.18.2").file(&format!("{UP}/0000:19:02.0/config"), space(Some((6, 0)), false)),
        grace("6.18.2").file("/proc/cpuinfo", "vendor_id : GenuineIntel\ncpu family : 6\n"),
        far_side(grace("6.18.2")),
        Host::good().file("/proc/cpuinfo", "cpu : POWER9, altivec supported\n"),
    ];
    let (mut doubted, mut held) = (BTreeSet::new(), BTreeSet::new());
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
        let findings = examine(&facts, &there.machine);
        assert_eq!(findings, examine(&home, &here.machine), "{index}");
        for condition in findings.into_iter().flat_map(|finding| finding.conditions) {
            let holds = condition.state == ConditionState::Holds;
            if holds { &mut held } else { &mut doubted }.insert(condition.what);
        }
    }
    let certain: Vec<&str> = held.difference(&doubted).map(String::as_str).collect();
    assert_eq!(certain, CERTAIN, "a condition that no host here fails");
    let doubted: Vec<&str> = doubted.iter().map(String::as_str).collect();
    assert_eq!(doubted, DOUBTED, "a condition that no host here fails any more, or a new one");
}
