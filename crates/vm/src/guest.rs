//! A running guest: its shell on a serial port, its kernel's messages on another.

use crate::error::{At as _, Error, Result};
use crate::machine::Machine;
use crate::qemu::Qemu;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
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
    qemu: Child,
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
        let qemu = command.spawn().doing("starting QEMU")?;
        let mut starting = Starting { qemu: Some(qemu), folder: Some(folder) };
        let deadline = Instant::now() + limit;
        let agent = loop {
            match listener.accept() {
                Ok((agent, _)) => break agent,
                Err(_) => starting.still_runs(deadline)?,
            }
        };
        agent.set_read_timeout(Some(LOOK)).doing("the guest's port")?;
        starting.await_ready(&agent, deadline)?;
        starting.finish(agent)
    }

    /// What the kernel said so far.
    pub fn log(&self) -> String {
        read(self.folder.path().join("log"))
    }

    /// What QEMU said so far.
    pub fn qemu_said(&self) -> String {
        read(self.folder.path().join("qemu"))
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Runs a shell script and hands on what it prints as it comes; its exit status.
    ///
    /// # Errors
    /// The guest has ended, or the script has not within `limit`.
    pub fn run(&self, script: &str, limit: Duration, mut out: impl FnMut(&[u8])) -> Result<i32> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        // The shell's own input is where the next script comes from. Its octal escapes make the mark, so that an echo of
        // the line would not look like it.
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

    fn ended(&self, what: &str) -> Error {
        Error::Guest(format!("{what}\n{}{}", self.qemu_said(), last_lines(&self.log())))
    }
}

/// A guest before it is up.
struct Starting {
    qemu: Option<Child>,
    folder: Option<TempDir>,
}

impl Starting {
    /// Fails if QEMU has ended or the time is over.
    fn still_runs(&mut self, deadline: Instant) -> Result<()> {
        let ended = match self.qemu.as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => Some(format!("QEMU ended with {status}")),
            _ if Instant::now() > deadline => Some("the guest did not come up in time".to_owned()),
            _ => None,
        };
        let Some(why) = ended else { return Ok(()) };
        let file = |name| self.folder.as_ref().map(|folder| read(folder.path().join(name)));
        let (qemu, log) = (file("qemu").unwrap_or_default(), file("log").unwrap_or_default());
        Err(Error::Guest(format!("{why}\n{qemu}{}", last_lines(&log))))
    }

    fn await_ready(&mut self, mut agent: &UnixStream, deadline: Instant) -> Result<()> {
        let mut said = Vec::new();
        let mut bytes = [0; 256];
        while !String::from_utf8_lossy(&said).contains(&format!("{READY}\n")) {
            match agent.read(&mut bytes) {
                Ok(count) if count > 0 => said.extend_from_slice(&bytes[..count]),
                _ => self.still_runs(deadline)?,
            }
        }
        Ok(())
    }

    fn finish(mut self, agent: UnixStream) -> Result<Guest> {
        match (self.qemu.take(), self.folder.take()) {
            (Some(qemu), Some(folder)) => Ok(Guest { qemu, folder, agent: Mutex::new(agent) }),
            _ => Err(Error::Guest("the guest was taken twice".to_owned())),
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(qemu) = &mut self.qemu {
            end(qemu);
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        end(&mut self.qemu);
    }
}

fn end(qemu: &mut Child) {
    let _ = qemu.kill();
    let _ = qemu.wait();
}

fn read(path: PathBuf) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
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
    fn the_status_is_known_once_its_line_is_whole() {
        assert_eq!(split_status(b"hello\n\n\x01status 12\n"), Some((&b"hello\n"[..], 12)));
        assert_eq!(split_status(b"\n\x01status 0\n"), Some((&b""[..], 0)));
        assert_eq!(split_status(b"hello\n\n\x01status 12"), None);
        assert_eq!(split_status(b"hello\n"), None);
    }
}
