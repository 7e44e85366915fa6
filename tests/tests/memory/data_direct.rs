//! Data Direct: regions that the HCA's second function reads and writes, as programs of a ConnectX
//! register them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use system::{
    Container, Counters, FIRST_GPU, Namespace, Run, UCX_PERFTEST_ENV, beside_suite, judged,
    lacks_ucx, next_debian, pair, peerdma, port, skip, ucx_perftest,
};

/// The HCA, its Data Direct function and the near GPU of the default platform.
const HCA: &str = "route 0000:18:00.0 0000:1a:00.0 BUS_ADDR";
const SIDE: &str = "route 0000:19:00.0 0000:1a:00.0 BUS_ADDR";

fn program(expected: &str) -> Result<Run, String> {
    let run = Run::hca("sh -c").arg(format!("exec $PROGRAM {FIRST_GPU} {expected}"));
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
    let default = include_str!("../../../crates/pcie/src/platforms/default.toml");
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

/// The route counters of a program that moves memory within the first GPU of the ready-made
/// platform with Data Direct, and the bytes a second it moved.
fn moved(how: &str) -> Result<(Counters, f64), String> {
    let counters = Counters::new();
    let run = connectx(program(&format!("move {how}"))?);
    // Slow enough for the links, and not this machine, to say how fast.
    let run = run.option("--platform").option("grace").option("--pace=0.0003");
    let ended = run.env("PEERDMA_COUNTERS", counters.file()).finish().ok();
    let rate = ended.stdout.split(' ').next().and_then(|rate| rate.parse().ok());
    Ok((counters, rate.unwrap_or_else(|| panic!("no rate: {ended}"))))
}

#[test]
fn with_data_direct_no_byte_crosses_a_root_complex_and_it_is_faster() {
    let crossed = |counters: &Counters| -> u64 {
        let text = counters.text();
        let lines = text.lines().filter_map(|line| line.strip_prefix("link root complex "));
        lines.filter_map(|line| line.split_once(' ')?.1.parse::<u64>().ok()).sum()
    };
    let ((direct, direct_rate), (plain, plain_rate)) = match (moved("direct"), moved("plain")) {
        (Ok(direct), Ok(plain)) => (direct, plain),
        (Err(reason), _) | (_, Err(reason)) => skip!("{reason}"),
    };
    // A packet that is sent again is read again; over links as slow as these, probes for lost tails
    // send some in vain.
    let bytes_moved = 16 << 20..20 << 20;
    let is_moved = |route: Option<(u64, u64)>| {
        route.is_some_and(|(read, written)| {
            bytes_moved.contains(&read) && bytes_moved.contains(&written)
        })
    };
    let route = bytes(&direct, "route 0008:03:00.0 0008:04:00.0 BUS_ADDR");
    assert!(is_moved(route), "{}", direct.text());
    assert_eq!(crossed(&direct), 0, "{}", direct.text());
    let route = bytes(&plain, "route 0000:01:00.0 0008:04:00.0 THRU_HOST_BRIDGE");
    assert!(is_moved(route), "{}", plain.text());
    // Two root complexes, there and back.
    assert!(bytes_moved.contains(&(crossed(&plain) / 4)), "{}", plain.text());
    // 0.0003 of 32 GB/s, but for what the first pieces may run ahead
    assert!(plain_rate < 10e6, "{plain_rate}");
    assert!(direct_rate > 1.3 * plain_rate, "{direct_rate} by Data Direct, {plain_rate} without");
}

/// Runs `peerdma` in the namespace and gives what it says.
fn said_by_peerdma(host: &Namespace, line: &str) -> String {
    let run = Run::program(peerdma()).args(&line.split(' ').collect::<Vec<_>>());
    run.within(host).finish().ok().stdout
}

#[test]
fn the_function_is_unplugged_and_replugged_under_a_running_program() {
    if !system::is_root() {
        skip!("namespaces cannot be made");
    }
    let run = match program("unplug < $FIFO") {
        Ok(run) => connectx(run),
        Err(reason) => skip!("{reason}"),
    };
    let host = Namespace::new("data-direct");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let run = run.env("FIFO", &fifo).within(&host).limit(Duration::from_secs(60));
    let mut running = run.start();
    let mut tell = fs::File::options().write(true).open(&fifo).expect("the fifo");
    for (word, state) in [("unplug", "unplugged"), ("replug", "plugged")] {
        running.until("no row", |running| running.stdout().ends_with(&format!("{word}\n")));
        let done = said_by_peerdma(&host, &format!("ctl {word} 0000:19:00.0"));
        assert!(
            done.starts_with("0000:19:00.0 of process ") && done.trim().ends_with(state),
            "{done}"
        );
        let listed = said_by_peerdma(&host, "ctl --json");
        assert!(listed.contains(&format!("\"state\": \"{state}\"")), "{listed}");
        tell.write_all(b"done\n").expect("tell the program");
    }
    let ended = running.finish();
    assert!(!ended.stdout.contains("NOT"), "{ended}");
    assert!(ended.ok().stdout.ends_with(" rows, 0 wrong\n"));
}

#[test]
fn who_names_no_function_is_told_how_to_find_one() {
    if !system::is_root() {
        skip!("namespaces cannot be made");
    }
    let host = Namespace::new("data-direct-none");
    let ended = Run::program(peerdma()).args(&["ctl", "unplug", "all"]).within(&host).finish();
    assert!(!ended.succeeded() && ended.stderr.contains("--platform grace"), "{ended}");
}

/// rdma-core's own tests of Data Direct (from version 54 on), unmodified. They want CUDA memory; a
/// small module of ours by that name gives them a software GPU's.
#[test]
fn rdma_cores_own_tests_of_data_direct() {
    let root = match next_debian() {
        Ok(root) => root,
        Err(reason) => skip!("{reason}"),
    };
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    let suite = beside_suite(&root, &ours.join("cuda"));
    let host = Namespace::new("own-tests");
    let line = "/usr/bin/python3 tests/run_tests.py --dev peerdma0 --port 1 --gid 0 --gpu 0 -v \
                tests.test_mlx5_dmabuf";
    let script = format!("cd {} && exec {line}", suite.display());
    let run = connectx(Run::hca("sh -c").arg(script)).env("PYTHONPATH", &suite);
    let run = run.env("PYTHONDONTWRITEBYTECODE", "1").inside(&Container::of(&root)).within(&host);
    let ended = run.limit(Duration::from_secs(120)).finish();
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert!(said.contains("Ran 3 tests") && said.lines().any(|line| line == "OK"), "{said}");
}

/// A server and a client over what looks like a ConnectX and has no queues to drive by oneself.
fn settles_on_plain_verbs(line: &str) {
    let host = Namespace::new("connectx");
    let run = |line: &str| {
        connectx(Run::hca(line))
            .within(&host)
            .env("UCX_TLS", "rc,ud,self")
            .env(UCX_PERFTEST_ENV.0, UCX_PERFTEST_ENV.1)
    };
    let info = run("ibv_devinfo").finish().ok().stdout;
    assert!(info.contains("0x02c9") && info.contains("vendor_part_id:\t\t\t4131"), "{info}");
    let port = port();
    let line = format!("{line} -p {port}");
    let (_, client) = pair(run(&line), Some(&host), run(&format!("{line} 127.0.0.1")), port);
    assert!(client.succeeded(), "{line}: {client}");
}

#[test]
fn perftest_settles_on_plain_verbs_of_a_connectx() {
    if !system::has("ib_write_bw") || !system::is_root() {
        skip!("perftest is not installed, or namespaces cannot be made");
    }
    settles_on_plain_verbs("ib_write_bw -d peerdma0 -F -n 200");
}

#[test]
fn ucx_settles_on_plain_verbs_of_a_connectx() {
    if let Some(reason) = lacks_ucx() {
        skip!("{reason}");
    }
    if !system::is_root() {
        skip!("namespaces need root");
    }
    settles_on_plain_verbs(&format!("{} -t tag_bw -n 200 -s 65536", ucx_perftest()));
}
