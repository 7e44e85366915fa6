//! The RAM disk of a guest that drives our adapters: the drivers' modules, rdma-core's user space,
//! programs to try them with.

use crate::command::find_program;
use crate::error::Result;
use crate::guest::AGENT;
use crate::kernel::Kernel;
use crate::ram_disk::RamDisk;
use crate::store::Store;
use std::path::Path;

/// Modules in the order they are wanted; those that a kernel has built in or lacks are passed over.
const MODULES: [&str; 13] = [
    "virtio_pci",
    "virtio_net",
    "mlx5_core",
    "ib_uverbs",
    "mlx5_ib",
    "ib_umad",
    "ib_ucm",
    "rdma_ucm",
    "ib_ipoib",
    "udmabuf",
    "vfio-pci",
    "vfio_iommu_type1",
    "8021q",
];

/// Programs that are added where this machine has them.
const PROGRAMS: [&str; 35] = [
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ibv_xsrq_pingpong",
    "ibv_asyncwatch",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "rping",
    "udaddy",
    "ucmatose",
    "mckey",
    "rstream",
    "saquery",
    "sminfo",
    "smpquery",
    "ibnetdiscover",
    "cmtime",
    "rdma",
    "devlink",
    "ip",
    "lspci",
    "setpci",
    "ethtool",
    "strace",
    "timeout",
    // For files of sysfs in a program that is not statically linked, as busybox is.
    "cat",
];

/// A RAM disk for a guest with our adapters, which a [`crate::Guest`] can talk to.
///
/// # Errors
/// rdma-core's driver for mlx5 or busybox is not installed here, or a file cannot be read.
pub fn rdma_disk(kernel: &Kernel) -> Result<RamDisk> {
    let mut disk = RamDisk::new(AGENT)?;
    disk.modules(kernel, &MODULES)?;
    with_programs(disk)
}

/// As [`rdma_disk`], for a guest with a virtual GPU too, whose driver is built here
/// ([`RamDisk::modules_with_gpu`]).
///
/// # Errors
/// Those of [`rdma_disk`] and of [`RamDisk::modules_with_gpu`].
pub fn rdma_gpu_disk(kernel: &Kernel, store: &Store) -> Result<RamDisk> {
    let mut disk = RamDisk::new(AGENT)?;
    disk.modules_with_gpu(kernel, &MODULES, store)?;
    with_programs(disk)
}

fn with_programs(mut disk: RamDisk) -> Result<RamDisk> {
    for program in PROGRAMS {
        if find_program(program).is_ok() {
            disk.program(program)?;
        }
    }
    disk.verbs_driver("mlx5")?;
    let names = Path::new("/usr/share/misc/pci.ids");
    if names.is_file() {
        disk.tree(names)?;
    }
    Ok(disk)
}
