//! Whoever asks for much waits for it alone. Four READs of one process's memory are always
//! outstanding, and the messages that two other queue pairs of the same processes exchange go on
//! between any two of their ends. No turn of progress of either process works for longer than a
//! millisecond, by its thread's CPU clock; no message takes a second by the wall's, as it would
//! behind somebody who sleeps with a lock; and no fork waits for longer than its limit.
//!
//! Time that interrupts and a hypervisor take from a thread is on its CPU clock, too. So one run
//! with short turns only shows that nothing of ours is long: what the same requests bring about,
//! they bring about in every run.

use rustix::process::Signal;
use std::path::PathBuf;
use std::time::Duration;
use system::{Counters, FIRST_GPU, Namespace, Run, Running, peerdma, skip};

/// Microseconds that a turn may work.
const LONGEST_TURN: u64 = 1000;
/// Runs of which one must show that turns are short.
const RUNS: usize = 5;
/// Exchanges between two ends of READs, or in place of one.
const FEWEST_EXCHANGES: u64 = 8;
/// From one message to the next, on a busy machine: less than anybody waits for a mover.
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// How long a fork waits for the engine.
const PATIENCE: Duration = Duration::from_millis(100);
/// What the system call takes, and what a busy machine keeps from the program meanwhile.
const SLACK: Duration = Duration::from_millis(100);
/// A READ that takes many turns.
const LONG: u64 = 256 << 20;
/// The longest message there is.
const LONGEST: u64 = 2 << 30;
const LIMIT: Duration = Duration::from_secs(120);

/// A namespace of its own and the program, or the end of the test.
macro_rules! host {
    ($label:literal) => {{
        if !system::is_root() {
            skip!("network namespaces need root");
        }
        match system::c_program("turns") {
            Ok(program) => Host { namespace: Namespace::new($label), program },
            Err(reason) => skip!("{reason}"),
        }
    }};
}

struct Host {
    namespace: Namespace,
    program: PathBuf,
}

/// The two processes, each with its counters.
struct Two {
    server: Running,
    asker: Running,
    counters: [Counters; 2],
}

impl Host {
    fn start(&self, arguments: &str, counters: &Counters) -> Running {
        let arguments = arguments.replace("GPU", FIRST_GPU);
        let run = Run::hca("sh -c").arg(format!("exec $PROGRAM {arguments}"));
        let run = run.env("PROGRAM", &self.program).env("PEERDMA_COUNTERS", counters.file());
        run.within(&self.namespace).limit(LIMIT).start()
    }

    /// READs of `length` bytes are under way.
    fn two(&self, how: &str, length: u64, node: &str) -> Two {
        let counters = [Counters::new(), Counters::new()];
        let mut server = self.start(&format!("serve {how} {length} {node}"), &counters[0]);
        server.until("no server", |server| server.stdout().contains("serves"));
        let mut asker = self.start(&format!("ask {length}"), &counters[1]);
        asker.until("no READs", |asker| asker.stdout().contains("reads"));
        Two { server, asker, counters }
    }

    fn gpu(&self, arguments: &str) -> Run {
        let line = format!("{} gpu {arguments}", peerdma().display());
        Run::plain(&line).within(&self.namespace).limit(LIMIT)
    }

    fn is_moving(&self) -> bool {
        self.gpu("--json").finish().ok().stdout.contains("\"moving\"")
    }

    /// A process that stands in the middle of a move, under traffic.
    fn stopped_mover(&self) -> Running {
        for place in ["host", "vram"].into_iter().cycle().take(40) {
            let mut mover = self.gpu(&format!("move all {place}")).start();
            while mover.alive() && !self.is_moving() {}
            mover.signal(Signal::STOP);
            if self.is_moving() {
                return mover;
            }
            mover.signal(Signal::CONT);
            mover.finish();
        }
        panic!("every move was over too soon")
    }
}

impl Two {
    /// The number at the end of each of the asker's lines that begin so.
    fn numbers(&self, beginning: &str) -> Vec<u64> {
        numbers(&self.asker, beginning)
    }

    /// Waits until so many more lines that begin so have come.
    #[track_caller]
    fn until_more(&mut self, lines: usize, beginning: &str) {
        let before = self.numbers(beginning).len();
        self.asker.until(beginning, |asker| numbers(asker, beginning).len() >= before + lines);
    }

    /// Each process forks some times, one after the other, and soon.
    #[track_caller]
    fn fork_soon(&mut self, times: usize) {
        for _ in 0..times {
            for process in [&mut self.asker, &mut self.server] {
                let before = numbers(process, FORK).len();
                process.signal(Signal::USR2);
                process.until(FORK, |process| numbers(process, FORK).len() > before);
            }
        }
        for process in [&self.asker, &self.server] {
            let mut took = numbers(process, FORK);
            took.sort_unstable();
            // What holds forks up holds up most of them; a busy machine, one now and then.
            let usual = took.get(took.len() / 2).copied().map(Duration::from_micros);
            let usual = usual.expect("forks");
            assert!(usual < PATIENCE + SLACK, "{usual:?}: {}", process.said());
        }
    }

