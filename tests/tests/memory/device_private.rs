//! Device-private pages: a program's memory goes to GPUs and comes home while
//! RDMA uses it.

use system::{Counters, Namespace, Run, User, c_program, is_root, judged, skip};
use tempfile::NamedTempFile;

/// The program, or the end of the test as skipped.
macro_rules! compiled {
    () => {
        match c_program("device_private") {
            Ok(program) => program.display().to_string(),
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// Ends the test as skipped where page faults are not handed over.
macro_rules! need_faults {
    () => {
        if !is_root() {
            skip!("userfaultfd(2) for the faults of system calls needs root");
        }
    };
}

/// The default platform, changed.
fn platform(changes: &[(&str, &str)]) -> NamedTempFile {
    let mut text = include_str!("../../../crates/pcie/src/platforms/default.toml").to_owned();
    for (from, to) in changes {
        let at = text.rfind(from).unwrap_or_else(|| panic!("no {from} on the default platform"));
        text.replace_range(at..at + from.len(), to);
    }
    let file = NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("a platform");
    file
}

fn on(platform: &NamedTempFile, line: &str) -> Run {
    Run::hca(line).option(format!("--platform={}", platform.path().display()))
}

#[test]
fn pages_are_reached_in_both_gpus() {
    need_faults!();
    let counters = Counters::new();
    let line = format!("{} 3 near", compiled!());
    let run = || Run::hca(&line);
    judged(run().env("PEERDMA_COUNTERS", counters.file()), 240);
    // straight through the switch, and through both host bridges
    for (gpu, way) in [("0000:1a:00.0", "BUS_ADDR"), ("0000:98:00.0", "THRU_HOST_BRIDGE")] {
        let [read, written] = bytes(&counters.text(), &format!("route 0000:18:00.0 {gpu} {way} "));
        assert!(read >= 3 * 32768 && written >= 3 * 32768, "{gpu}: {read} read, {written} written");
    }
    let cached = Counters::new();
    judged(run().env("RELAXED", "1").env("PEERDMA_COUNTERS", cached.file()), 240);
    let text = cached.text();
    let took_back =
        |line: &str| line.strip_prefix("ats_invalidations ").is_some_and(|count| count != "0");
    assert!(text.lines().any(took_back), "{text}");
}

/// The bytes read and written over a route.
fn bytes(text: &str, route: &str) -> [u64; 2] {
    let found = text.lines().find_map(|line| line.strip_prefix(route));
    let words = found.unwrap_or_else(|| panic!("no {route}: {text}")).split(' ');
    let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
    numbers.try_into().expect("two numbers")
}

/// The far GPU's host bridge is not on the kernel's list: the device does not reach its memory.
#[test]
fn pages_out_of_reach_fall_back_alone() {
    need_faults!();
    let far = platform(&[("8086:09a2", "8086:1234")]);
    judged(on(&far, &format!("{} 3 far", compiled!())), 240);
}

/// The far GPU shows two pages of its memory to peers: the others fall back.
#[test]
fn pages_behind_no_bar_fall_back_alone() {
    need_faults!();
    let small = platform(&[("bar_bytes = 0x1_0000_0000", "bar_bytes = 0x2000")]);
    judged(on(&small, &format!("{} 1 small-bar", compiled!())), 15);
}

/// A peer's traffic goes on while the program forks, and neither disturbs a child's memory nor is
/// disturbed by it.
#[test]
fn forks_under_traffic_leave_everybody_their_bytes() {
    let program = match c_program("fork_odp") {
        Ok(program) => program.display().to_string(),
        Err(reason) => skip!("{reason}"),
    };
    judged(Run::hca(&format!("{program} 20")), 43);
    need_faults!();
    judged(Run::hca(&format!("{program} 20 private")), 63);
}

#[test]
fn a_daemon_has_its_engine_and_what_was_away() {
    need_faults!();
    judged(Run::hca(&format!("{} 1 daemon", compiled!())), 1);
}

#[test]
fn a_plain_user_hears_why_not() {
    if !is_root() {
        skip!("already a plain user");
    }
    let program = compiled!();
    // another user's programs take no part in this one's port
    let namespace = Namespace::new("private");
    let run = Run::hca(&format!("{program} 1 refused")).user(User::Nobody).within(&namespace);
    judged(run, 2);
}
