//! The examples of the Rust API do what they say, as a reader would run them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use system::{Namespace, Run, is_root, skip};

/// Where they are, built as the tests are.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let exe = std::env::current_exe().expect("the test program");
        let profile = exe.parent().and_then(Path::parent).expect("a profile's folder");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "peerdma", "--examples", "--target-dir"]);
        cargo.arg(profile.parent().expect("a target folder"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success(), "the examples do not build");
        profile.join("examples")
    })
}

fn example(name: &str) -> Run {
    Run::hca(&folder().join(name).display().to_string())
}

/// What it prints, in a network of its own.
fn prints(example: Run, label: &str, expected: &[&str]) {
    let namespace = Namespace::new(label);
    let output = example.within(&namespace).finish().ok();
    for line in expected {
        assert!(output.stdout.contains(line), "no {line:?}: {output}");
    }
}

/// The end of the test where there can be no network of its own.
macro_rules! needs_root {
    () => {
        if !is_root() {
            skip!("needs root for a network namespace");
        }
    };
}

#[test]
fn one_program_writes_into_another() {
    needs_root!();
    let namespace = Namespace::new("ex-write");
    let mut listener = example("write").within(&namespace).start();
    system::listening(18515, Some(&namespace), &mut listener);
    let writer = example("write").arg("127.0.0.1").within(&namespace).finish().ok();
    assert!(writer.stdout.contains("25 bytes written"), "{writer}");
    let listener = listener.finish().ok();
    assert!(listener.stdout.contains("hello from the other side"), "{listener}");
}

#[test]
fn a_peer_writes_into_gpu_memory() {
    needs_root!();
    prints(example("gpu_memory"), "ex-gpu", &["1048576 of 1048576 bytes are in 0000:1a:00.0"]);
}

#[test]
fn gpu_memory_is_read_by_the_second_function() {
    needs_root!();
    let run = example("data_direct").option("--model").option("connectx");
    prints(run, "ex-dd", &["by /sys/devices/", "65536 of 65536 bytes were read"]);
}

#[test]
fn pages_come_as_they_are_touched() {
    needs_root!();
    let lines = [
        "pages that were not there: 1 was written",
        "256 pages in the GPU's memory: 2 was written",
    ];
    prints(example("odp"), "ex-odp", &lines);
}

#[test]
fn a_program_waits_for_completions_in_a_reactor() {
    needs_root!();
    prints(example("events_async"), "ex-async", &["8 messages"]);
}
