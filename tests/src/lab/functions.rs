//! Machines with functions of ours: the newest kernel in a QEMU that takes vfio-user functions.

use anyhow::Result;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use vm::{AGENT, Guest, Kernel, Machine, Qemu, RamDisk, Store};

const BOOT_LIMIT: Duration = Duration::from_secs(240);
const LIMIT: Duration = Duration::from_secs(120);

/// Where kernels and QEMU are kept between runs.
fn store() -> Store {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/lab");
    // Past the capture of the test's output: somebody waits.
    Store::at(&folder, |what| {
        let _ = writeln!(std::io::stderr(), "lab: {what}");
    })
}

/// The kernel of this machine's distribution.
///
/// # Errors
/// Why it cannot be had, in words. A test skips with it.
pub fn own_kernel() -> Result<Kernel> {
    Ok(Kernel::of_distribution(&store())?)
}

/// The newest kernel that Debian backports.
///
/// # Errors
/// Why it cannot be had, in words. A test skips with it.
pub fn newest_kernel() -> Result<Kernel> {
    // Tried once: where there is no network, to find that out takes time.
    static TRIED: OnceLock<Result<Kernel, String>> = OnceLock::new();
    let get = || {
        let kernel = Kernel::newest(&store());
        kernel.map_err(|error| format!("no newer kernel for the lab's guest: {error}"))
    };
    TRIED.get_or_init(get).clone().map_err(anyhow::Error::msg)
}

/// What machines with functions are made of.
pub struct Lab {
    qemu: Qemu,
    kernel: Kernel,
    folder: tempfile::TempDir,
}

impl Lab {
    /// The newest kernel, and a QEMU that takes functions.
    ///
    /// # Errors
    /// Why one of them cannot be had, in words. A test skips with it.
    pub fn new() -> Result<Lab> {
        static TRIED: OnceLock<Result<Qemu, String>> = OnceLock::new();
        let get = || Qemu::with_vfio_user(&store()).map_err(|error| error.to_string());
        let qemu = TRIED.get_or_init(get).clone().map_err(anyhow::Error::msg)?;
        Ok(Lab { qemu, kernel: newest_kernel()?, folder: tempfile::tempdir()? })
    }

    /// The same where adapters can be served in a namespace of their own.
    ///
    /// # Errors
    /// Why they cannot, in words. A test skips with it.
    pub fn for_adapters() -> Result<Lab> {
        let lab = Lab::new()?;
        anyhow::ensure!(crate::is_root(), "a namespace for the adapter needs root");
        Ok(lab)
    }

    /// The same with the kernel of this machine's distribution.
    ///
    /// # Errors
    /// Why one of them cannot be had, in words. A test skips with it.
    pub fn of_distribution() -> Result<Lab> {
        Ok(Lab { kernel: own_kernel()?, ..Lab::new()? })
    }

    /// A path for a function's socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A machine whose guest has these modules loaded, programs of this machine and programs of the
    /// tests; `more` adds to its RAM disk.
    ///
    /// # Errors
    /// Something of it is not installed here.
    pub fn machine(
        &self,
        modules: &[&str],
        programs: &[&str],
        own: &[&Path],
        more: impl FnOnce(&mut RamDisk) -> vm::Result<()>,
    ) -> Result<Machine> {
        let mut disk = RamDisk::new(AGENT)?;
        disk.modules(&self.kernel, modules)?;
        for program in programs {
            disk.program(program)?;
        }
        for program in own {
            disk.own_program(program)?;
        }
        more(&mut disk)?;
        let file = self.folder.path().join("initrd");
        disk.write(&file)?;
        Ok(Machine::new(&self.kernel.image, &file))
    }

    /// A machine for our adapters, with their drivers and the verbs programs of this machine.
    ///
    /// # Errors
    /// Something of it is not installed here.
    pub fn rdma_machine(&self) -> Result<Machine> {
        self.rdma_machine_with(|_| Ok(()))
    }

    /// As [`Lab::rdma_machine`]; `more` adds to its RAM disk.
    ///
    /// # Errors
    /// Something of it is not installed here.
    pub fn rdma_machine_with(
        &self,
        more: impl FnOnce(&mut RamDisk) -> vm::Result<()>,
    ) -> Result<Machine> {
        let file = self.folder.path().join("rdma-initrd");
        let mut disk = vm::rdma_disk(&self.kernel)?;
        more(&mut disk)?;
        disk.write(&file)?;
        Ok(Machine::new(&self.kernel.image, &file))
    }

    /// As [`Lab::rdma_machine`], with the driver of the virtual GPU and programs of the tests.
    ///
    /// # Errors
    /// Something of it is not installed here, or what the driver is built with cannot be had.
    pub fn gpu_machine(&self, own: &[&Path]) -> Result<Machine> {
        self.gpu_machine_with(|disk| own.iter().try_for_each(|program| disk.own_program(program)))
    }

