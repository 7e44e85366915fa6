//! The guest's RAM disk: busybox, the RoCE modules of its kernel and the verbs programs of this
//! machine with the libraries they need.

use anyhow::{Result, bail};
use std::path::Path;
use vm::{Kernel, RamDisk};

/// Distribution packages that the lab needs.
pub const PACKAGES: &[&str] = &["qemu-system-x86", "busybox-static", "xz-utils", "zstd"];

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "crc32_pclmul",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "vgem",
    "veth",
    "8021q",
];

const PROGRAMS: &[&str] = &[
    "ip",
    "rdma",
    "timeout",
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "rping",
    // For files of sysfs in a program that is not statically linked, as busybox is.
    "cat",
];

const INIT: &str = include_str!("init.sh");

/// Writes the RAM disk for a kernel to the file `out`. The programs `extra` are added to it, in
/// `/usr/bin`.
///
/// # Errors
/// What is missing, in words.
pub(super) fn build(kernel: &Kernel, extra: &[&Path], out: &Path) -> Result<()> {
    let mut disk = RamDisk::new(INIT)?;
    let modules = disk.modules(kernel, MODULES)?;
    if !modules.iter().any(|name| name == "rdma_rxe") {
        bail!("the kernel's packages have no rdma_rxe module");
    }
    for program in PROGRAMS {
        disk.program(program)?;
    }
    // Only the driver that is needed: libibverbs complains about each one that is named and
    // missing.
    disk.verbs_driver("rxe")?;
    for program in extra {
        disk.own_program(program)?;
    }
    disk.write(out)?;
    Ok(())
}
