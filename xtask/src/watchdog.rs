//! Ends what a suite started when it has said nothing for too long: a test that waits for ever
//! would hold up every suite after it. Cargo itself lives on, counts the ended program as failed
//! and goes on with the next.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Lines of a child, and how long it may be silent.
pub struct Watched {
    pid: Pid,
    silence: Duration,
    lines: Receiver<String>,
}

/// What comes next from a child.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Line(String),
    /// It was silent for too long; all it had started was killed.
    Silent,
    End,
}

impl Watched {
    /// Reads `output` of the child `pid` line by line.
    pub fn new(pid: Pid, output: impl Read + Send + 'static, silence: Duration) -> Watched {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Watched { pid, silence, lines }
    }

    pub fn next(&self) -> Next {
        match self.lines.recv_timeout(self.silence) {
            Ok(line) => Next::Line(line),
            Err(RecvTimeoutError::Disconnected) => Next::End,
            Err(RecvTimeoutError::Timeout) => {
                self.end_children();
                Next::Silent
            }
        }
    }

    /// Kills the child's descendants, or the child if it has none.
    fn end_children(&self) {
        let mut found = Vec::new();
        descendants(self.pid, &mut found);
        if found.is_empty() {
            found.push(self.pid);
        }
        for pid in found {
            // Whatever is gone already needs no end.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// All processes below `pid`, from proc_pid_task(5)'s `children`.
fn descendants(pid: Pid, found: &mut Vec<Pid>) {
    let tasks = PathBuf::from(format!("/proc/{}/task", pid.as_raw_pid()));
    for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|n| Pid::from_raw(n.parse().ok()?)) {
            found.push(child);
            descendants(child, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_silent_grandchild_is_ended_and_the_child_goes_on() {
        let script = "sh -c 'echo up; sleep 1000'; echo \"child $?\"";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let mut watched = Watched::new(Pid::from_child(&child), output, Duration::from_secs(60));
        assert_eq!(watched.next(), Next::Line("up".to_owned()));
        watched.silence = Duration::from_millis(10);
        assert_eq!(watched.next(), Next::Silent);
        watched.silence = Duration::from_secs(60);
        assert_eq!(watched.next(), Next::Line("child 137".to_owned()));
        assert_eq!(watched.next(), Next::End);
        child.wait().unwrap();
    }
}
