//! Everything at once and at random, for as long as `PEERDMA_SOAK_SECONDS` says: short in the
//! suite, long by `cargo xtask soak`. `PEERDMA_SOAK_SEED` repeats a run.

use std::time::Duration;
use system::{Namespace, Run, c_program, is_root, library_with_defects, peerdma, port, skip};

/// How long a run of the suite takes.
const SHORT: u64 = 12;
/// What a run takes beyond its time at most: those who wait for an answer are given half a minute.
const ENDING: Duration = Duration::from_secs(90);

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Connects, disconnects, broken queue pairs, exits and kills: nobody hangs, and nothing is left of
/// anybody.
#[test]
fn connections() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let program = match c_program("cm_stress") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let own = Namespace::new("stress");
    let seed = setting("PEERDMA_SOAK_SEED").unwrap_or(1);
    let seconds = setting("PEERDMA_SOAK_SECONDS").unwrap_or(SHORT);
    let run = Run::hca(&format!("{} {seed} {seconds} {}", program.display(), port()))
        .env("PEERDMA_BIN", peerdma())
        .within(&own)
        .limit(Duration::from_secs(seconds) + ENDING)
        .finish();
    assert!(run.succeeded(), "PEERDMA_SOAK_SEED={seed}: {run}");
    for line in run.stdout.lines().filter(|line| !line.starts_with("client")) {
        println!("{line}");
    }
}

/// The run below notices what it is there for: in a library with a defect it fails, and says what
/// is wrong.
#[test]
fn defects_in_gpu_buffers_are_noticed() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let Some(library) = library_with_defects() else {
        skip!("no library with defects was built; `cargo xtask test` does");
    };
    let own = Namespace::new("defects");
    let program = env!("CARGO_BIN_EXE_gpu_stress");
    let run = |defect: &str| {
        let arguments = ["run", "--library", library.to_str().expect("a path"), "--"];
        let run = Run::program(peerdma()).args(&arguments).args(&[program, "owner", "8", "1"]);
        let run = if defect.is_empty() { run } else { run.env("PEERDMA_SABOTAGE", defect) };
        run.within(&own).limit(Duration::from_secs(8) + ENDING).finish()
    };
    run("").ok();
    // By the user that reads, or by the owner in the end.
    let wrong_bytes: &[&str] = &[" instead of ", " is wrong", " counts "];
    for (defect, messages) in [
        ("lose-write", wrong_bytes),
        ("lose-invalidation", wrong_bytes),
        ("enter-revoked", &["after its revoke"]),
    ] {
        let run = run(defect);
        let is_noticed = messages.iter().any(|message| run.stderr.contains(message));
        assert!(!run.succeeded() && is_noticed, "{defect}: {run}");
    }
}

/// GPU memory that moves, is revoked and freed while three processes write, read and add to it:
/// every byte is accounted for, every error is the one it must be, nothing is written after a
/// revoke, and nothing is left.
#[test]
fn gpu_buffers() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let own = Namespace::new("gpustress");
    let seed = setting("PEERDMA_SOAK_SEED").unwrap_or(1);
    let seconds = setting("PEERDMA_SOAK_SECONDS").unwrap_or(20).div_ceil(2);
    // Half of the time with a user that pins, half without.
    for seed in [seed, seed + 1] {
        let program = env!("CARGO_BIN_EXE_gpu_stress");
        let run = Run::hca(&format!("{program} owner {seconds} {seed}"))
            .within(&own)
            .limit(Duration::from_secs(seconds) + ENDING)
            .finish();
        assert!(run.succeeded(), "PEERDMA_SOAK_SEED={seed}: {run}");
        println!("{}", run.stdout.trim());
        let listing = Run::plain(&format!("{} gpu --json", peerdma().display())).within(&own);
        let listing = listing.finish().ok().stdout;
        assert!(listing.contains("\"buffers\": []"), "{listing}");
    }
}
