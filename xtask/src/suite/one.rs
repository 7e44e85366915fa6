//! One suite: called, watched, read, and counted.

use super::list::{Counts, Lane, Suite};
use crate::allowed;
use crate::tools;
use crate::totals::{Harness, Outcome, Skip, Totals};
use crate::watchdog::{Next, Watched};
use anyhow::{Context, Result};
use rustix::process::Pid;
use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest silence of a suite; building everything afresh on two cores takes some minutes.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// The same of one that runs where the others leave it room.
const SILENCE_BESIDE: Duration = Duration::from_secs(50 * 60);

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.name, self.program.name(), self.call.join(" "))
    }
}

impl Suite {
    /// Runs it; `say` gets each line of its output. With `install`, what it needs is fetched first.
    ///
    /// # Errors
    /// It cannot be run at all.
    pub fn run(&self, root: &Path, install: bool, say: &mut dyn FnMut(&str)) -> Result<Outcome> {
        say(&format!("==> {self}"));
        if install {
            (self.fetch)();
        }
        if let Some(reason) = (self.lacks)() {
            say(&format!("  skipped: {reason}"));
            let skip = Skip { test: format!("{}{}", allowed::SUITE, self.name), reason };
            let totals = Totals { skipped: 1, ..Totals::default() };
            return Ok(Outcome { totals, skips: vec![skip], failures: Vec::new() });
        }
        let started = Instant::now();
        let notes = Notes::new(root, self.lane)?;
        let (output, writer) = std::io::pipe().context("no pipe")?;
        let mut command = self.command(root, &notes)?;
        // On its own, what goes to the terminal is seen at once.
        if self.lane != Lane::InOrder {
            command.stderr(writer.try_clone().context("no pipe")?);
        }
        let child = command.stdout(writer).spawn().with_context(|| self.to_string())?;
        // It holds the pipe's other end.
        drop(command);
        let outcome = self.watch(child, output, &notes, say)?;
        for skip in &outcome.skips {
            say(&format!("  skipped: {}: {}", skip.test, skip.reason));
        }
        say(&format!("==> {}: {} s", self.name, started.elapsed().as_secs()));
        Ok(outcome)
    }

    fn command(&self, root: &Path, notes: &Notes) -> Result<Command> {
        let mut command = Command::new("nice");
        command.args(["-n", self.lane.niceness()]).arg(self.program.path());
        command
            .current_dir(root)
            .args(self.call)
            .args((self.words)(root)?)
            .envs(self.env.iter().copied())
            .env(test_support::FILE, &notes.file)
            .env_remove("PEERDMA_BIN")
            .env("PATH", tools::search_path())
            .stdin(Stdio::null());
        Ok(command)
    }

    fn watch(
        &self,
        mut child: Child,
        output: std::io::PipeReader,
        notes: &Notes,
        say: &mut dyn FnMut(&str),
    ) -> Result<Outcome> {
        let silence = if self.lane == Lane::Beside { SILENCE_BESIDE } else { SILENCE };
        let mut harness = Harness::default();
        let watched = Watched::new(Pid::from_child(&child), output, silence);
        loop {
            match watched.next() {
                Next::Line(line) => {
                    say(&line);
                    harness.line(&line);
                }
                Next::Silent => {
                    let minutes = silence.as_secs() / 60;
                    say(&format!("==> {}: ended after {minutes} min of silence", self.name));
                    harness.ended_for_silence();
                }
                Next::End => break,
            }
        }
        let ok = child.wait()?.success();
        let alone = |totals| Outcome { totals, skips: Vec::new(), failures: Vec::new() };
        Ok(match self.counts {
            // A test program that is not even there has not passed.
            Counts::Tests => {
                let ok = ok && harness.ran();
                harness.finish(ok, &notes.read())
            }
            Counts::Check => alone(Totals::check(ok)),
            Counts::Failure => alone(Totals { passed: 0, ..Totals::check(ok) }),
        })
    }
}

/// The file in which tests note why they skipped themselves.
struct Notes {
    file: PathBuf,
}

impl Notes {
    fn new(root: &Path, lane: Lane) -> Result<Notes> {
        let folder = root.join("target");
        std::fs::create_dir_all(&folder)?;
        let name = match lane {
            Lane::InOrder => "skipped-tests",
            Lane::Beside => "skipped-tests-beside",
            Lane::Along => "skipped-tests-along",
        };
        let file = folder.join(name);
        std::fs::write(&file, "")?;
        // Tests that run as another user note their skips too.
        std::fs::set_permissions(&file, Permissions::from_mode(0o666))?;
        Ok(Notes { file })
    }

    fn read(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }
}
