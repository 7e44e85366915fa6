//! The lab: a distribution kernel, this one's or a newer one, in QEMU with the kernel's own RoCE
//! driver, joined to a namespace by a tap interface.
//!
//! Software emulation, so it needs no hardware virtualisation; the guest's user space is up in
//! seconds. Addresses are real on both sides: translation between them would break the ICRC. The
//! guest runs shell scripts sent to it over TCP.

mod functions;
mod image;
mod next_rdma;

use crate::{Finished, Namespace, Run};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub use functions::{Booted, Lab, boot, newest_kernel, own_kernel};
pub use image::PACKAGES;
pub use next_rdma::with_next_rdma;
pub use vm::Kernel;

/// IPv4 address of the guest.
pub const GUEST_V4: &str = "198.18.7.2";
/// IPv6 address of the guest.
pub const GUEST_V6: &str = "fd07::2";
/// IPv4 address of the host's end.
pub const HOST_V4: &str = "198.18.7.1";
/// IPv6 address of the host's end.
pub const HOST_V6: &str = "fd07::1";

const SHELL_PORT: u16 = 2323;
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How long one script may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A running guest and the namespace on the other end of its wire. Both end with the value.
pub struct Guest {
    qemu: Child,
    folder: TempDir,
    namespace: Namespace,
}

/// What one run of `peerdma vm` may take; it gives its guest three minutes.
const VM_LIMIT: Duration = Duration::from_secs(600);
/// Boots of one guest at most.
const BOOTS: usize = 3;

/// Whether a guest's kernel met a breakpoint that it had set and taken out again while it changed
/// its own code: QEMU's emulation of several processors at times still executes it. No program has
/// run by then, so another boot is as good.
fn died_of_emulation(console: &str) -> bool {
    console.contains("Oops: int3")
}

/// Whether another boot is as good: that, or processors that ran and came to nothing, of which the
/// output of the run tells.
fn is_of_emulation(error: &vm::Error) -> bool {
    if let vm::Error::GuestComputes(said) = error {
        // Past the capture of the test's output: somebody may wonder at the time it takes.
        let _ = writeln!(std::io::stderr(), "lab: {said}");
        return true;
    }
    died_of_emulation(&error.to_string())
}

/// Runs `peerdma vm`, anew where another boot is as good.
pub fn in_a_machine(run: &Run) -> Finished {
    let once = || run.clone().limit(VM_LIMIT).finish();
    let is_good = |ran: &Finished| {
        !died_of_emulation(&ran.stderr) && !ran.stderr.contains(vm::RAN_AND_IS_LATE)
    };
    (1..BOOTS).map(|_| once()).find(is_good).unwrap_or_else(once)
}

impl Guest {
    /// Boots a guest with the distribution's kernel whose RoCE device is `rxe0`, with the programs
    /// `extra` in it.
    ///
    /// # Errors
    /// When the lab cannot run here, with what is missing. A test skips with it.
    ///
    /// # Panics
    /// When the guest does not come up although nothing is missing: that is a failed test.
    pub fn boot(extra: &[&Path]) -> Result<Guest> {
        Guest::boot_kernel(&own_kernel()?, extra)
    }

    /// Boots a guest with a kernel, as [`Guest::boot`] does.
    ///
    /// # Errors
    /// As for that.
    ///
    /// # Panics
    /// As for that.
    pub fn boot_kernel(kernel: &Kernel, extra: &[&Path]) -> Result<Guest> {
        if !crate::is_root() {
            bail!("the lab's tap interface needs root");
        }
        for _ in 1..BOOTS {
            let mut guest = Guest::run_kernel(kernel, extra)?;
            if guest.comes_up() {
                return Ok(guest);
            }
        }
        let mut guest = Guest::run_kernel(kernel, extra)?;
        assert!(guest.comes_up(), "{BOOTS} boots died or stood still:\n{}", guest.console());
        Ok(guest)
    }

