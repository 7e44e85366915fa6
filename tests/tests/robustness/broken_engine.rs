//! An engine that a bug of ours ends or holds up, in a library with deliberate defects: the program
//! around it hears of it, and hangs nowhere.

use std::time::Duration;
use system::{
    Finished, Namespace, Run, c_program, is_root, library_with_defects, peerdma, rows, skip,
};

/// How long a fork waits for the engine.
const PATIENCE: Duration = Duration::from_millis(100);
/// What the system call takes, and what a busy machine keeps from the program meanwhile.
const SLACK: Duration = Duration::from_millis(100);

/// Runs the program with a defect, or ends the test.
macro_rules! with_defect {
    ($defect:literal, $argument:literal) => {{
        if !is_root() {
            skip!("network namespaces need root");
        }
        let Some(library) = library_with_defects() else {
            skip!("no library with defects was built; `cargo xtask test` does");
        };
        let program = match c_program("broken_engine") {
            Ok(program) => program.display().to_string(),
            Err(reason) => skip!("{reason}"),
        };
        let own = Namespace::new("broken");
        let library = library.to_str().expect("a path");
        // By packets, which a turn takes.
        let options = ["run", "--link=roce", "--library", library, "--", &program];
        let run = Run::program(peerdma()).args(&options);
        run.arg($argument).env("PEERDMA_SABOTAGE", $defect).within(&own).finish()
    }};
}

fn fork_took(finished: &Finished) -> Duration {
    let said = finished.stdout.lines().find_map(|line| line.strip_prefix("fork took "));
    let micros = said.and_then(|said| said.strip_suffix(" us")?.parse().ok());
    Duration::from_micros(micros.unwrap_or_else(|| panic!("no fork: {finished}")))
}

#[test]
fn a_panic_of_the_engine_ends_the_device_and_not_the_program() {
    let ended = with_defect!("panic-in-turn", "panics");
    assert!(!ended.stdout.contains("NOT "), "{ended}");
    let ended = ended.ok();
    assert!(rows(&ended) >= 21, "{ended}");
    // one line, whatever panics say by themselves
    let says_so = |line: &str| line.starts_with("peerdma: ") && line.contains("failed by a bug");
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(lines.len() == 1 && says_so(lines[0]), "{ended}");
    assert!(fork_took(&ended) < PATIENCE, "nobody is there to wait for: {ended}");
}

#[test]
fn a_fork_waits_for_an_engine_that_stands_until_its_limit() {
    let ended = with_defect!("endless-turn", "stands").ok();
    let took = fork_took(&ended);
    assert!(took >= PATIENCE, "the engine did not stand: {ended}");
    assert!(took < PATIENCE + SLACK, "{ended}");
}
