//! GPU memory that moves between video memory and host memory, or is taken back, while other
//! processes register it and RDMA runs on it.
//!
//! `moving_gpu` checks every byte it transfers itself; `peerdma gpu` is the third process, which
//! moves. Each of them is also killed, or stopped, in the middle: the others go on or get an error,
//! within a time.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use system::{Counters, FIRST_GPU, Finished, Namespace, Run, Running, peerdma, skip};

const BYTES: u32 = 1 << 20;
/// Moved in tenths of a second.
const HUGE: u32 = 256 << 20;
/// More than any wait of ours, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A namespace of its own and the program, or the end of the test.
macro_rules! host {
    ($label:literal) => {{
        if !system::is_root() {
            skip!("network namespaces need root");
        }
        match system::c_program("moving_gpu") {
            Ok(program) => Host { namespace: Namespace::new($label), program },
            Err(reason) => skip!("{reason}"),
        }
    }};
}

struct Host {
    namespace: Namespace,
    program: PathBuf,
}

impl Host {
    fn run(&self, arguments: &str) -> Run {
        let arguments = arguments.replace("GPU", FIRST_GPU);
        Run::hca("sh -c")
            .arg(format!("exec $PROGRAM {arguments}"))
            .env("PROGRAM", &self.program)
            .within(&self.namespace)
            .limit(LIMIT)
    }

    /// One process that exports, once it has, and one that uses, once it does.
    fn exporter_and_importer(&self, pinning: &str) -> (Running, Running) {
        (self.exporter(BYTES), self.importer(pinning))
    }

    fn exporter(&self, bytes: u32) -> Running {
        let mut exporter = self.run(&format!("export GPU {bytes} buffer")).start();
        until(&mut exporter, "exported");
        exporter
    }

    fn importer(&self, pinning: &str) -> Running {
        let run = self.run(&format!("import {BYTES} buffer")).env("PEERDMA_DMABUF", pinning);
        let mut importer = run.start();
        until(&mut importer, "ready");
        importer
    }

    fn act(&self, arguments: &str) -> Run {
        let line = format!("{} gpu {arguments}", peerdma().display());
        Run::plain(&line).within(&self.namespace).limit(LIMIT)
    }

    fn gpu(&self, arguments: &str) -> Finished {
        self.act(arguments).finish()
    }

    /// The one buffer as `peerdma gpu --json` tells it.
    fn buffer(&self) -> Value {
        let listing = self.gpu("--json").ok().stdout;
        let mut listing: Value = serde_json::from_str(&listing).expect("JSON");
        listing["buffers"][0].take()
    }

    fn moves(&self) -> u64 {
        self.buffer()["moves"].as_u64().expect("a number")
    }

    /// Stops a program while it is inside an access to the buffer.
    fn stop_inside(&self, program: &Running) {
        let deadline = Instant::now() + LIMIT;
        loop {
            program.signal(Signal::STOP);
            let users = self.buffer()["users"].take();
            let users = users.as_array().expect("users");
            if users.iter().any(|user| user["accesses"].as_u64() > Some(0)) {
                return;
            }
            program.signal(Signal::CONT);
            // It goes on for as long as this takes: stopped at once, it would hardly get further.
            self.buffer();
            assert!(Instant::now() < deadline, "never inside: {}", program.said());
        }
    }

    /// A process in the middle of moving a buffer of `HUGE` bytes, which nobody uses now, stopped
    /// or killed there.
    fn mover_halfway(&self, signal: Signal) -> Running {
        let deadline = Instant::now() + LIMIT;
        let elsewhere = || if self.buffer()["place"] == "vram" { "host" } else { "vram" };
        loop {
            let mut mover = self.act(&format!("move all {}", elsewhere())).start();
            while self.buffer()["state"] != "moving" && mover.alive() {}
            mover.signal(signal);
            if self.buffer()["state"] == "moving" {
                return mover;
            }
            mover.signal(Signal::CONT);
            mover.finish();
            assert!(Instant::now() < deadline, "every move was over too soon");
        }
    }
}

/// Waits until a program has printed a word.
#[track_caller]
fn until(running: &mut Running, word: &str) {
    running.until(word, |running| running.stdout().contains(word));
}

