//! A running guest: its shell on a serial port, its kernel's messages on another.

use crate::error::{At as _, Error, Result};
use crate::machine::Machine;
use crate::qemu::Qemu;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The script `/init` of a guest that [`Guest`] talks to.
pub const AGENT: &str = include_str!("init.sh");

const READY: &str = "GUEST READY";
/// What precedes the exit status of a script. No program prints it by accident.
const STATUS: &str = "\n\u{1}status ";
/// How often a wait looks whether QEMU still runs.
const LOOK: Duration = Duration::from_millis(100);

/// A running guest. It ends with the value.
pub struct Guest {
    qemu: Process,
    folder: TempDir,
    /// One script at a time.
    agent: Mutex<UnixStream>,
}

impl Guest {
    /// Boots a machine whose RAM disk runs [`AGENT`], and waits until it is up.
    ///
    /// # Errors
    /// QEMU cannot be started or ends, or the guest is not up within `limit`: with what it said.
    pub fn boot(qemu: &Qemu, machine: &Machine, limit: Duration) -> Result<Guest> {
        let folder = tempfile::tempdir().doing("a temporary folder")?;
        let path = folder.path().join("agent");
        let listener = UnixListener::bind(&path).at(&path)?;
        let wait = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&listener, wait, Some(LOOK))
            .map_err(std::io::Error::from)
            .at(&path)?;
        let said = folder.path().join("qemu");
        let said = File::create(&said).at(&said)?;
        let mut command = qemu.command();
        command.args(machine.options(true));
        command.args(["-serial", &format!("file:{}", folder.path().join("log").display())]);
        command.args(["-serial", &format!("unix:{}", path.display())]);
        command.stdin(Stdio::null()).stdout(said.try_clone().doing("QEMU's output")?).stderr(said);
        let mut qemu = Process(command.spawn().doing("starting QEMU")?);
        let until = Until::now(limit, Duration::ZERO);
        let agent = loop {
            match listener.accept() {
                Ok((agent, _)) => break agent,
                Err(_) => qemu.still_runs(folder.path(), until)?,
            }
        };
        agent.set_read_timeout(Some(LOOK)).doing("the guest's port")?;
        qemu.await_ready(&agent, folder.path(), until)?;
        Ok(Guest { qemu, folder, agent: Mutex::new(agent) })
    }

    /// What the kernel said so far.
    pub fn log(&self) -> String {
        log(self.folder.path())
    }

    /// What QEMU said so far.
    pub fn qemu_said(&self) -> String {
        said(self.folder.path())
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.qemu.0.id()
    }

    /// Runs a shell script and hands on what it prints as it comes; its exit status.
    ///
    /// # Errors
    /// The guest has ended, or the script has not within `limit`.
    pub fn run(&self, script: &str, limit: Duration, mut out: impl FnMut(&[u8])) -> Result<i32> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        // The shell's own input is where the next script comes from. Its octal escapes make the
        // mark, so that an echo of the line would not look like it.
        let line = format!("(\n{script}\n) < /dev/null 2>&1; printf '\\n\\001status %d\\n' $?\n");
        agent.write_all(line.as_bytes()).doing("the guest's port")?;
        let deadline = Instant::now() + limit;
        let mut held = Vec::new();
        let mut bytes = [0; 4096];
        loop {
            let count = match agent.read(&mut bytes) {
                Ok(0) => return Err(self.ended("the guest ended")),
                Ok(count) => count,
                Err(_) if Instant::now() < deadline => continue,
                Err(_) => return Err(self.ended("the guest has not answered in time")),
            };
            held.extend_from_slice(&bytes[..count]);
            if let Some((said, status)) = split_status(&held) {
                out(said);
                return Ok(status);
            }
            // What could be the beginning of the mark waits for more.
            let sure = held.len().saturating_sub(STATUS.len() + 5);
            out(&held[..sure]);
            held.drain(..sure);
        }
    }

    /// Has the guest restart itself, for which the machine must be one that
    /// [`restarts`](Machine::restarts), and waits until it is up again.
    ///
    /// # Errors
    /// The guest has ended, or is not up within `limit`.
    pub fn restart(&mut self, limit: Duration) -> Result<()> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        agent.write_all(b"reboot -f\n").doing("the guest's port")?;
        self.qemu.await_ready(
            &agent,
            self.folder.path(),
            Until::now(limit, computed(&threads(self.qemu.0.id()))),
        )
    }

    fn ended(&self, what: &str) -> Error {
        failed(what, self.folder.path())
    }
}

/// How long something may take, and when that is over.
#[derive(Clone, Copy)]
struct Until {
    limit: Duration,
    deadline: Instant,
    /// [`computed`] when it began.
    computed: Duration,
}

impl Until {
    fn now(limit: Duration, computed: Duration) -> Until {
        Until { limit, deadline: Instant::now() + limit, computed }
    }
}

/// QEMU. It ends with the value.
struct Process(Child);

