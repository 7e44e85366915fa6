//! Programs under test: started with their output in files, ended by their own exit or by a time
//! limit.

use crate::{Container, Namespace};
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Who runs a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum User {
    /// Whoever runs the tests.
    #[default]
    Same,
    /// An account without any privilege (65534); needs root to switch to.
    Nobody,
}

/// A program to run.
#[derive(Clone, Debug)]
pub struct Run {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(String, OsString)>,
    options: Vec<OsString>,
    on_hca: bool,
    namespace: Option<String>,
    container: Option<Container>,
    user: User,
    limit: Duration,
}

impl Run {
    /// `line`, split at white space, on the software HCA.
    pub fn hca(line: &str) -> Run {
        Run { on_hca: true, ..Run::plain(line) }
    }

    /// `line`, split at white space, as it is.
    pub fn plain(line: &str) -> Run {
        let mut words = line.split_whitespace().map(OsString::from);
        let program = words.next().unwrap_or_default();
        Run { args: words.collect(), ..Run::program(program) }
    }

    /// One program, taken whole, as it is.
    pub fn program(program: impl Into<OsString>) -> Run {
        Run {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            options: Vec::new(),
            on_hca: false,
            namespace: None,
            container: None,
            user: User::Same,
            limit: Duration::from_secs(60),
        }
    }