fn rounds(running: &Running) -> u64 {
    let said = running.stdout();
    let last = said.lines().rev().find_map(|line| line.strip_prefix("rounds "));
    last.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Waits until traffic has gone on for some rounds.
#[track_caller]
fn until_more_rounds(running: &mut Running) {
    let before = rounds(running);
    running.until("no traffic", |running| rounds(running) > before);
}

/// The importer's good end when asked for it: every byte was right.
#[track_caller]
fn good_end(importer: Running) {
    importer.signal(Signal::USR1);
    let importer = importer.finish().ok();
    assert!(importer.stdout.contains("good end"), "{importer}");
}

#[test]
fn another_processs_buffer_moves_under_traffic() {
    let host = host!("moves");
    let (_exporter, mut importer) = host.exporter_and_importer("dynamic");
    for round in 0..10 {
        host.gpu("move all host").ok();
        host.gpu("move all vram").ok();
        if round % 3 == 0 {
            until_more_rounds(&mut importer);
        }
    }
    assert_eq!(host.moves(), 20);
    good_end(importer);
}

/// With its translations in the device's cache: each move takes them back, before a poisoned byte
/// is seen.
#[test]
fn a_buffer_with_cached_translations_moves_under_traffic() {
    let host = host!("ats");
    let _exporter = host.exporter(BYTES);
    let counters = Counters::new();
    let run = host.run(&format!("import {BYTES} buffer")).env("RELAXED", "1");
    let mut importer = run.env("PEERDMA_COUNTERS", counters.file()).start();
    until(&mut importer, "ready");
    for _ in 0..5 {
        host.gpu("move all host").ok();
        until_more_rounds(&mut importer);
        host.gpu("move all vram").ok();
        until_more_rounds(&mut importer);
    }
    good_end(importer);
    let text = counters.text();
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|digits| digits.parse().ok()).unwrap_or(0u64)
    };
    // a round reaches every 64 KiB; each of the ten moves took them all back but perhaps the last
    let (hits, misses) = (count("ats_hits"), count("ats_misses"));
    let invalidations = count("ats_invalidations");
    assert!(invalidations >= 9 * 16 && misses >= invalidations && hits > misses, "{text}");
}

#[test]
fn a_pinned_buffer_stays() {
    let host = host!("pinned");
    let (_exporter, mut importer) = host.exporter_and_importer("pinned");
    for action in ["move all host", "revoke all"] {
        let refused = host.gpu(action);
        assert!(!refused.succeeded() && refused.stderr.contains("pins"), "{refused}");
    }
    until_more_rounds(&mut importer);
    assert_eq!(host.moves(), 0);
    good_end(importer);
}

/// A program keeps a buffer where it is, in one way, until it is asked to end that.
fn stays_until_it_is_let_go(host: &Host, way: &str) {
    let mut program = host.run(&format!("{way} GPU {BYTES}")).start();
    until(&mut program, "mapped");
    let refused = host.gpu("move all host");
    assert!(!refused.succeeded() && refused.stderr.contains("pins"), "{refused}");
    program.signal(Signal::USR1);
    until(&mut program, "unmapped");
    assert!(!program.stdout().contains("NOT"), "{way}");
    host.gpu("move all host").ok();
}

#[test]
fn a_mapped_buffer_stays_until_the_last_page_is_unmapped() {
    stays_until_it_is_let_go(&host!("mapped"), "map");
}

#[test]
fn a_buffer_stays_while_its_mapping_moves() {
    stays_until_it_is_let_go(&host!("remapped"), "remap");
}

#[test]
fn a_buffer_stays_while_a_child_has_it_mapped() {
    stays_until_it_is_let_go(&host!("inherited"), "inherit");
}

#[test]
fn a_bracket_of_cpu_access_keeps_a_buffer_in_place() {
    stays_until_it_is_let_go(&host!("bracket"), "bracket");
}

#[test]
fn the_child_of_a_killed_importer_holds_up_nobody() {
    let host = host!("outlived");
    let _exporter = host.exporter(BYTES);
    let run = host.run(&format!("import {BYTES} buffer")).env("PEERDMA_DMABUF", "pinned");
    let mut importer = run.env("CHILD", "1").start();
    until(&mut importer, "ready");
    until(&mut importer, "child ");
    let child = Child::of(&importer);
    assert!(!host.gpu("move all host").succeeded(), "it is pinned");
    importer.signal(Signal::KILL);
    drop(importer);
    assert!(child.lives(), "it ended with its parent");
    host.gpu("move all host").ok();
    assert!(child.lives(), "it ended before the move");
}

