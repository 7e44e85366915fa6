//! A process whose device nobody can look into: its directory is of no version that there is.

use anyhow::Result;
use registry::{Client, Identity, Role};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::AsFd as _;

fn main() -> Result<()> {
    let directory = memfd_create("directory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&directory, 1 << 20)?;
    fcntl_add_seals(&directory, SealFlags::SHRINK)?;
    let registry = Client::connect(Role::Member)?;
    let who = Identity { device: "peerdma7".into(), guid: 7, comm: "\u{1b}[2Junread".into() };
    let _grant = registry.join(&who, directory.as_fd())?;
    println!("joined");
    loop {
        std::thread::park();
    }
}
