//! rdma-core's own test suite, unmodified, one process a test, on the in-process HCA.
//!
//! `conformance/exceptions.txt` names every generic test that does not pass and why, and
//! `exceptions_newer.txt` those that only newer releases have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;
use system::conformance::{Case, Exception, Kind, Outcome, exceptions, surprises};
use system::{Counters, Namespace, Run, User, note_skip, skip};
use tempfile::TempDir;

const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// What the suite's tests know of CUDA, on the software GPU.
const CUDA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/cuda");
const PYTHON: &str = "/usr/bin/python3";
/// Tests of the suite that are no single vendor's (rdma-core 44).
const LEAST_PASSES: usize = 155;
/// More where pyverbs allocates dma-bufs.
const LEAST_DMA_BUF_PASSES: usize = 10;

/// What a test of raw packets says to a plain user.
const NEEDS_ROOT: [&str; 4] =
    ["Must be run by root", "must be done by root", "must have CAP_NET_RAW", "with CAP_NET_RAW"];

/// Whether a test is of what needs CAP_NET_RAW: raw packets, and Q_Keys with the highest bit set.
fn is_raw(id: &str) -> bool {
    ["raw_qp", "test_flow", "test_rss_traffic", "privileged_qkey"]
        .iter()
        .any(|part| id.contains(part))
}

/// Python's helper processes end by `_exit`, which runs no exit handlers, so our counters would not
/// be reported.
const TELLING_EXIT: &str =
    "import ctypes, os\nos._exit = lambda status: ctypes.CDLL(None).exit(status)\n";

/// A copy of the suite that Python can import.
fn unpack() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let copy = format!(
        "cp -r {SUITE} '{0}/tests' && gunzip -f '{0}'/tests/*.gz && cp -r '{CUDA}' '{0}' && \
         chmod -R a+rX '{0}'",
        folder.path().display()
    );
    let status = Command::new("sh").args(["-c", &copy]).status().expect("a shell");
    assert!(status.success(), "the suite cannot be copied from {SUITE}");
    std::fs::write(folder.path().join("sitecustomize.py"), TELLING_EXIT).expect("a file");
    folder
}

/// Gives the copy a pyverbs that allocates dma-bufs: the installed one with our module for it.
fn add_dma_bufs(folder: &Path) -> Result<(), String> {
    let script = r#"set -e
        module=$(python3 -c 'import pyverbs.dmabuf as m; print(m.__file__)')
        cp -rs "$(dirname "$module")" pyverbs
        module=pyverbs/$(basename "$module")
        rm "$module"
        cython3 --module-name pyverbs.dmabuf "$1" -o dmabuf.c
        gcc -w -O1 -shared -fPIC $(python3-config --includes) dmabuf.c -o "$module"
        chmod -R a+rX ."#;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/dmabuf.pyx");
    // The system's Python and its tools, whatever others there are.
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(source)
        .env("PATH", "/usr/bin:/bin")
        .current_dir(folder)
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// The suite's tests that are no single vendor's.
fn generic_cases(folder: &Path) -> Vec<Case> {
    let vendor = ["tests.test_mlx5", "tests.test_efa"];
    cases(folder, |id| !vendor.iter().any(|prefix| id.starts_with(prefix)))
}

/// mlx5's tests of memory keys.
fn mlx5_cases(folder: &Path) -> Vec<Case> {
    cases(folder, is_of_mlx5s_keys)
}

/// Whether a test is one of those, which want a device that is shown as a ConnectX.
fn is_of_mlx5s_keys(id: &str) -> bool {
    id.starts_with("tests.test_mlx5_mkey.")
}

fn cases(folder: &Path, is_meant: impl Fn(&str) -> bool) -> Vec<Case> {
    let lister = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/list_tests.py");
    let output = Command::new(PYTHON).arg(lister).current_dir(folder).output().expect("python3");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter(|line| is_meant(line))
        .filter_map(|line| line.split_once(' '))
        .map(|(id, kind)| Case { id: id.to_owned(), kind: Kind::named(kind) })
        .collect()
}

fn run(folder: &Path, case: &Case, host: Option<&Namespace>, user: User) -> Outcome {
    let counters = Counters::new();
    let script = format!(
        "cd {} && exec {PYTHON} tests/run_tests.py --dev peerdma0 --port 1 --gid 0 -v {}",
        folder.display(),
        case.id
    );
    let mut program = Run::hca("sh -c")
        .user(user)
        .arg(script)
        .env("PEERDMA_COUNTERS", counters.file())
        .env("PYTHONPATH", folder)
        .limit(Duration::from_secs(120));
    if let Some(host) = host {
        program = program.within(host);
    }
    if is_of_mlx5s_keys(&case.id) {
        program = program.option("--model").option("connectx");
    }
    let ended = program.finish();
    if ended.timed_out {
        return Outcome::Never(format!("hangs: {ended}"));
    }
    let closing = ended.stderr.lines().rev().find(|line| {
        line.starts_with("OK") || line.starts_with("FAILED") || line.starts_with("NO TESTS")
    });
    match closing {
        Some("OK") => Outcome::of_pass(case.kind, packets_sent(&counters)),
        Some(_) => Outcome::Not(ended.stdout + &ended.stderr),
        None => Outcome::Never(format!("crashes: {ended}")),
    }
}

/// How many packets the processes of a test sent, and requests that needed none; `None` if no
/// device was opened.
fn packets_sent(counters: &Counters) -> Option<u64> {
    let sent = || counters.sum("sent_pkts") + counters.sum("direct_requests");
    counters.text().contains("sent_pkts ").then(sent)
}