/// The child of a program, which is in a session of its own. Dropped, it is killed.
struct Child(Pid);

impl Child {
    /// Whom the program named.
    fn of(parent: &Running) -> Child {
        let said = parent.stdout();
        let pid = said.lines().find_map(|line| line.strip_prefix("child ")?.parse().ok());
        Child(pid.and_then(Pid::from_raw).unwrap_or_else(|| panic!("no child: {said}")))
    }

    /// A process that only waits to be reaped has no command line.
    fn lives(&self) -> bool {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.0.as_raw_nonzero()));
        line.is_ok_and(|line| !line.is_empty())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn a_revoked_buffer_ends_every_way_of_using_it() {
    for pinning in ["dynamic", "pinned-revocable"] {
        let host = host!("revoked");
        let (_exporter, mut importer) = host.exporter_and_importer(pinning);
        until_more_rounds(&mut importer);
        host.gpu("revoke all").ok();
        let ended = importer.finish();
        assert!(ended.stdout.contains("ends remote access error"), "{pinning}: {ended}");
        assert!(host.gpu("").ok().stdout.contains("revoked"));
    }
}

#[test]
fn importers_go_on_when_the_exporter_is_killed() {
    let host = host!("exporter");
    let (exporter, mut importer) = host.exporter_and_importer("dynamic");
    host.gpu("move all host").ok();
    exporter.signal(Signal::KILL);
    drop(exporter);
    until_more_rounds(&mut importer);
    until_more_rounds(&mut importer);
    good_end(importer);
}

#[test]
fn a_killed_importer_holds_up_nobody() {
    let host = host!("importer");
    let (_exporter, pinner) = host.exporter_and_importer("pinned");
    // Killed with its pin, and killed inside an access: neither is waited for.
    assert!(!host.gpu("move all host").succeeded());
    host.stop_inside(&pinner);
    pinner.signal(Signal::KILL);
    drop(pinner);
    let mut other = host.importer("dynamic");
    let started = Instant::now();
    host.gpu("move all host").ok();
    assert!(started.elapsed() < Duration::from_secs(2), "the dead one was waited for");
    until_more_rounds(&mut other);
    good_end(other);
}

#[test]
fn a_buffer_is_whole_when_its_mover_is_killed() {
    let host = host!("mover");
    let _exporter = host.exporter(HUGE);
    let mut importer = host.importer("dynamic");
    for _ in 0..3 {
        until_more_rounds(&mut importer);
        importer.signal(Signal::STOP);
        drop(host.mover_halfway(Signal::KILL));
        importer.signal(Signal::CONT);
        until_more_rounds(&mut importer);
    }
    good_end(importer);
}

#[test]
fn who_waits_for_a_stopped_mover_gets_an_error() {
    let host = host!("stopped");
    let _exporter = host.exporter(HUGE);
    let importer = host.importer("dynamic");
    importer.signal(Signal::STOP);
    let mover = host.mover_halfway(Signal::STOP);
    importer.signal(Signal::CONT);
    let started = Instant::now();
    let other = host.gpu("move all vram");
    assert!(!other.succeeded() && other.stderr.contains("moving"), "{other}");
    let ended = importer.finish();
    assert!(ended.stdout.contains("ends "), "{ended}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    mover.signal(Signal::CONT);
    mover.finish().ok();
    good_end(host.importer("dynamic"));
}

#[test]
fn one_that_stands_inside_an_access_is_not_waited_for_without_end() {
    let host = host!("inside");
    let (_exporter, importer) = host.exporter_and_importer("dynamic");
    host.stop_inside(&importer);
    let mut other = host.importer("dynamic");
    let refused = host.gpu("move all host");
    assert!(!refused.succeeded() && refused.stderr.contains("is it stopped?"), "{refused}");
    until_more_rounds(&mut other);
    let late = host.gpu("revoke all");
    assert!(!late.succeeded() && late.stderr.contains("is it stopped?"), "{late}");
    let revoked = other.finish();
    assert!(revoked.stdout.contains("ends remote access error"), "{revoked}");
    importer.signal(Signal::CONT);
    let ended = importer.finish();
    assert!(ended.stdout.contains("ends remote access error"), "{ended}");
    // Now nobody is inside any more, and another revoke says so.
    host.gpu("revoke all").ok();
}
