//! What the doctor says of hosts whose trouble is known, as a person would read it.

mod host;

use doctor::{ConditionState, Facts, Mechanism, Outcome, Probe, examine};
use host::{GPU, Host, NIC, UP, amd, grace, space};

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
        "dma-buf-pinned: does not\n  the RDMA core registers dma-bufs (kernel 5.12)\n  \
         kernel 5.4.0-generic\n  use a kernel of 5.12 or later\n"
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
        "dma-buf-pinned: does not\n  the adapter's driver registers dma-bufs\n  \
         driver mlx4_core, kernel 6.18.2\n  \
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
        "dma-buf-pinned: does not\n  PCIe carries the adapter's requests to the GPU\n  \
         P2PDMA NOT_SUPPORTED, PIX: host bridge pci0000:17 (8086:352a) is not on the kernel's list \
         of those that route between ports\n  boot with \
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
    // redirect with direct translated peer traffic: only translated requests turn round at the
    // switch
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
        "peer-direct: does not\n  a peer memory client knows the GPU\n  \
         /sys/kernel/mm/memory_peers: other, though nvidia_peermem is loaded: it was built without \
         the peer symbols\n  install DOCA-OFED first, then rebuild the NVIDIA modules against it\n"
    );
    let stock = Host::good().without("/sys/kernel/mm");
    assert!(stock.says_of("peer-direct").contains("DOCA-OFED"));
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
    // no buffer came to be registered: that is reported as well, for the way of this GPU's maker
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
        "/dev/udmabuf: No such file, CONFIG_UDMABUF is not set, /dev/dma_heap/system may be \
         opened, CONFIG_DMABUF_HEAPS=y"
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

/// A kernel that has no modules has no list of them either.
#[test]
fn without_the_rdma_core_nobody_else_holds_the_port() {
    let machine = topology::of_tree(&Host::default()).unwrap().machine;
    let outcome = |rdma_core| {
        let mut facts = Facts::read(&Host::default().file("/proc/cpuinfo", "cpu family : 6\n"));
        facts.rdma_core = rdma_core;
        examine(&facts, &machine).pop().unwrap().outcome()
    };
    assert_eq!(outcome(None), Outcome::Unknown);
    assert_eq!(outcome(Some(true)), Outcome::Unknown, "Soft-RoCE may be built in");
    assert_eq!(outcome(Some(false)), Outcome::Works);
}

/// Both ways of noticing suffice; only the evidence tells them apart.
#[test]
fn who_tells_of_registered_memory_that_goes_is_named() {
    let machine = topology::of_tree(&Host::default()).unwrap().machine;
    let told = |watches| {
        let mut facts = Facts::read(&Host::default());
        facts.kernel_watches = watches;
        let mut conditions = examine(&facts, &machine).pop().unwrap().conditions.into_iter();
        let what = "somebody tells when registered memory goes";
        let found = conditions.find(|condition| condition.what == what);
        found.map(|condition| (condition.state, condition.evidence, condition.remedy))
    };
    assert_eq!(told(None), None, "nobody asked the kernel");
    let holds = |evidence: &str| Some((ConditionState::Holds, evidence.to_owned(), String::new()));
    let kernel = "the kernel (userfaultfd), and interposed calls before it";
    assert_eq!(told(Some(Ok(()))), holds(kernel));
    let interposed = "interposed calls alone: userfaultfd: Operation not permitted (os error 1); \
                      bare system calls go unseen, so deregister before you unmap";
    assert_eq!(told(Some(Err("Operation not permitted (os error 1)".into()))), holds(interposed));
}