    /// Both end well when asked to. Gives the longest turn of both, in microseconds; none where
    /// nothing moved for too long or what they did meanwhile was not fair, be it for the machine.
    #[track_caller]
    fn good_end(self) -> Option<u64> {
        let by_read = self.numbers("read ");
        self.asker.signal(Signal::USR1);
        let (asker, _) = (self.asker.finish().ok(), self.server.finish().ok());
        let gap = asker.stdout.lines().find_map(|line| line.strip_prefix("longest gap "));
        let gap = gap.and_then(|micros| micros.parse().ok()).map(Duration::from_micros);
        let gap = gap.unwrap_or_else(|| panic!("no gap: {asker}"));
        let longest = self.counters.iter().map(|counters| counters.sum("longest_turn_us")).max();
        let fair = by_read.iter().all(|exchanges| *exchanges >= FEWEST_EXCHANGES);
        longest.filter(|_| fair && gap < LONGEST_GAP)
    }
}

/// How a line about a fork begins.
const FORK: &str = "fork took ";

/// Does the same until no turn was too long, no time without an exchange, and no READ fast at the
/// cost of exchanges.
#[track_caller]
fn turns_are_short(run: impl Fn() -> Option<u64>) {
    let mut longest = Vec::new();
    while longest.len() < RUNS {
        longest.push(run());
        if longest.iter().flatten().any(|turn| (1..LONGEST_TURN).contains(turn)) {
            return;
        }
    }
    panic!("the longest turns of {RUNS} runs, in us: {longest:?}");
}

fn numbers(running: &Running, beginning: &str) -> Vec<u64> {
    let said = running.stdout();
    let lines = said.lines().filter(|line| line.starts_with(beginning));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
}

#[test]
fn long_reads_hold_up_nobody_where_the_program_polls() {
    let host = host!("polls");
    turns_are_short(|| {
        let mut two = host.two("poll", LONG, "");
        // where two programs that poll share a CPU, READs take long
        two.until_more(3, "exchanges ");
        two.good_end()
    });
}

#[test]
fn long_reads_hold_up_nobody_where_the_program_sleeps() {
    let host = host!("sleeps");
    turns_are_short(|| {
        let mut two = host.two("sleep", LONG, "");
        two.until_more(3, "read ");
        two.good_end()
    });
}

#[test]
fn the_longest_reads_hold_up_nobody() {
    let host = host!("longest");
    for how in ["poll", "sleep"] {
        turns_are_short(|| {
            let mut two = host.two(how, LONGEST, "");
            two.until_more(2, "exchanges ");
            two.good_end()
        });
    }
}

#[test]
fn a_moving_buffer_holds_up_nobody() {
    let host = host!("moving");
    turns_are_short(|| {
        let mut two = host.two("sleep", LONG / 4, "GPU");
        for _ in 0..4 {
            host.gpu("move all host").finish().ok();
            host.gpu("move all vram").finish().ok();
            two.until_more(1, "exchanges ");
        }
        two.until_more(2, "read ");
        assert!(two.numbers("ends ").is_empty(), "{}", two.asker.said());
        two.good_end()
    });
}

#[test]
fn a_stopped_mover_holds_up_only_who_reads() {
    let host = host!("standing");
    turns_are_short(|| {
        let mut two = host.two("sleep", LONG, "GPU");
        two.until_more(1, "read ");
        let mover = host.stopped_mover();
        // after five seconds the exporter fails the access
        two.asker.until("no end", |asker| !numbers(asker, "ends ").is_empty());
        assert!(two.numbers("ends ")[0] >= FEWEST_EXCHANGES, "{}", two.asker.said());
        two.until_more(2, "exchanges ");
        mover.signal(Signal::CONT);
        mover.finish().ok();
        two.good_end()
    });
}

#[test]
fn long_reads_hold_up_no_fork() {
    let host = host!("forks");
    for how in ["poll", "sleep"] {
        let mut two = host.two(how, LONG, "");
        two.fork_soon(10);
        two.until_more(1, "read ");
        two.good_end();
    }
}

#[test]
fn a_stopped_mover_holds_up_no_fork() {
    let host = host!("forks");
    // Few forks, for the exporter fails the access after five seconds; on a busy machine that may
    // be too soon all the same.
    let in_time = (0..RUNS).any(|_| {
        let mut two = host.two("sleep", LONG, "GPU");
        two.until_more(1, "read ");
        let mover = host.stopped_mover();
        two.fork_soon(3);
        let in_time = host.is_moving() && two.numbers("ends ").is_empty();
        mover.signal(Signal::CONT);
        mover.finish().ok();
        two.good_end();
        in_time
    });
    assert!(in_time, "each time the exporter had failed the access before the last fork");
}