    /// One more argument, taken whole.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Run {
        self.args.push(arg.into());
        self
    }

    /// An option of `peerdma run`.
    pub fn option(mut self, option: impl Into<OsString>) -> Run {
        self.options.push(option.into());
        self
    }

    /// More arguments, each taken whole.
    pub fn args(mut self, args: &[&str]) -> Run {
        self.args.extend(args.iter().map(OsString::from));
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Run {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Inside this network namespace, and not in the test program's own.
    pub fn within(mut self, namespace: &Namespace) -> Run {
        self.namespace = Some(namespace.name().to_owned());
        self
    }

    /// Inside a container.
    pub fn inside(mut self, container: &Container) -> Run {
        self.container = Some(container.clone());
        self
    }

    /// As another user.
    pub fn user(mut self, user: User) -> Run {
        self.user = user;
        self
    }

    /// Time limit, where it is not longer already.
    pub(crate) fn at_least(self, limit: Duration) -> Run {
        let limit = limit.max(self.limit);
        self.limit(limit)
    }

    /// Time limit instead of 60 seconds.
    pub fn limit(mut self, limit: Duration) -> Run {
        self.limit = limit;
        self
    }

    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = match (&self.namespace, test_support::network::own()) {
            (Some(name), _) => ["ip", "netns", "exec", name].map(OsString::from).into(),
            (None, Some(own)) => own.words().into(),
            (None, None) => Vec::new(),
        };
        if let Some(container) = &self.container {
            words.extend(container.enter(self.on_hca.then(peerdma)));
        }
        if self.user == User::Nobody {
            let switch = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
            words.extend(switch.map(OsString::from));
        }
        if self.on_hca {
            words.push(peerdma().into());
            words.push("run".into());
            words.extend(self.options.iter().cloned());
            words.push("--".into());
        }
        words.push(self.program.clone());
        words.extend(self.args.iter().cloned());
        words
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started: that is a failed test.
    pub fn start(self) -> Running {
        let words = self.words();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| File::create(folder.path().join(name)).expect("an output file");
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .process_group(0);
        if self.user == User::Nobody {
            // A home it cannot write to is the ordinary case in containers.
            command.env("HOME", "/nonexistent").env_remove("XDG_CACHE_HOME");
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let line = words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
        Running { child, folder, line, deadline: Instant::now() + self.limit }
    }

    /// Runs it to its end.
    pub fn finish(self) -> Finished {
        self.start().finish()
    }
}

/// A program that runs. Dropped, it is killed with everything it started.
pub struct Running {
    child: Child,
    folder: TempDir,
    pub(crate) line: String,
    pub(crate) deadline: Instant,
}

/// A program that ended.
#[derive(Debug)]
pub struct Finished {
    /// What was run.
    pub line: String,
    /// How it ended.
    pub status: ExitStatus,
    /// What it said.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
    /// The time limit ended it.
    pub timed_out: bool,
}

impl Running {
    /// Process id of the program (of `peerdma run` for a program on the HCA).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn stdout(&self) -> String {
        read(&self.folder.path().join("stdout"))
    }

    /// Everything it said so far.
    pub fn said(&self) -> String {
        self.stdout() + &read(&self.folder.path().join("stderr"))
    }

    /// Sends a signal to it and everything it started. What is stopped stands still when this
    /// returns: until one of a process's threads has run and taken the signal, the others go on.
    ///
    /// # Panics
    /// When something does not stop.
    pub fn signal(&self, signal: Signal) {
        let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) else { return };
        let _ = rustix::process::kill_process_group(pid, signal);
        let deadline = Instant::now() + Duration::from_secs(40);
        while signal == Signal::STOP && !group_is_stopped(self.child.id()) {
            assert!(Instant::now() < deadline, "does not stop: {}", self.said());
            std::thread::yield_now();
        }
    }

    /// Whether it still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until something is so, for at most 40 seconds; `what` is what is missed otherwise.
    ///
    /// # Panics
    /// When it is not, or the program ends before.
    #[track_caller]
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Running) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            // Asked first: what its end has brought about counts.
            let alive = self.alive();
            if is_so(self) {
                return;
            }
            assert!(alive && Instant::now() < deadline, "{what}: {}\n{}", self.line, self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end or the time limit.
    pub fn finish(mut self) -> Finished {
        let mut timed_out = false;
        let status = loop {
            match self.child.try_wait().expect("waiting for a child") {
                Some(status) => break status,
                None if Instant::now() > self.deadline => {
                    timed_out = true;
                    self.signal(Signal::KILL);
                    break self.child.wait().expect("waiting for a child");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        Finished {
            line: self.line.clone(),
            status,
            stdout: read(&self.folder.path().join("stdout")),
            stderr: read(&self.folder.path().join("stderr")),
            timed_out,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The node of the ready-made platform's first GPU, for a shell: on a machine with GPUs of its own
/// it is the first beside them.
pub const FIRST_GPU: &str =
    "/dev/dri/renderD$(ls /dev/dri | grep -c ^render | awk '{ print 128 + $1 - 2 }')";

/// Memory of the first GPU of a platform, as a file that lives as long as the program.
///
/// # Panics
/// When it cannot be had.
#[track_caller]
pub fn gpu_memory(host: &Namespace, options: &str) -> (Running, String) {
    let line = format!("{} gpu alloc 4M {options}", peerdma().display());
    let mut running = Run::plain(&line).within(host).start();
    running.until("no memory", |running| running.stdout().ends_with('\n'));
    let file = running.stdout().trim().to_owned();
    (running, file)
}

/// Whether every thread of every process of the group is stopped, or has ended (proc_pid_stat(5)).
fn group_is_stopped(group: u32) -> bool {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    // Behind the name, which may contain anything: state, parent, group.
    let stat = |folder: &Path| {
        let stat = read(&folder.join("stat"));
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace().map(str::to_owned);
        Some((fields.next()?, fields.nth(1)?))
    };
    let group = group.to_string();
    entries(Path::new("/proc"))
        .map(|process| process.path())
        .filter(|process| stat(process).is_some_and(|(_, its)| its == group))
        .flat_map(|process| entries(&process.join("task")))
        .filter_map(|thread| stat(&thread.path()))
        .all(|(state, _)| matches!(state.as_str(), "T" | "t" | "Z" | "X"))
}

pub(crate) fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

impl Finished {
    /// Whether it ended with 0 in time.
    pub fn succeeded(&self) -> bool {
        self.status.success() && !self.timed_out
    }

    /// Fails the test unless it ended with 0 in time; shows everything it said.
    #[track_caller]
    pub fn ok(self) -> Finished {
        assert!(self.succeeded(), "{self}");
        self
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "$ {}", self.line)?;
        match (self.timed_out, self.status.code(), self.status.signal()) {
            (true, ..) => writeln!(f, "ran past its time limit")?,
            (_, Some(code), _) => writeln!(f, "exit status {code}")?,
            (_, _, signal) => writeln!(f, "ended by signal {signal:?}")?,
        }
        write!(f, "--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr)
    }
}

/// The `peerdma` program under test, in a place that every user can read.
///
/// # Panics
/// When it was not built.
pub fn peerdma() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let built = match std::env::var_os("PEERDMA_BIN") {
            Some(path) => PathBuf::from(path),
            None => root.join("target/release/peerdma"),
        };
        assert!(
            built.is_file(),
            "{} is missing: `cargo build --release` first, or `cargo xtask test`",
            built.display()
        );
        // A folder for each build: test programs that run at the same time may be about different
        // ones.
        let made = std::fs::metadata(&built).and_then(|m| m.modified()).expect("its time");
        let made = made.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let folder = shared_dir().join(format!("build-{made}"));
        let copy = folder.join("peerdma");
        if !copy.is_file() {
            forget_old_builds();
            std::fs::create_dir_all(&folder).expect("a folder for the program");
            open_to_everybody(&folder);
            let half = folder.join(format!("peerdma.{}", std::process::id()));
            std::fs::copy(&built, &half).expect("a copy of the program");
            std::fs::rename(&half, &copy).expect("a copy of the program");
        }
        copy
    })
}

/// The build of the library in which `PEERDMA_SABOTAGE` switches defects on. `cargo xtask test`
/// makes it.
pub fn library_with_defects() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let built = root.join("target/sabotage/debug/libibverbs.so");
    let chosen = std::env::var_os("PEERDMA_SABOTAGED_LIBRARY").map_or(built, PathBuf::from);
    chosen.is_file().then_some(chosen)
}

/// Removes copies of builds that are more than a day old.
fn forget_old_builds() {
    for entry in std::fs::read_dir(shared_dir()).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
        let old = age.is_some_and(|age| age > Duration::from_secs(24 * 3600));
        if old && entry.file_name().to_string_lossy().starts_with("build-") {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

pub(crate) fn open_to_everybody(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755));
}

/// A folder that every user can read and that all test programs of one run share.
pub fn shared_dir() -> PathBuf {
    let folder = std::env::temp_dir()
        .join(format!("peerdma-system-tests-{}", rustix::process::geteuid().as_raw()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    open_to_everybody(&folder);
    folder
}