    /// As [`Lab::rdma_machine_with`], with the driver of the virtual GPU.
    ///
    /// # Errors
    /// Something of it is not installed here, or what the driver is built with cannot be had.
    pub fn gpu_machine_with(
        &self,
        more: impl FnOnce(&mut RamDisk) -> vm::Result<()>,
    ) -> Result<Machine> {
        let mut disk = vm::rdma_gpu_disk(&self.kernel, &store())?;
        more(&mut disk)?;
        let file = self.folder.path().join("gpu-initrd");
        disk.write(&file)?;
        Ok(Machine::new(&self.kernel.image, &file))
    }

    /// A user's cache in which `peerdma vm` finds what the lab has fetched.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn as_cache() -> tempfile::TempDir {
        let cache = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(cache.path().join("peerdma")).expect("a folder");
        let folder = store().folder().canonicalize().expect("the lab's folder");
        std::os::unix::fs::symlink(folder, cache.path().join("peerdma/vm")).expect("a link");
        cache
    }

    /// Boots it.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn boot(&self, machine: &Machine) -> Booted {
        Booted(boot(&self.qemu, machine).unwrap_or_else(|error| panic!("{error}")))
    }
}

/// Boots a machine, anew where another boot is as good.
///
/// # Errors
/// It does not come up.
pub fn boot(qemu: &Qemu, machine: &Machine) -> vm::Result<Guest> {
    let once = || Guest::boot(qemu, machine, BOOT_LIMIT);
    let is_final = |booted: &vm::Result<Guest>| {
        booted.as_ref().err().is_none_or(|error| !super::is_of_emulation(error))
    };
    (1..super::BOOTS).map(|_| once()).find(is_final).unwrap_or_else(once)
}

/// A guest of which a test expects that it answers.
pub struct Booted(pub Guest);

impl Booted {
    /// Has it restart itself in a machine that stays.
    ///
    /// # Panics
    /// When it does not come up again.
    pub fn restart(&mut self) {
        if let Err(error) = self.0.restart(BOOT_LIMIT) {
            panic!("{error}");
        }
    }

    /// What a script prints, and its exit status.
    ///
    /// # Panics
    /// When the guest does not answer in time.
    pub fn script(&self, script: &str) -> (i32, String) {
        let mut said = Vec::new();
        let status = self.0.run(script, LIMIT, |bytes| said.extend_from_slice(bytes));
        let said = String::from_utf8_lossy(&said).into_owned();
        match status {
            Ok(status) => (status, said),
            Err(error) => panic!("{script}\n{said}\n{error}"),
        }
    }

    /// What a script that must succeed prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn output(&self, script: &str) -> String {
        let (status, said) = self.script(script);
        assert_eq!(status, 0, "{script}\n{said}\n{}", self.0.log());
        said
    }

    /// What both ends of a program say in one guest: the second gets the address of the first.
    ///
    /// # Panics
    /// When either fails.
    pub fn converse(&self, line: &str) -> String {
        let script = format!(
            "{line} > /tmp/first 2>&1 & \
             until netstat -ltn | grep -q :18515; do usleep 50000; done; \
             {line} localhost && wait $! && cat /tmp/first || {{ cat /tmp/first; exit 1; }}"
        );
        for _ in 0..2 {
            let (status, said) = self.script(&script);
            // perftest compares two clocks first, which an emulated processor that is held up
            // between its looks at them lets differ.
            if status == 0 || !said.contains("Correlation coefficient") {
                assert_eq!(status, 0, "{script}\n{said}\n{}", self.0.log());
                return said;
            }
        }
        self.output(&script)
    }

    /// Fails if the adapter's drivers, or the kernel as a whole, warned of anything.
    ///
    /// # Panics
    /// When they did.
    pub fn assert_drivers_quiet(&self) {
        let log = self.output("dmesg -r | grep '^<[0-4]>' | grep -E 'mlx5|ib0|ib_|rdma' || true");
        assert!(log.is_empty(), "{log}");
        self.assert_quiet();
    }

    /// Fails if the kernel warned of anything.
    ///
    /// # Panics
    /// When it did.
    pub fn assert_quiet(&self) {
        if let Some(complaint) = self.complaint() {
            panic!("{complaint}");
        }
    }

    /// The first of which the kernel warned, and its whole log.
    pub fn complaint(&self) -> Option<String> {
        let log = self.output("dmesg");
        let bad =
            ["WARNING:", "BUG:", "Oops", "Call Trace", "UBSAN", "KASAN", "general protection"];
        // What it thinks of the processor.
        let mut lines = log.lines().filter(|line| !line.contains("/hw-vuln/"));
        let worst = lines.find(|line| bad.iter().any(|word| line.contains(word)))?;
        Some(format!("{worst}\n{log}"))
    }
}
