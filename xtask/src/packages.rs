//! Distribution packages that the tests need: installed where that is possible, named where it is
//! not.

use anyhow::{Result, bail};
use std::process::Command;

/// Package, and what is skipped without it.
const NEEDED: &[(&str, &str)] = &[
    ("gcc", "the layout check of the C structures"),
    ("gcc-aarch64-linux-gnu", "everything for 64-bit ARM"),
    ("libc6-dev-arm64-cross", "everything for 64-bit ARM"),
    ("qemu-user", "what runs on 64-bit ARM"),
    ("make", "the virtual GPU's driver, libfabric's own tests"),
    ("libc6-dev", "the layout check of the C structures"),
    ("libibverbs-dev", "the layout check of the C structures"),
    ("librdmacm-dev", "the layout check of the C structures, programs that connect by address"),
    ("rdma-core", "the conformance suite"),
    ("ibverbs-providers", "the lab"),
    ("ibverbs-utils", "pingpongs and device listings"),
    ("rdmacm-utils", "programs of librdmacm and the lab"),
    ("infiniband-diags", "the subnet of guests"),
    ("perftest", "perftest"),
    ("python3", "the conformance suite"),
    ("python3-pyverbs", "the conformance suite"),
    ("python3-venv", "programs from Python wheels"),
    ("python3-dev", "the conformance suite's dma-buf tests"),
    ("cython3", "the conformance suite's dma-buf tests"),
    ("fio", "fio's RDMA engine"),
    ("ucx-utils", "UCX programs"),
    ("libucx-dev", "UCX's examples"),
    ("libfabric-bin", "libfabric programs"),
    ("autoconf", "libfabric's own tests, perftest with CUDA"),
    ("automake", "libfabric's own tests, perftest with CUDA"),
    ("libtool", "libfabric's own tests, perftest with CUDA"),
    ("libibumad-dev", "perftest with CUDA"),
    ("libpci-dev", "perftest with CUDA"),
    ("openmpi-bin", "Open MPI"),
    ("libopenmpi-dev", "Open MPI"),
    ("mpich", "MPICH"),
    ("libmpich-dev", "MPICH"),
    ("qperf", "qperf"),
    ("iperf3", "iperf3 beside the wire in `bench`"),
    ("librpma-dev", "librpma"),
    ("libgloo-dev", "gloo"),
    ("dapl2-utils", "uDAPL"),
    ("g++", "gloo"),
    ("curl", "GitHub's workflow"),
    ("libcurl4", "Mooncake"),
    ("libnuma1", "Mooncake"),
    ("debootstrap", "programs of the next Debian release"),
    ("iproute2", "namespaces and the lab"),
    ("nftables", "networks that mark packets, or lose some"),
    ("ethtool", "segments that a network interface joins or cuts"),
    ("util-linux", "runs as a plain user"),
    ("procps", "process tests"),
    ("valgrind", "instruction counts"),
    ("tshark", "captures and their dissection"),
    ("qemu-system-x86", "the lab"),
    ("busybox-static", "the lab"),
    ("xz-utils", "the lab, libfabric's own tests"),
    ("zstd", "the lab"),
    ("pciutils", "the judgement of topology and functions by the kernel"),
    ("binutils", "the symbol check"),
];

/// Installs missing packages when `install` is set and the user may; otherwise names them and what
/// is skipped.
///
/// # Errors
/// When an installation that was possible fails.
pub fn ensure(install: bool) -> Result<()> {
    let missing: Vec<_> = NEEDED.iter().filter(|(name, _)| !installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let Some(mut apt) = install.then(apt_get).flatten() else {
        eprintln!("Not installed and not installable here (needs root or sudo):");
        for (name, what) in missing {
            eprintln!("  {name:<20} without it {what} are skipped");
        }
        eprintln!("  To install: apt-get install {}", names.join(" "));
        return Ok(());
    };
    eprintln!("Installing {}", names.join(" "));
    let mut update = apt_get().unwrap_or_else(|| Command::new("apt-get"));
    if !update.args(["update", "-qq"]).status()?.success() {
        eprintln!("apt-get update failed; trying with what is known");
    }
    let status = apt
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-y", "-qq", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0"])
        .args(&names)
        .stdout(std::process::Stdio::null())
        .status()?;
    if !status.success() {
        bail!("apt-get install failed; run it by hand: apt-get install {}", names.join(" "));
    }
    Ok(())
}

fn installed(package: &str) -> bool {
    let output =
        Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).output();
    output.is_ok_and(|output| output.stdout == b"installed")
}

/// `apt-get` as root, or through sudo that asks nothing.
fn apt_get() -> Option<Command> {
    if system::is_root() {
        return Some(Command::new("apt-get"));
    }
    let sudo = Command::new("sudo").args(["-n", "true"]).status();
    sudo.is_ok_and(|status| status.success()).then(|| {
        let mut command = Command::new("sudo");
        command.args(["-n", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        command
    })
}