fn run_all(
    folder: &Path,
    cases: &[Case],
    host: Option<&Namespace>,
    user: User,
) -> Vec<(Case, Outcome)> {
    let queue = Mutex::new(cases.iter());
    let results = Mutex::new(Vec::new());
    // These all listen on one port.
    let listens = Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(case) = queue.lock().expect("the queue").next() else { break };
                    let _alone = case.id.contains("rdmacm").then(|| listens.lock());
                    let outcome = run(folder, case, host, user);
                    results.lock().expect("the results").push((case.clone(), outcome));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("the results");
    results.sort_by(|a, b| a.0.id.cmp(&b.0.id));
    results
}

#[test]
fn the_generic_suite() {
    judge_suite(User::Same);
}

/// What needs CAP_NET_RAW is refused; all else passes as it does for root.
#[test]
fn the_generic_suite_as_a_plain_user() {
    if !system::is_root() {
        skip!("needs root to become a plain user; the other test runs as one already");
    }
    judge_suite(User::Nobody);
}

#[test]
fn mlx5s_tests_of_memory_keys() {
    if let Err(missing) = check_suite() {
        skip!("{missing}");
    }
    let folder = unpack();
    let cases = mlx5_cases(folder.path());
    assert!(cases.len() >= 11, "only {} tests were listed", cases.len());
    let host = system::is_root().then(|| system::veth_pair("mlx5", 1500));
    let host = host.as_ref().map(|(host, _)| host);
    let results = run_all(folder.path(), &cases, host, User::Same);
    let wrong = surprises(&results, &BTreeMap::new(), true);
    assert!(wrong.is_empty(), "{} surprises:\n{}", wrong.len(), wrong.join("\n"));
}

/// What the suite needs of this machine and is missing.
fn check_suite() -> Result<(), String> {
    if !PathBuf::from(SUITE).is_dir() {
        return Err(format!("{SUITE} is missing (package rdma-core)"));
    }
    let pyverbs = Command::new(PYTHON).args(["-c", "import pyverbs"]).output();
    if !pyverbs.is_ok_and(|output| output.status.success()) {
        return Err("pyverbs is missing (package python3-pyverbs)".to_owned());
    }
    Ok(())
}

fn judge_suite(user: User) {
    if let Err(missing) = check_suite() {
        skip!("{missing}");
    }
    let folder = unpack();
    let mut cases = generic_cases(folder.path());
    assert!(cases.len() > 150, "only {} tests were listed", cases.len());
    if let Ok(only) = std::env::var("PEERDMA_CONFORMANCE") {
        cases.retain(|case| case.id.contains(&only));
    }
    let whole = std::env::var_os("PEERDMA_CONFORMANCE").is_none();
    // A host of its own where possible: others may trouble the address of this one.
    let hosts = system::is_root().then(|| system::veth_pair("suite", 1500));
    let [list, newer] = ["exceptions.txt", "exceptions_newer.txt"].map(|name| {
        let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(name);
        std::fs::read_to_string(list).expect("a list of exceptions")
    });
    let mut excused = exceptions(&list);
    let is_here = |id: &str| cases.iter().any(|case| case.id == id);
    excused.extend(exceptions(&newer).into_iter().filter(|(id, _)| is_here(id)));
    let has_dma_bufs = match add_dma_bufs(folder.path()) {
        Ok(()) => true,
        Err(why) => {
            note_skip(&format!("no dma-bufs (packages cython3, python3-dev, gcc): {why}"));
            false
        }
    };
    if has_dma_bufs {
        excused.retain(|id, _| !id.contains("DmaBuf"));
    }
    let plain = user == User::Nobody || !system::is_root();
    if plain {
        let refused = Rc::new(Exception {
            signs: NEEDS_ROOT.map(str::to_owned).into(),
            host: true,
            why: "raw packets need CAP_NET_RAW".to_owned(),
        });
        let raw = cases.iter().filter(|case| is_raw(&case.id));
        excused.extend(raw.map(|case| (case.id.as_str(), refused.clone())));
    }
    // These look at the device of an id that listens. Where this machine's only address is that of
    // loopback, binding there names none, as in the kernel (`cma_any_addr`), and pyverbs faults.
    let listening = |id: &str| id.contains("test_rdmacm_async");
    if hosts.is_none() {
        let alone = Rc::new(Exception {
            signs: ["procces is stuck", "Bad flow: traffic passed"].map(str::to_owned).into(),
            host: true,
            why: "there may be no address but that of loopback".to_owned(),
        });
        let async_ones = cases.iter().filter(|case| listening(&case.id));
        excused.extend(async_ones.map(|case| (case.id.as_str(), alone.clone())));
    }
    let results = run_all(folder.path(), &cases, hosts.as_ref().map(|(host, _)| host), user);
    let passes = results.iter().filter(|(_, outcome)| *outcome == Outcome::Passed).count();
    let wrong = surprises(&results, &excused, whole);
    eprintln!("{passes} of {} generic tests pass", cases.len());
    assert!(wrong.is_empty(), "{passes} pass; {} surprises:\n{}", wrong.len(), wrong.join("\n"));
    let raw = if plain { cases.iter().filter(|case| is_raw(&case.id)).count() } else { 0 };
    let is_missed = |(case, outcome): &&(Case, Outcome)| {
        hosts.is_none() && listening(&case.id) && *outcome != Outcome::Passed
    };
    let missed = results.iter().filter(is_missed).count() + raw;
    let least = LEAST_PASSES + if has_dma_bufs { LEAST_DMA_BUF_PASSES } else { 0 } - missed;
    assert!(!whole || passes >= least, "only {passes} pass");
}
