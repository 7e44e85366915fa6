//! Address translation services: the device keeps the translations of memory that
//! moves, where its function's ATS is on and the region allows relaxed ordering.

use system::{Counters, FIRST_GPU, Run, judged, skip};
use tempfile::NamedTempFile;

const DEFAULT: &str = include_str!("../../../crates/pcie/src/platforms/default.toml");

/// The default platform with the HCA's ATS off.
fn without_ats() -> NamedTempFile {
    let (before, hca) = DEFAULT.split_once("name = \"peerdma0\"\n").expect("an HCA");
    let hca = hca.replacen("\nats = true\n", "\nats = false\n", 1);
    platform(&format!("{before}name = \"peerdma0\"\n{hca}"))
}

/// The default platform with switches that redirect all but translated requests.
fn with_acs() -> NamedTempFile {
    platform(&DEFAULT.replace("acs = []", r#"acs = ["RR", "CR", "DT"]"#))
}

fn platform(text: &str) -> NamedTempFile {
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
        Run::hca("sh -c").arg(format!("exec $PROGRAM {FIRST_GPU} {state}")).env("PROGRAM", &program)
    };
    let counters = Counters::new();
    judged(run("on").env("PEERDMA_COUNTERS", counters.file()), 109);
    let text = counters.text();
    assert!(text.lines().any(|line| line == "ats_invalidations 8"), "{text}");
    let on = |run: Run, platform: &NamedTempFile| {
        run.option(format!("--platform={}", platform.path().display()))
    };
    judged(on(run("off"), &without_ats()), 109);

    let (counters, platform) = (Counters::new(), with_acs());
    judged(on(run("on"), &platform).env("PEERDMA_COUNTERS", counters.file()), 109);
    let text = counters.text();
    let to_gpu = " 0000:18:00.0 0000:1a:00.0 THRU_HOST_BRIDGE ";
    let used = text.lines().filter(|line| line.contains(to_gpu) && !line.ends_with(" 0 0"));
    let used: Vec<&str> = used.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(used, ["route", "translated"], "by the root complex and past it: {text}");
}
