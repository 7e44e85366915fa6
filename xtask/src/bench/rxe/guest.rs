//! A guest with the kernel of this machine's distribution, its rxe, and programs to compare.

use crate::bench::pair::perftest_figures;
use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;
use system::lab;
use vm::{AGENT, Kernel, Machine, Qemu, RamDisk};

/// Modules in the order they are wanted: rxe finds the quicker of the checksums that there are.
const MODULES: [&str; 5] = ["crc32_pclmul", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"];
const PROGRAMS: [&str; 7] =
    ["ip", "rdma", "ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_send_lat"];

/// How long one program may take, which needs a few seconds even where the host is busy.
const PROGRAM_LIMIT: Duration = Duration::from_secs(40);
/// How long a guest may be silent: the two programs of a pair have ended by then, unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// What a program is ended with that runs past its limit, as a shell tells it.
const KILLED: i32 = 128 + 9;

/// Whose RDMA a pair of programs uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Rxe,
    /// Ours, with this `--link`.
    Ours(&'static str),
}

/// A running guest.
pub struct Guest {
    guest: vm::Guest,
    /// The number of rxe's GID.
    gid: u32,
    /// iproute2's program, which lies there where it lies here.
    ip: String,
    /// Whether its processors are QEMU's work.
    pub is_emulated: bool,
}

impl Guest {
    /// Boots it.
    ///
    /// # Errors
    /// What is missing, with what to install; it does not come up, or has no rxe.
    pub fn boot() -> Result<Guest> {
        let (qemu, kernel) = (Qemu::own()?, lab::own_kernel()?);
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("initrd");
        disk(&kernel)?.write(&file)?;
        let mut machine = Machine::new(&kernel.image, &file);
        // A kernel in which rxe has failed may be anything but quick.
        machine.kernel_options = "oops=panic".to_owned();
        let is_emulated = !machine.options(true).iter().any(|option| option == "kvm");
        let ip = vm::find_program("ip")?.display().to_string();
        let guest = Guest { guest: lab::boot(&qemu, &machine)?, gid: 0, ip, is_emulated };
        let (status, said) = guest.script(&format!("IP={} sh /setup.sh", guest.ip))?;
        ensure!(status == 0, "no rxe in the guest: {said}");
        let gid = said.trim().parse().with_context(|| said.clone())?;
        Ok(Guest { gid, ..guest })
    }

    /// Figures of a program of perftest's whose both ends run in the guest, or why there are none.
    ///
    /// # Errors
    /// The guest has ended, or hangs.
    pub fn perftest(&self, way: Way, line: &str) -> vm::Result<Result<Vec<f64>>> {
        // A timeout of a second: a processor that QEMU keeps for long is no lost packet.
        let (gid, common) = (self.gid, format!("{line} -F -u 18"));
        let pair = format!("sh /pair.sh {}", PROGRAM_LIMIT.as_secs());
        let (status, said) = self.script(&match way {
            Way::Rxe => format!("{pair} {common} -d rxe0 -x {gid}"),
            Way::Ours(link) => format!(
                "{} netns exec calm {pair} peerdma run --link {link} -- {common} -d peerdma0 -x 0",
                self.ip
            ),
        })?;
        Ok(figures(status, &said))
    }

    /// The exit status of a script, and what it printed.
    fn script(&self, script: &str) -> vm::Result<(i32, String)> {
        let mut said = Vec::new();
        let status = self.guest.run(script, LIMIT, |bytes| said.extend_from_slice(bytes))?;
        Ok((status, String::from_utf8_lossy(&said).into_owned()))
    }
}

fn disk(kernel: &Kernel) -> Result<RamDisk> {
    let mut disk = RamDisk::new(AGENT)?;
    let modules = disk.modules(kernel, &MODULES)?;
    ensure!(
        modules.iter().any(|name| name == "rdma_rxe"),
        "the kernel's packages have no rdma_rxe module (install the package linux-image-amd64, or \
         linux-modules-extra on Ubuntu)"
    );
    for program in PROGRAMS {
        disk.program(program).with_context(|| match program {
            "ip" | "rdma" => "the package iproute2 is needed",
            _ => "the package perftest is needed",
        })?;
    }
    disk.verbs_driver("rxe")?;
    disk.own_program(system::peerdma())?;
    disk.file("setup.sh", include_bytes!("setup.sh"));
    disk.file("pair.sh", include_bytes!("pair.sh"));
    Ok(disk)
}

/// What a pair of programs has printed that ended with `status`.
fn figures(status: i32, said: &str) -> Result<Vec<f64>> {
    match status {
        0 => perftest_figures(said),
        KILLED => bail!("it ran past {} seconds\n{said}", PROGRAM_LIMIT.as_secs()),
        _ => bail!("{}\n{said}", last_words(said)),
    }
}

/// The last line of what a program said that is no ornament.
fn last_words(said: &str) -> &str {
    let mut lines = said.lines().rev().map(str::trim);
    lines.find(|line| line.contains(char::is_alphabetic)).unwrap_or("it said nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_failed_says_why_first() {
        let why = |status, said| figures(status, said).unwrap_err().to_string();
        let said = "#bytes\n 8 5\n Couldn't post send: 12\n-----------\n\n";
        assert!(why(1, said).starts_with("Couldn't post send: 12\n"), "{}", why(1, said));
        assert!(why(KILLED, said).starts_with("it ran past 40 seconds\n"));
        assert!(why(2, "").starts_with("it said nothing"));
        assert!(why(0, "").starts_with("no figures"));
        assert_eq!(figures(0, "#bytes\n 8 5\n").unwrap(), [8.0, 5.0]);
    }
}
