//! What the doctor says of Data Direct, on hosts that have all it needs and on hosts that lack one
//! thing.

mod host;

use doctor::{Facts, Mechanism, Outcome, examine};
use host::{ANSWERS, GPU, NIC, SIDE, UP, grace, space, vpd};

#[test]
fn data_direct_with_and_without_its_fix() {
    assert_eq!(grace("6.18.2").says_of("data-direct"), "data-direct: works\n");
    assert!(grace("6.18.2").conditions("data-direct").contains("(iova) is page-aligned"));
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
        (
            good().answers(&format!("data-direct {SIDE}\n{ANSWERS}")).file(
                "/boot/config-6.18.2",
                "CONFIG_INFINIBAND_USER_MEM=y\n# CONFIG_DMA_SHARED_BUFFER is not set\n",
            ),
            "does not",
            "CONFIG_DMA_SHARED_BUFFER is not set",
        ),
        (grace("6.14.0-1015-nvidia-64k"), "unknown", "wrong page size"),
        (grace("6.17.0-1008-nvidia-64k"), "unknown", "wrong page size"),
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
    let xml = concat!(
        r#"<system version="1"><cpu numaid="0" arch="arm64">"#,
        r#"<pci busid="0000:01:00.0" class="0x060400">
        <pci busid="0000:03:00.0" class="0x030200" vendor="0x10de" device="0x2941"/>
        <pci busid="0000:04:00.0" class="0x020700" vendor="0x15b3" device="0x1023"/>"#,
        r#"</pci></cpu></system>"#
    );
    let machine = topology::parse(xml.as_bytes(), "x").unwrap().machine;
    let findings = examine(&Facts::default(), &machine);
    let outcome = |m| findings.iter().find(|f| f.mechanism == m).unwrap().outcome();
    assert_eq!(outcome(Mechanism::DataDirect), Outcome::Unknown);
    assert_eq!(outcome(Mechanism::SoftwareHca), Outcome::Unknown);
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
