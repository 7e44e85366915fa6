//! C programs that use the verbs as programs may, and as they should not. Each prints the checks
//! that failed.

mod library;

use engine_thread::lock;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use test_support::{has_header, skip};

/// Compiles `tests/c/NAME.c` against the installed headers and the distribution's library.
fn compile(name: &str) -> PathBuf {
    let source = format!("{}/tests/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let exe = library::path().with_file_name("deps").join(format!("peerdma-verbs-{name}"));
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread", "-g", "-o"])
        .arg(&exe)
        .args([&source, "-libverbs"])
        .status()
        .expect("a C compiler (apt install gcc libibverbs-dev)");
    assert!(status.success(), "{source} does not compile");
    exe
}

/// One program at a time: when processes come and go, others may lose a packet, and a receiver that
/// has left cannot acknowledge its repetition.
static ALONE: Mutex<()> = Mutex::new(());

fn run(name: &str) {
    if !has_header("infiniband/verbs.h") {
        skip!("the headers of verbs are not installed (package libibverbs-dev)");
    }
    let _alone = lock(&ALONE);
    let exe = compile(name);
    let out = library::command(exe.to_str().unwrap()).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && told.is_empty(), "{name}: {}\n{told}", out.status);
}

#[test]
fn wrong_arguments_have_their_errno() {
    run("arguments");
}

#[test]
fn events_arrive_once_and_are_acknowledged() {
    run("events");
}

#[test]
fn wrong_keys_and_vanishing_memory_are_completion_errors() {
    run("memory");
}

#[test]
fn a_program_may_end_on_its_last_completion() {
    run("leave");
}

#[test]
fn forks_and_daemons() {
    run("fork");
}

#[test]
fn threads_are_cancelled_where_they_wait_and_nowhere_else() {
    run("cancel");
}

#[test]
fn multicast_reaches_the_members_of_the_group() {
    run("multicast");
}