    fn run_kernel(kernel: &Kernel, extra: &[&Path]) -> Result<Guest> {
        let folder = tempfile::tempdir()?;
        let initrd = folder.path().join("initrd.gz");
        image::build(kernel, extra, &initrd)?;
        let namespace = Namespace::new("lab");
        namespace.output(&format!(
            "ip tuntap add tap0 mode tap && ip addr add {HOST_V4}/24 dev tap0 && \
             ip -6 addr add {HOST_V6}/64 dev tap0 nodad && ip link set tap0 txqueuelen 10000 up"
        ));
        let console = File::create(folder.path().join("console"))?;
        let qemu = Command::new("ip")
            .args(["netns", "exec", namespace.name(), "qemu-system-x86_64"])
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"])
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(&initrd)
            .args(["-append", "console=ttyS0 quiet panic=-1 no_timer_check"])
            .args(["-netdev", "tap,id=n,ifname=tap0,script=no,downscript=no"])
            .args(["-device", "virtio-net-pci,netdev=n"])
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn()
            .context("qemu-system-x86_64")?;
        Ok(Guest { qemu, folder, namespace })
    }

    /// Waits until it is up; `false` if the emulator's fault ended it, or it stands still: nothing
    /// of ours is in it yet.
    fn comes_up(&mut self) -> bool {
        let deadline = Instant::now() + BOOT_LIMIT;
        while !self.console().contains("LAB READY") {
            let ended = self.qemu.try_wait().expect("waiting for QEMU");
            if ended.is_some() && died_of_emulation(&self.console()) {
                return false;
            }
            assert!(ended.is_none(), "QEMU ended with {ended:?}:\n{}", self.console());
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// What the guest's console says so far.
    pub fn console(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The namespace on the host's end.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Runs a shell script in the guest and gives what it printed and its exit status.
    ///
    /// # Errors
    /// When the guest does not answer within `limit`.
    pub fn script(&self, script: &str, limit: Duration) -> Result<(i32, String)> {
        // The status comes back as the last line; `timeout` bounds what the guest does.
        let whole = format!("( {script} ) 2>&1; echo status=$?; exit\n");
        let mut client = Command::new("ip")
            .args(["netns", "exec", self.namespace.name(), "timeout"])
            .arg(limit.as_secs().to_string())
            .args(["busybox", "nc", GUEST_V4, &SHELL_PORT.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        use std::io::Write;
        client.stdin.take().context("no pipe")?.write_all(whole.as_bytes())?;
        let output = client.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some((said, status)) = text.rsplit_once("status=") else {
            bail!("no answer from the guest to `{script}`: {text}");
        };
        Ok((status.trim().parse().unwrap_or(-1), said.to_owned()))
    }
}

/// Programs in the guest: a test that uses these has failed where the guest does not answer.
impl Guest {
    /// What a script that must succeed prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn output(&self, script: &str) -> String {
        let (status, said) = self.script(script, LIMIT).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(status, 0, "{script}\n{said}\n{}", self.console());
        said
    }

    /// Starts a shell line in the background.
    pub fn start(&self, line: &str) -> Background<'_> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let file = format!("/tmp/background-{}", NEXT.fetch_add(1, Relaxed));
        self.output(&format!(
            "({line} > {file} 2>&1; echo ended=$? >> {file}) > /dev/null 2>&1 < /dev/null &"
        ));
        Background { guest: self, file }
    }
}

/// A shell line that runs in the guest's background.
pub struct Background<'a> {
    guest: &'a Guest,
    file: String,
}

impl Background<'_> {
    /// Waits until something listens on TCP `port`, or the line has ended: its client sees the
    /// difference.
    pub fn listening(&self, port: u16) {
        let file = &self.file;
        self.guest.output(&format!(
            "until netstat -ltn | grep -q :{port} || grep ended= {file}; do usleep 50000; done"
        ));
    }

    /// What it said so far.
    pub fn said(&self) -> String {
        self.guest.output(&format!("cat {}", self.file))
    }

    /// Whether it ended, in whatever way.
    pub fn ended(&self) -> bool {
        self.said().contains("ended=")
    }

    /// Waits for its end, for 10 seconds at most; whether it succeeded, and what it said.
    pub fn finish(self) -> (bool, String) {
        let file = &self.file;
        let said = self.guest.output(&format!(
            "for i in $(seq 1200); do grep -q ended= {file} && break; usleep 50000; done; cat {file}"
        ));
        (said.contains("ended=0"), said)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
