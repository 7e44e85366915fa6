//! MPI libraries, unmodified, over UCX and over libfabric: a program of ours that compares every
//! byte it moves, and mpi4py's own suite. All that ranks say to each other goes by the device,
//! which counts it.

use std::time::Duration;
use system::{Counters, Finished, Mpi, Namespace, Run, Wheels, is_root, skip, veth_pair};

/// Ranks of our program, and the bytes that each passes on at the least (`SIZES` in `mpi_moves.c`).
const RANKS: u32 = 3;
const BYTES_OF_A_RANK: u64 = 2 << 20;
/// What that program compares, and what else where a READ and the WRITE behind it keep their order.
const KINDS: [&str; 6] = ["messages", "floods", "collectives", "fences", "sums", "locks"];
const SWAPS: &str = "swaps";

/// mpi4py's tests of messages, collectives and one-sided operations.
const WHOLE: &str = "-i test_p2p -i test_cco -i test_rma";
/// Some messages, collectives and one-sided operations.
const MESSAGES: &str = "-i test_p2p_buf -i test_p2p_obj";
const COLLECTIVES: &str = "-i test_cco_buf -i test_cco_obj";
const ONE_SIDED: &str = "-i test_rma -e test_rma_nb -k testPutGet -k testFetch -k testCompare";
/// Set by `cargo xtask soak`: all of mpi4py's tests of those kinds then.
const SOAK: &str = "PEERDMA_SOAK_SECONDS";

macro_rules! need {
    ($library:expr) => {
        match $library {
            Ok(library) => library,
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// A network in which libfabric's verbs provider finds an address: it passes over loopback.
macro_rules! ethernet {
    () => {{
        if !is_root() {
            skip!("network namespaces need root");
        }
        veth_pair("mpi", 1500)
    }};
}

/// The ranks' program found every byte where it should be, and the device moved them.
#[track_caller]
fn moves(mpi: &Mpi, network: Option<&Namespace>) -> Result<(), String> {
    moves_of(mpi, network, true)
}

/// The same, with swaps or without.
#[track_caller]
fn moves_of(mpi: &Mpi, network: Option<&Namespace>, swaps: bool) -> Result<(), String> {
    let (program, counters) = (mpi.program("mpi_moves")?, Counters::new());
    let run = mpi.run(RANKS, &program, &counters);
    let run = if swaps { run } else { run.arg("without-swaps") };
    let said = ended(run, network).ok();
    for kind in KINDS.into_iter().chain(swaps.then_some(SWAPS)) {
        assert!(said.stdout.contains(&format!("{kind}: right\n")), "{kind}: {said}");
    }
    let moved = counters.sum("sent_bytes") + counters.sum("rcvd_bytes");
    assert!(moved >= u64::from(RANKS) * BYTES_OF_A_RANK, "{moved} bytes went this way: {said}");
    Ok(())
}

/// mpi4py's tests, with arrays of Python's own.
#[track_caller]
fn suite(mpi: &Mpi, wheels: &Wheels, tests: &[&str], least: u32, network: Option<&Namespace>) {
    let whole = std::env::var_os(SOAK).is_some();
    let counters = Counters::new();
    let run = mpi.run(2, &wheels.program("python3"), &counters);
    let run = run.arg(wheels.tests_of_mpi4py().join("main.py"));
    let run = run.args(&["--quiet", "--no-numpy", "--no-threads"]);
    let tests = if whole { WHOLE.to_owned() } else { tests.join(" ") };
    let tests: Vec<&str> = tests.split_whitespace().collect();
    let run = run.args(&tests).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = ended(run.limit(Duration::from_secs(if whole { 900 } else { 180 })), network).ok();
    // Each rank says so, on a line that the other may break.
    let ran =
        said.stderr.split("Ran ").filter_map(|rest| rest.split_once(" tests")?.0.parse().ok());
    let ran: Vec<u32> = ran.collect();
    assert!(ran.len() == 2 && ran.iter().all(|ran| *ran >= least), "{ran:?}: {said}");
    assert_ne!(counters.sum("sent_pkts"), 0, "{said}");
}

fn ended(run: Run, network: Option<&Namespace>) -> Finished {
    match network {
        Some(network) => run.within(network).finish(),
        None => run.finish(),
    }
}

#[test]
fn open_mpi_over_reliable_connections() {
    let mpi = need!(Mpi::open_over_ucx("rc_v"));
    need!(moves(&mpi, None));
}

/// Open MPI 4.1 swaps by a get and a put behind it. Over datagrams UCX makes an answer of its own
/// of the get, which may have to wait, and the put is done meanwhile.
#[test]
fn open_mpi_over_datagrams() {
    let mpi = need!(Mpi::open_over_ucx("ud_v"));
    need!(moves_of(&mpi, None, false));
}

#[test]
fn open_mpi_over_libfabric() {
    let (here, _there) = ethernet!();
    let mpi = need!(Mpi::open_over_verbs());
    need!(moves(&mpi, Some(&here)));
}

#[test]
fn mpich_over_ucx() {
    for transports in ["rc_v", "ud_v"] {
        let mpi = need!(Mpi::mpich_over_ucx(transports));
        need!(moves(&mpi, None));
    }
}

#[test]
fn mpich_over_libfabric() {
    let (here, _there) = ethernet!();
    let wheels = need!(Wheels::installed());
    let mpi = need!(Mpi::mpich_over_verbs(&wheels));
    need!(moves(&mpi, Some(&here)));
}

#[test]
fn mpi4pys_suite_over_reliable_connections() {
    let (mpi, wheels) = (need!(Mpi::open_over_ucx("rc_v")), need!(Wheels::installed()));
    suite(&mpi, &wheels, &[MESSAGES, COLLECTIVES], 150, None);
    suite(&mpi, &wheels, &[ONE_SIDED], 6, None);
}

#[test]
fn mpi4pys_suite_over_datagrams() {
    let (mpi, wheels) = (need!(Mpi::open_over_ucx("ud_v")), need!(Wheels::installed()));
    suite(&mpi, &wheels, &[MESSAGES], 100, None);
}

#[test]
fn mpi4pys_suite_over_libfabric() {
    let (here, _there) = ethernet!();
    let wheels = need!(Wheels::installed());
    let mpi = need!(Mpi::mpich_over_verbs(&wheels));
    suite(&mpi, &wheels, &[MESSAGES], 100, Some(&here));
}
