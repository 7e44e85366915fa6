//! The next Debian's rdma-core in a guest, beside this machine's: in a root of its own, which
//! programs are run in.

use super::Booted;
use std::path::Path;
use vm::RamDisk;

/// In the guest.
const ROOT: &str = "/debian";

/// What programs need of the other root file system.
const NAMES: [&str; 4] = [
    "usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so",
    "usr/lib/x86_64-linux-gnu/libmlx5.so.1",
    "usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "etc/libibverbs.d/mlx5.driver",
];

/// Gives a guest the rdma-core of this root ([`crate::next_debian`]).
///
/// # Errors
/// A file cannot be read.
pub fn with_next_rdma(disk: &mut RamDisk, debian: &Path) -> vm::Result<()> {
    disk.of_root(debian, ROOT, &NAMES)
}

impl Booted {
    /// Has programs of `/usr/bin` run in the next Debian's root.
    ///
    /// # Panics
    /// When the guest has none ([`with_next_rdma`]), or lacks a program.
    pub fn prepare_next_rdma(&self, programs: &[&str]) {
        let bind = |folder: &str| format!("mount -o bind /{folder} {ROOT}/{folder}");
        let binds = ["proc", "sys", "dev", "tmp"].map(bind).join(" && ");
        let programs = programs.join(" ");
        self.output(&format!(
            "cd {ROOT} && mkdir -p proc sys dev tmp usr/bin && {binds} && \
             cd /usr/bin && cp {programs} {ROOT}/usr/bin"
        ));
    }

    /// A command that runs a prepared program there.
    pub fn by_next_rdma(&self, line: &str) -> String {
        format!("chroot {ROOT} /usr/bin/{line}")
    }
}
