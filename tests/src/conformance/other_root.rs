//! rdma-core's own suite in another root file system, unmodified: every test that is no single
//! vendor's, one after the other in one process, on the software HCA and the software GPU.
//!
//! `conformance/exceptions.txt` and `exceptions_newer.txt` name those that do not pass and why.
//! PEERDMA_CONFORMANCE runs those only that have it in their names.

use super::{Case, Exception, Kind, Outcome, exceptions, outcomes, surprises};
use crate::{Container, Run, beside_suite, has, skip, suite, veth_pair};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// What a suite's tests need beside them; among it a CUDA for the software GPU.
const BESIDE: [&str; 5] = ["cuda", "in_guest.py", "list_tests.py", "frames.py", DMA_BUFS];
/// A module of pyverbs for dma-bufs. rdma-core's own has no `add_ref` that Python can call, which
/// `DmaBufMR` does, and what that leaves behind brings Python down.
const DMA_BUFS: &str = "dmabuf.pyx";
/// Tests of those, which the lists excuse where there is no such module.
const OF_DMA_BUFS: &str = ".DmaBuf";

/// In the root: the installed pyverbs but for that module, whose source in C is made.
const TRANSLATE: &str = r#"set -e
    rm -rf pyverbs
    cp -rs /usr/lib/python3/dist-packages/pyverbs pyverbs
    rm pyverbs/dmabuf.*.so
    python3 -m cython --module-name pyverbs.dmabuf dmabuf.pyx -o dmabuf.c"#;
/// Outside, where there is a compiler: with the root's headers of Python, and this machine's of the
/// C library, which are found first.
const COMPILE: &str = r#"set -e
    headers=$(echo "$1"/usr/include/python3.*)
    name=$(basename "$1"/usr/lib/python3/dist-packages/pyverbs/dmabuf.*.so)
    gcc -w -O1 -shared -fPIC -I "$headers" -idirafter "$1/usr/include" dmabuf.c -o "pyverbs/$name""#;

/// Runs the generic tests in a root ([`crate::next_debian`]), and fails unless `least` of them
/// pass and each of the others is listed with its reason. Skipped where there is no C compiler.
///
/// # Panics
/// Then, or when they cannot be run.
pub fn judge_generic_tests(root: &Path, least: usize) {
    if !has("gcc") {
        skip!("gcc is not installed, which compiles a module of pyverbs");
    }
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    for part in BESIDE {
        beside_suite(root, &ours.join(part));
    }
    add_dma_bufs(root);
    let only = std::env::var("PEERDMA_CONFORMANCE").unwrap_or_default();
    let results = run_all(root, &only);
    let [list, newer] = ["exceptions.txt", "exceptions_newer.txt"]
        .map(|name| std::fs::read_to_string(ours.join(name)).expect("a list of exceptions"));
    let mut excused = exceptions(&list);
    excused.retain(|id, _| !id.contains(OF_DMA_BUFS));
    let is_here = |id: &str| results.iter().any(|(case, _)| case.id == id);
    excused.extend(exceptions(&newer).into_iter().filter(|(id, _)| is_here(id)));
    let passes = say(&results, &excused);
    let wrong = surprises(&results, &excused, only.is_empty());
    assert!(wrong.is_empty(), "{passes} pass; {} surprises:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!only.is_empty() || passes >= least, "only {passes} pass");
}

/// Says how many pass, which it gives, and why each of the others does not.
fn say(results: &[(Case, Outcome)], excused: &BTreeMap<&str, Rc<Exception>>) -> usize {
    let passes = results.iter().filter(|(_, outcome)| *outcome == Outcome::Passed).count();
    eprintln!("{passes} of {} generic tests pass", results.len());
    for (case, _) in results.iter().filter(|(_, outcome)| *outcome != Outcome::Passed) {
        let why = excused.get(case.id.as_str()).map_or("not listed", |exception| &exception.why);
        eprintln!("  not {}: {why}", case.id);
    }
    passes
}

/// Gives the suite a pyverbs with that module.
fn add_dma_bufs(root: &Path) {
    let script = format!("cd {} && {TRANSLATE}", suite().display());
    Run::plain("sh -c").arg(script).inside(&Container::of(root)).finish().ok();
    let script = format!("cd '{}' && {COMPILE}", in_suite(root, "").display());
    Run::plain("sh -c").arg(script).arg("sh").arg(root).finish().ok();
}

/// A file beside the suite, from outside.
fn in_suite(root: &Path, name: &str) -> PathBuf {
    root.join(suite().strip_prefix("/").expect("an absolute path")).join(name)
}

/// What became of the generic tests that have `only` in their names.
fn run_all(root: &Path, only: &str) -> Vec<(Case, Outcome)> {
    let folder = suite();
    std::fs::write(in_suite(root, "generic"), generic(root)).expect("a list");
    std::fs::write(in_suite(root, "counters"), "").expect("a file for counters");
    let (network, _other) = veth_pair("generic", 1500);
    // What passes through shared memory only the device counts; what processes of the test send
    // that end without closing theirs, only the network.
    let counter = ["lo", "wire"].map(|name| format!("/sys/class/net/{name}/statistics/tx_packets"));
    let counter = counter.join(":");
    let (mut first, mut results) = (0, Vec::new());
    // A test that crashes takes Python with it; the next run begins behind it.
    loop {
        let python = format!(
            "FIRST={first} ONLY={only} CHOSEN=generic COUNTER={counter} \
             PEERDMA_COUNTERS=counters exec /usr/bin/python3 in_guest.py --dev peerdma0 --port 1 --gid 0"
        );
        let run = Run::hca("sh -c").arg(format!("cd {} && {python}", folder.display()));
        let run = run.env("PYTHONDONTWRITEBYTECODE", "1").inside(&Container::of(root));
        let ended = run.within(&network).limit(Duration::from_secs(900)).finish();
        let (last, done) = outcomes(&ended.stdout, &mut results);
        match last {
            _ if done => break,
            Some((number, case)) if !ended.timed_out => {
                results.push((case, Outcome::Never(format!("crashes: {ended}"))));
                first = number + 1;
            }
            _ => panic!("{ended}"),
        }
    }
    // What the network counts is not the device's alone, so that it sent nothing `conformance.rs`
    // asks, of the tests that are refused.
    for (case, outcome) in &mut results {
        let moved = matches!(outcome, Outcome::Never(why) if why == "passes with traffic");
        if case.kind == Kind::IsRefused && moved {
            *outcome = Outcome::Passed;
        }
    }
    results
}

/// Beginnings of the names of the tests that are no vendor's.
fn generic(root: &Path) -> String {
    let files = std::fs::read_dir(in_suite(root, "tests")).expect("the suite");
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let modules = names.filter_map(|name| name.strip_suffix(".py").map(str::to_owned));
    let is_generic = |name: &String| {
        name.starts_with("test_")
            && !["test_mlx5", "test_efa"].iter().any(|vendor| name.starts_with(vendor))
    };
    modules.filter(is_generic).map(|name| format!("tests.{name}.\n")).collect()
}
