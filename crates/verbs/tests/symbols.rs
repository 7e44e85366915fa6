//! The built library exports exactly the versioned symbols of `data/verbs-symbols.txt`, under its
//! soname, and beside them only names of the C library that the crate `shim` interposes, some of
//! them under the C library's version.

mod library;

use std::collections::BTreeSet;
use std::process::Command;

/// Standard output of a tool.
fn output(tool: &str, args: &[&str]) -> String {
    let out = Command::new(tool).args(args).arg(library::path()).output();
    let out = out.unwrap_or_else(|error| panic!("{tool} (apt install binutils): {error}"));
    assert!(out.status.success(), "{tool} failed");
    String::from_utf8(out.stdout).unwrap()
}

/// Defined dynamic symbols, as `nm` writes them: `name@@VERSION`, `name@VERSION` or `name`.
fn defined() -> BTreeSet<String> {
    output("nm", &["-D", "--defined-only", "--with-symbol-versions"])
        .lines()
        .filter_map(|line| line.split_once(" T "))
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// In names that have the C library's version.
const OF_THE_C_LIBRARY: &str = "@GLIBC_";

/// Names under the C library's version.
fn in_front() -> BTreeSet<String> {
    let versioned = defined().into_iter().filter(|name| name.contains(OF_THE_C_LIBRARY));
    versioned.filter_map(|name| name.split_once('@').map(|(name, _)| name.to_owned())).collect()
}

/// Functions of ours that stand-ins call where they are loaded: weak symbols, so a missing one
/// would not show.
fn called_by_standins() -> BTreeSet<String> {
    let listed = include_str!("../../standins/symbols.txt").lines();
    let words = listed.map(|line| line.split(' ').collect::<Vec<_>>());
    let live = words.filter(|words| !words[0].starts_with('#') && words.get(2) == Some(&"live"));
    live.map(|words| format!("peerdma_{}", words[0])).collect()
}

#[test]
fn the_versioned_symbols_are_those_of_the_list() {
    let listed: BTreeSet<String> = include_str!("../data/verbs-symbols.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    assert!(listed.len() > 130);
    let (ours, built): (BTreeSet<String>, BTreeSet<String>) = defined()
        .into_iter()
        .filter(|name| name.contains('@') && !name.contains(OF_THE_C_LIBRARY))
        .partition(|name| name.contains("PEERDMA"));
    // what include/ declares, and what stand-ins of vendors' libraries call
    let headers =
        [include_str!("../include/peerdma.h"), include_str!("../include/peerdma/mr_fd.h")].concat();
    let called = called_by_standins();
    assert!(ours.len() >= 5 && called.len() >= 5);
    for name in &ours {
        let (plain, version) = name.split_once("@@").expect("a default version");
        let known = headers.contains(&format!("{plain}(")) || called.contains(plain);
        assert!(version == "PEERDMA_1.0" && known, "{name}");
    }
    for name in called {
        assert!(ours.contains(&format!("{name}@@PEERDMA_1.0")), "nobody answers {name}");
    }
    let missing: Vec<_> = listed.difference(&built).collect();
    let unlisted: Vec<_> = built.difference(&listed).collect();
    assert!(
        missing.is_empty() && unlisted.is_empty(),
        "missing {missing:?}, unlisted {unlisted:?}"
    );
}

#[test]
fn what_has_no_version_is_the_c_librarys() {
    let in_front = in_front();
    // The functions in front have a label of ours, too.
    let is_label = |name: &String| {
        name.strip_prefix("peerdma_shim_").is_some_and(|name| in_front.contains(name))
    };
    let unversioned = |name: &String| !name.contains('@') && !is_label(name);
    let plain: Vec<String> = defined().into_iter().filter(unversioned).collect();
    for name in ["open", "close", "stat", "sigaction", "daemon", "prctl"] {
        assert!(plain.iter().any(|plain| plain == name), "{name} is not interposed");
    }
    let known = format!("{}\0", plain.join("\0"));
    let libc = Command::new("sh")
        .args([
            "-c",
            "nm -D --defined-only $(ldconfig -p | sed -n 's/.*libc.so.6.*=> //p' | head -n 1)",
        ])
        .output()
        .unwrap();
    let libc = String::from_utf8(libc.stdout).unwrap();
    let offered: BTreeSet<&str> = libc
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter_map(|name| name.split('@').next())
        .collect();
    assert!(offered.contains("open"), "the C library's symbols cannot be read");
    let foreign: Vec<_> =
        known.split('\0').filter(|name| !name.is_empty() && !offered.contains(name)).collect();
    assert!(foreign.is_empty(), "exported without being the C library's: {foreign:?}");
}

/// A look-up without a version finds only default ones, `@@`.
#[test]
fn what_takes_memory_away_is_no_default() {
    let in_front = in_front();
    for name in ["mmap", "munmap", "mremap", "madvise", "shmdt", "brk"] {
        assert!(in_front.contains(name), "{name} is not interposed");
    }
    let mut defaults = defined().into_iter().filter(|name| name.contains("@@GLIBC_"));
    assert_eq!(defaults.next(), None);
}

#[test]
fn the_soname_and_the_version_nodes_are_those_programs_ask_for() {
    let dynamic = output("readelf", &["-dW"]);
    assert!(dynamic.contains("Library soname: [libibverbs.so.1]"));
    let versions = output("readelf", &["-VW"]);
    for node in ["IBVERBS_1.0", "IBVERBS_1.18", "IBVERBS_PRIVATE_34", "IBVERBS_PRIVATE_65"] {
        assert!(versions.contains(&format!("Name: {node}\n")), "no version node {node}");
    }
}
