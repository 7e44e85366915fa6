//! How long `peerdma topo` and `peerdma doctor` take for a machine larger than any known: two
//! sockets, 16 GPUs, 32 adapters with 32 virtual functions each, below switches.

use super::program::target;
use super::table::{Row, Table};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What is measured.
const COMMANDS: [(&str, &[&str]); 5] = [
    ("topo", &["topo"]),
    ("topo --json", &["topo", "--json"]),
    ("topo --svg", &["topo", "--svg", "/dev/null"]),
    ("doctor", &["doctor"]),
    ("doctor --json", &["doctor", "--json"]),
];

/// Milliseconds after which somebody at a terminal would wait for it.
const AIM: f64 = 200.0;

/// A folder of its own, gone at the end.
struct Sys(PathBuf);

impl Drop for Sys {
    fn drop(&mut self) {
        // what remains in a folder for temporary files does no harm
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Sys {
    fn file(&self, path: &str, content: &str) -> Result<()> {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().context("a file in a folder")?)?;
        Ok(fs::write(path, content)?)
    }

    /// A function below `above`, a path from `sys/devices`.
    fn function(&self, above: &str, at: &str, class: &str, id: (&str, &str)) -> Result<String> {
        let own = format!("{above}/{at}");
        for (name, content) in [("class", class), ("vendor", id.0), ("device", id.1)] {
            self.file(&format!("sys/devices/{own}/{name}"), content)?;
        }
        let link = self.0.join(format!("sys/bus/pci/devices/{at}"));
        fs::create_dir_all(link.parent().context("a link in a folder")?)?;
        std::os::unix::fs::symlink(format!("../../../devices/{own}"), link)?;
        Ok(own)
    }

    fn new() -> Result<Sys> {
        let sys = Sys(std::env::temp_dir().join(format!("peerdma-bench-{}", std::process::id())));
        sys.file("proc/version", "Linux version 6.18.2 (gcc)\n")?;
        sys.file("proc/cpuinfo", "vendor_id : GenuineIntel\ncpu family : 6\n")?;
        let port = ("0x1000", "0xc030");
        for domain in 0..16 {
            let at = |bus: u32, device: u32, function: u32| {
                format!("{domain:04x}:{bus:02x}:{device:02x}.{function}")
            };
            let root = format!("pci{domain:04x}:00");
            let root = sys.function(&root, &at(0, 1, 0), "0x060400", ("0x8086", "0x352a"))?;
            sys.file(&format!("sys/devices/{root}/numa_node"), &format!("{}\n", domain / 8))?;
            let up = sys.function(&root, &at(1, 0, 0), "0x060400", port)?;
            for slot in 0..3 {
                let down = sys.function(&up, &at(2, slot, 0), "0x060400", port)?;
                let bus = 3 + slot;
                if slot == 0 {
                    sys.function(&down, &at(bus, 0, 0), "0x030200", ("0x10de", "0x2330"))?;
                    continue;
                }
                let id = ("0x15b3", "0x1021");
                let card = sys.function(&down, &at(bus, 0, 0), "0x020700", id)?;
                let number = domain * 2 + slot - 1;
                sys.file(
                    &format!("sys/devices/{card}/infiniband/mlx5_{number}/fw_ver"),
                    "28.42\n",
                )?;
                for index in 1..33 {
                    let own = at(bus, index / 8, index % 8);
                    let function = sys.function(&down, &own, "0x020700", ("0x15b3", "0x101e"))?;
                    let link = sys.0.join(format!("sys/devices/{function}/physfn"));
                    std::os::unix::fs::symlink(format!("../{}", at(bus, 0, 0)), link)?;
                }
            }
        }
        Ok(sys)
    }
}

/// Measures it all, in milliseconds from start to end of the program.
pub(super) fn measure(rounds: u32) -> Result<Table> {
    let sys = Sys::new()?;
    let mut rows: Vec<Row> = COMMANDS
        .iter()
        .map(|(name, _)| {
            let name = format!("`peerdma {name}`, 1,152 functions");
            Row::plain(name, "ms", Vec::new()).at_most(AIM)
        })
        .collect();
    for _ in 0..rounds {
        for (row, (_, arguments)) in rows.iter_mut().zip(COMMANDS) {
            row.figures.push(timed(arguments, &sys.0)?);
        }
    }
    Ok(Table { against: "", rows })
}

fn timed(arguments: &[&str], from: &Path) -> Result<f64> {
    let mut command = Command::new(target().join("peerdma"));
    command.args(arguments).arg("--from").arg(from).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let took = start.elapsed();
    // the doctor's statuses up to 4 are answers
    ensure!(matches!(status.code(), Some(0 | 2..=4)), "{arguments:?}: {status}");
    Ok(took.as_secs_f64() * 1e3)
}
