//! Programs that get less and less address space, from enough to nothing. What a verb needs and
//! does not get is its ENOMEM; the program says so and ends by itself. It never ends by our hand.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use system::{
    Finished, Run, Running, c_example, c_library, c_program, judged, lacks_ucx, listens, port, skip,
};

/// Limits that are tried.
const STEPS: u64 = 200;
/// Where they begin: a program that needs more fails the test.
const MOST: u64 = 4 << 30;
/// Pairs of programs that run at a time.
const AT_ONCE: u64 = 4;

/// After so long a program that has not ended may be stuck by its own doing; it is asked as often.
const A_WHILE: Duration = Duration::from_secs(1);

/// What Rust says when it ends a program.
const OUR_HAND: [&str; 4] =
    ["memory allocation of", "fatal runtime error", "panicked at", "panic in a function"];

/// A server and a client that meet at a port, written PORT in their lines.
struct Programs {
    server: String,
    client: String,
    env: Vec<(&'static str, String)>,
    /// How long each may take.
    soon: Duration,
    /// Whether one that a signal or the time ended owes that to itself or to its partner, by what
    /// both said.
    is_their_own: fn(&str) -> bool,
}

/// How two programs under one limit fared.
struct Met {
    /// Those that ended by themselves or by the time.
    ended: Vec<Finished>,
    /// By both.
    said: String,
}

impl Programs {
    fn run(&self, line: &str, limit: u64, port: u16) -> Run {
        let line = line.replace("PORT", &port.to_string());
        let run = Run::hca(&format!("prlimit --as={limit} {line}")).limit(self.soon);
        self.env.iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    /// Runs both under a limit.
    fn meet(&self, limit: u64) -> Met {
        let port = port();
        let mut server = self.run(&self.server, limit, port).start();
        if !comes_up(port, self.soon, || server.alive()) {
            return Met { said: server.said(), ended: vec![server.finish()] };
        }
        let mut client = self.run(&self.client, limit, port).start();
        let started = Instant::now();
        while !ends(&mut client, A_WHILE) && started.elapsed() < self.soon {
            let said = server.said() + &client.said();
            if (self.is_their_own)(&said) {
                return Met { ended: Vec::new(), said };
            }
        }
        let client = client.finish();
        // A server whose client failed may wait for ever, and ends when it is dropped.
        let patience = if client.succeeded() { self.soon } else { Duration::from_millis(100) };
        let server_ended = ends(&mut server, patience);
        let said = server.said() + &client.stdout + &client.stderr;
        let server = server_ended.then(|| server.finish());
        Met { ended: [client].into_iter().chain(server).collect(), said }
    }

    /// Runs both under one limit: neither ends by our hand. Gives whether both succeeded.
    fn work_under(&self, limit: u64) -> bool {
        let Met { ended, said } = self.meet(limit);
        let by_us = OUR_HAND.iter().any(|words| said.contains(words));
        assert!(!by_us, "under {limit} bytes: {said}");
        for program in &ended {
            let itself = program.status.code().is_some() && !program.timed_out;
            let own = itself || (self.is_their_own)(&said) || dies_without_us(program, limit);
            assert!(own, "under {limit} bytes: {program}\ntogether: {said}");
        }
        ended.len() == 2 && ended.iter().all(Finished::succeeded)
    }

    /// Shrinks the limit from enough to nothing, in smaller steps the less there is.
    fn shrink(&self) {
        let mut limits = (25..).map(|power| 1 << power).take_while(|limit| *limit <= MOST);
        let enough = limits.find(|limit| self.work_under(*limit));
        let enough = enough.expect("a limit under which they work");
        let limit_of = |step: u64| enough * step / STEPS * step / STEPS;
        let share = |first: u64| {
            let steps = (first..=STEPS).step_by(AT_ONCE as usize);
            steps.filter(|step| self.work_under(limit_of(*step))).count()
        };
        let good: usize = std::thread::scope(|scope| {
            let workers: Vec<_> =
                (1..=AT_ONCE).map(|first| scope.spawn(move || share(first))).collect();
            workers.into_iter().map(|worker| worker.join().expect("no program ended by us")).sum()
        });
        println!("{}: of {STEPS} limits up to {enough} bytes it works under {good}", self.server);
        assert!(good > 0);
    }
}

/// Whether a program ends within `soon`.
fn ends(program: &mut Running, soon: Duration) -> bool {
    let end = Instant::now() + soon;
    while program.alive() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Whether anybody listens at a TCP port before `alive` is over.
fn comes_up(port: u16, soon: Duration, mut alive: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + soon;
    while alive() && Instant::now() < end {
        if listens(port, None) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// What our library takes of a program's address space before any of it runs, at most.
const OUR_SHARE: u64 = 8 << 20;

/// Whether a program that a signal ended does not even start where it is alone: then it was the
/// kernel or the loader. One that said nothing may also die alone with as much less as we take, by
/// what a library of its own does first (UCX 1.18 copies a string that it did not get).
fn dies_without_us(program: &Finished, limit: u64) -> bool {
    if program.timed_out {
        return false;
    }
    let mut words = program.line.split_whitespace().skip_while(|word| !word.starts_with("--as="));
    let name = words.nth(1).expect("a program behind its limit");
    let dies_alone = |limit: u64| {
        let alone = Run::plain(&format!("prlimit --as={limit} {name} --no-such-switch")).finish();
        alone.status.signal().is_some()
    };
    let silent = program.stdout.is_empty() && program.stderr.is_empty();
    let mut less = (limit.saturating_sub(OUR_SHARE)..limit).rev().step_by(32 << 10);
    dies_alone(limit) || silent && less.any(dies_alone)
}

#[test]
fn a_pingpong_fails_by_itself() {
    if !system::has("ibv_rc_pingpong") || !system::has("prlimit") {
        skip!("needs ibverbs-utils and util-linux");
    }
    let line = "ibv_rc_pingpong -g 0 -n 50 -p PORT";
    let (server, client) = (line.to_owned(), format!("{line} 127.0.0.1"));
    let soon = Duration::from_secs(30);
    Programs { server, client, env: Vec::new(), soon, is_their_own: |_| false }.shrink();
}

/// UCX ends the program by itself where it has no memory, and says where, or faults, or asks for
/// ever, or drops its end of a connection: then its peer waits for ever, for what it was to send.
/// That is not ours unless we are in the stack that is shown.
fn by_ucx(said: &str) -> bool {
    let complains = [
        "Fatal:",
        "Assertion",
        "UCX  ERROR",
        "UCX  FATAL",
        "fault at",
        "set_ep_failed status Out of",
    ];
    complains.iter().any(|words| said.contains(words)) && !said.contains("libibverbs")
}

#[test]
fn ucx_fails_by_itself() {
    if !system::has("prlimit") {
        skip!("needs util-linux");
    }
    if let Some(reason) = lacks_ucx() {
        skip!("{reason}");
    }
    let program = match c_example("libucx-dev", "ucp_hello_world", &["-lucp", "-lucs"]) {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let server = format!("{} -w -s 1000 -p PORT", program.display());
    let client = format!("{server} -n 127.0.0.1");
    let stacks = match c_library("fault_stack") {
        Ok(library) => library.display().to_string(),
        Err(reason) => skip!("{reason}"),
    };
    let env = [
        ("UCX_TLS", "rc_v"),
        ("UCX_NET_DEVICES", "peerdma0:1"),
        // UCX's own handler shows a stack only where it has memory for it.
        ("UCX_HANDLE_ERRORS", "none"),
        // What it complains of is seen at once there, and not when a buffer is full.
        ("UCX_LOG_FILE", "stderr"),
        // That it drops a connection because its own memory is out, it says to nobody else.
        ("UCX_LOG_LEVEL", "debug"),
        ("LD_PRELOAD", stacks.as_str()),
    ];
    let env = env.map(|(name, value)| (name, value.to_owned())).to_vec();
    let soon = Duration::from_secs(60);
    Programs { server, client, env, soon, is_their_own: by_ucx }.shrink();
}

#[test]
fn whichever_call_for_memory_fails_a_verb_says_so() {
    if !cfg!(target_arch = "x86_64") {
        skip!("the program refuses mmap(2) in x86-64's assembly");
    }
    let program = match c_program("no_memory") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    judged(Run::hca(&format!("{} 100", program.display())), 200);
}

/// A memory cgroup, of either version; gone with this.
struct Group(PathBuf);

impl Group {
    /// One with a limit; `None` where this user may make none.
    fn new(name: &str, limit: u64) -> Option<Group> {
        let versions = [("", "memory.max"), ("memory", "memory.limit_in_bytes")];
        versions.iter().find_map(|(root, file)| {
            let root = Path::new("/sys/fs/cgroup").join(root);
            let folder = root.join(format!("peerdma-{}-{name}", std::process::id()));
            std::fs::create_dir(&folder).ok()?;
            let group = Group(folder);
            let limited = group.0.join(file);
            // a file of ours would be made where the kernel has none
            let taken = limited.is_file() && std::fs::write(limited, limit.to_string()).is_ok();
            taken.then_some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// No call fails there: the kernel ends who touches a page too many. Nobody else does, and nobody
/// waits for ever.
#[test]
fn a_cgroups_limit_is_the_kernels_to_enforce() {
    if Group::new("probe", MOST).is_none() {
        skip!("needs a memory cgroup of its own");
    }
    if !cfg!(target_arch = "x86_64") {
        skip!("the program is in part x86-64's assembly");
    }
    let program = match c_program("no_memory") {
        Ok(program) => program.display().to_string(),
        Err(reason) => skip!("{reason}"),
    };
    let mut outcomes = [0; 2];
    for megabytes in (1..=32).rev() {
        let group = Group::new(&megabytes.to_string(), megabytes << 20).expect("one more group");
        let inside =
            format!("echo $$ > {}/cgroup.procs && exec {program} malloc 0 0", group.0.display());
        let ended = Run::hca("sh -c").arg(inside).finish();
        let by_kernel = ended.status.signal() == Some(9) && !ended.timed_out;
        assert!(by_kernel || ended.succeeded(), "with {megabytes} MiB: {ended}");
        outcomes[usize::from(by_kernel)] += 1;
    }
    println!("it works under {} limits and is killed under {}", outcomes[0], outcomes[1]);
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}
