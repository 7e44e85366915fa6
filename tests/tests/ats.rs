//! Address translation services (issue 4, item 8): the device keeps the translations of memory that moves, where its function's ATS
//! is on and the region allows relaxed ordering.

use system::{Counters, Run, judged, skip};
use tempfile::NamedTempFile;

/// On a machine with GPUs of its own the first beside them.
const NODE: &str =
    "/dev/dri/renderD$(ls /dev/dri | grep -c ^render | awk '{ print 128 + $1 - 2 }')";

/// The default platform with the HCA's ATS off.
fn platform_without_ats() -> NamedTempFile {
    let text = include_str!("../../crates/pcie/src/platforms/default.toml");
    let (before, hca) = text.split_once("name = \"peerdma0\"\n").expect("an HCA");
    let text = format!(
        "{before}name = \"peerdma0\"\n{}",
        hca.replacen("\nats = true\n", "\nats = false\n", 1)
    );
    let file = NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("a platform");
    file
}

#[test]
fn translations_are_kept_where_the_conditions_hold() {
    let program = match system::c_program("ats") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let run = |state: &str| {
        Run::hca("sh -c").arg(format!("exec $PROGRAM {NODE} {state}")).env("PROGRAM", &program)
    };
    let counters = Counters::new();
    judged(run("on").env("PEERDMA_COUNTERS", counters.file()), 109);
    let text = counters.text();
    assert!(text.lines().any(|line| line == "ats_invalidations 8"), "{text}");
    let without = platform_without_ats();
    judged(run("off").option(format!("--platform={}", without.path().display())), 109);
}
