//! One run of the example under callgrind: a profile a call of its function `counted`, the name of
//! the piece on its output.

use super::kept::Piece;
use crate::bench::target;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::{Command, Output};

/// The function whose calls are counted. A pattern would dump nothing.
const COUNTED: &str = "instructions::counted";

/// How often it is tried: under valgrind on a machine that is busy the registry's answers may come
/// later than a device waits for them.
const TRIES: usize = 4;
const TOO_LATE: &str = "Timeout";

/// Counts every piece.
///
/// # Errors
/// When valgrind fails, or its profiles are not as many as the calls.
pub fn count(root: &Path) -> Result<Vec<Piece>> {
    let profile = root.join("target/instructions.callgrind");
    let mut output = valgrind(&profile)?;
    for _ in 1..TRIES {
        if output.status.success() || !String::from_utf8_lossy(&output.stderr).contains(TOO_LATE) {
            break;
        }
        output = valgrind(&profile)?;
    }
    if !output.status.success() {
        bail!("valgrind failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8(output.stdout)?;
    let names: Vec<&str> = names.lines().collect();
    let counts = totals(&std::fs::read_to_string(&profile).context("callgrind's profile")?)?;
    let (calls, parts) = (names.len(), counts.len());
    ensure!(calls == parts && calls > 0, "{calls} calls of the pieces, {parts} profiles");
    let calls: Vec<(&str, u64)> = names.into_iter().zip(counts).collect();
    let pieces = calls.chunk_by(|(one, _), (other, _)| one == other);
    Ok(pieces.map(|calls| Piece::of_calls(calls[0].0, calls.iter().map(|(_, n)| *n))).collect())
}

/// One run, which leaves its parts in `profile`.
fn valgrind(profile: &Path) -> Result<Output> {
    // Else the parts would be appended to those of an earlier run.
    let _ = std::fs::remove_file(profile);
    let mut valgrind = Command::new("valgrind");
    valgrind
        // One thread runs at a time, and without fairness one that polls keeps the others out.
        .args(["--quiet", "--fair-sched=yes", "--tool=callgrind", "--combine-dumps=yes"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--dump-after={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(target().join("examples/instructions"))
        // Glibc's choices are tunable, and so would be the counts.
        .env_remove("GLIBC_TUNABLES");
    valgrind.output().context("valgrind")
}

/// Instructions of each part that a call of the function ended. The parts that are left out are
/// what comes before the first call and after the last.
fn totals(profile: &str) -> Result<Vec<u64>> {
    let parts = profile.split("\npart: ").skip(1);
    let of_calls = parts.filter(|part| part.contains("Trigger: --dump-after="));
    let total = |part: &str| {
        let line = part.lines().find_map(|line| line.strip_prefix("totals: "));
        line.and_then(|count| count.trim().parse().ok()).context("a part without its total")
    };
    of_calls.map(total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_each_call_has_its_total() {
        let profile = "version: 1\n\npart: 1\n\ndesc: Trigger: --dump-after=f\n\nfn=(1)\n1 2\n\n\
                       totals: 12\n\npart: 2\n\ndesc: Trigger: --dump-after=f\n\ntotals: 13\n\n\
                       part: 3\n\ndesc: Trigger: Program termination\n\ntotals: 0\n";
        assert_eq!(totals(profile).unwrap(), [12, 13]);
    }
}
