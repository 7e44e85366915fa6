//! Data Direct: regions that the HCA's second function reads and writes, as programs of a ConnectX register them.

use std::fs;
use system::{Counters, Run, judged, skip};

/// On a machine with GPUs of its own the first beside them.
const NODE: &str =
    "/dev/dri/renderD$(ls /dev/dri | grep -c ^render | awk '{ print 128 + $1 - 2 }')";
/// The HCA, its Data Direct function and the near GPU of the default platform.
const HCA: &str = "route 0000:18:00.0 0000:1a:00.0 BUS_ADDR";
const SIDE: &str = "route 0000:19:00.0 0000:1a:00.0 BUS_ADDR";

fn program(expected: &str) -> Result<Run, String> {
    let run = Run::hca("sh -c").arg(format!("exec $PROGRAM {NODE} {expected}"));
    Ok(run.env("PROGRAM", system::c_program("data_direct")?))
}

fn connectx(run: Run) -> Run {
    run.option("--model").option("connectx")
}

/// Bytes read and written of a route.
fn bytes(counters: &Counters, route: &str) -> Option<(u64, u64)> {
    let text = counters.text();
    let line = text.lines().find_map(|line| line.strip_prefix(route))?.trim().to_owned();
    let (read, written) = line.split_once(' ')?;
    Some((read.parse().ok()?, written.parse().ok()?))
}

#[test]
fn regions_by_data_direct_take_the_route_of_the_side_function() {
    let run = match program("works") {
        Ok(run) => connectx(run),
        Err(reason) => skip!("{reason}"),
    };
    let counters = Counters::new();
    judged(run.env("PEERDMA_COUNTERS", counters.file()), 71);
    let (read, written) = bytes(&counters, SIDE).expect("the side function's route");
    assert!(read > 8192 && written >= 8192, "{}", counters.text());
    // Registered plainly once, and never touched by that way.
    assert_eq!(bytes(&counters, HCA), Some((0, 0)), "{}", counters.text());
}

#[test]
fn there_is_none_without_the_function_the_capability_or_the_identity() {
    let default = include_str!("../../crates/pcie/src/platforms/default.toml");
    let others = default.replace("of = \"peerdma0\"", "of = \"peerdma0\"\nvuid = \"another\"");
    let incapable = default.replace("# data_direct = false", "data_direct = false");
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in [("others", others), ("incapable", incapable)] {
        assert_ne!(text, default, "{name}");
        let file = folder.path().join(name);
        fs::write(&file, text).expect("a platform file");
        let run = match program("none") {
            Ok(run) => connectx(run).option("--platform").option(&file),
            Err(reason) => skip!("{reason}"),
        };
        judged(run, 4);
    }
    match program("plain") {
        Ok(run) => judged(run, 4),
        Err(reason) => skip!("{reason}"),
    };
}