impl Process {
    /// Fails if QEMU has ended or the time is over.
    fn still_runs(&mut self, folder: &Path, until: Until) -> Result<()> {
        match self.0.try_wait() {
            Ok(Some(status)) => Err(failed(&format!("QEMU ended with {status}"), folder)),
            _ if Instant::now() > until.deadline => Err(late(self.0.id(), folder, until)),
            _ => Ok(()),
        }
    }

    fn await_ready(&mut self, mut agent: &UnixStream, folder: &Path, until: Until) -> Result<()> {
        let mut said = Vec::new();
        let mut bytes = [0; 256];
        while !String::from_utf8_lossy(&said).contains(&format!("{READY}\n")) {
            match agent.read(&mut bytes) {
                Ok(count) if count > 0 => said.extend_from_slice(&bytes[..count]),
                _ => self.still_runs(folder, until)?,
            }
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A thread of QEMU's: whether a guest that does not come up is slow, or waits, and for whom.
struct Thread {
    name: String,
    state: String,
    ran: Duration,
}

fn threads(pid: u32) -> Vec<Thread> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let thread = |task: PathBuf| {
        let file = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        let ran = file("schedstat").split(' ').next().and_then(|ns| ns.parse().ok());
        let status = file("status");
        let state = status.lines().find_map(|line| line.strip_prefix("State:\t"));
        Thread {
            name: file("comm").trim().to_owned(),
            state: format!("{}, {}", state.unwrap_or("?"), file("wchan")),
            ran: Duration::from_nanos(ran.unwrap_or_default()),
        }
    };
    tasks.map(|task| thread(task.path())).collect()
}

/// How long the emulated processor has run that has run the longest. Their threads have such names.
fn computed(threads: &[Thread]) -> Duration {
    let of_processors = threads.iter().filter(|thread| thread.name.starts_with("CPU "));
    of_processors.map(|thread| thread.ran).max().unwrap_or_default()
}

/// What [`Error::GuestComputes`] begins with.
pub const RAN_AND_IS_LATE: &str = "the guest did not come up in time, although it ran";

/// The guest is not up in time.
fn late(pid: u32, folder: &Path, until: Until) -> Error {
    let threads = threads(pid);
    let row = |thread: &Thread| {
        let Thread { name, state, ran } = thread;
        format!("QEMU's thread {name}: {state}, ran {:.1} s\n", ran.as_secs_f64())
    };
    let what: String = threads.iter().map(row).collect();
    let computes = computed(&threads).saturating_sub(until.computed) > until.limit / 3;
    let of = |late: &str| message(&format!("{late}\n{what}"), folder);
    match computes {
        true => Error::GuestComputes(of(RAN_AND_IS_LATE)),
        false => Error::Guest(of("the guest did not come up in time")),
    }
}

/// A failure of the guest that has this folder, with the last that was said.
fn failed(what: &str, folder: &Path) -> Error {
    Error::Guest(message(what, folder))
}

fn message(what: &str, folder: &Path) -> String {
    let log = log(folder);
    let lines: Vec<&str> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(30)..].join("\n");
    format!("{what}\n{}{last}", said(folder))
}

/// What QEMU said.
fn said(folder: &Path) -> String {
    read(folder.join("qemu"))
}

/// What the kernel said.
fn log(folder: &Path) -> String {
    read(folder.join("log"))
}

fn read(path: PathBuf) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// Splits a script's output from its status, once that is there whole.
fn split_status(bytes: &[u8]) -> Option<(&[u8], i32)> {
    let mark = STATUS.as_bytes();
    let at = bytes.windows(mark.len()).rposition(|window| window == mark)?;
    let rest = bytes[at + mark.len()..].strip_suffix(b"\n")?;
    let status = std::str::from_utf8(rest).ok()?.parse().ok()?;
    Some((&bytes[..at], status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_is_late_waits_or_computes() {
        let folder = tempfile::tempdir().unwrap();
        let until = |limit| Until::now(limit, Duration::ZERO);
        let waits = late(std::process::id(), folder.path(), until(Duration::from_secs(3600)));
        let Error::Guest(text) = waits else { panic!("it waits") };
        assert!(text.contains(": R (running), "), "{text}");
        let named = std::thread::Builder::new().name("CPU 0/TCG".to_owned());
        let computes = named.spawn(move || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(50) {}
            let late = late(std::process::id(), folder.path(), until(Duration::from_millis(3)));
            matches!(late, Error::GuestComputes(_))
        });
        assert!(computes.unwrap().join().unwrap());
    }

    #[test]
    fn the_status_is_known_once_its_line_is_whole() {
        assert_eq!(split_status(b"hello\n\n\x01status 12\n"), Some((&b"hello\n"[..], 12)));
        assert_eq!(split_status(b"\n\x01status 0\n"), Some((&b""[..], 0)));
        assert_eq!(split_status(b"hello\n\n\x01status 12"), None);
        assert_eq!(split_status(b"hello\n"), None);
    }
}
