//! `peerdma doctor` as a program: output, JSON and exit status. What it concludes is tested in the
//! room itself.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Output};

fn doctor(arguments: &[&str]) -> Output {
    test_support::network::enter();
    Command::new(env!("CARGO_BIN_EXE_peerdma")).arg("doctor").args(arguments).output().unwrap()
}

const DEFAULT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcie/src/platforms/default.toml");

#[test]
fn this_host_gets_an_answer() {
    let output = doctor(&[]);
    assert!(matches!(output.status.code(), Some(0 | 2 | 3 | 4)), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("software HCA"), "{text}");
}

#[test]
fn a_machine_without_kernel_is_unknown_and_not_bad() {
    let output = doctor(&["--from", DEFAULT]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    let line = text.lines().find(|line| line.contains("dma-buf, pinned")).unwrap();
    assert!(
        line.starts_with(
            "? dma-buf, pinned             unknown   gpu0 – peerdma0, gpu1 – peerdma0"
        ),
        "{line}"
    );
}

#[test]
fn json_has_every_condition() {
    let output = doctor(&["--json", "--from", DEFAULT]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["status"], 3);
    let findings = json["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 2 * 6 + 1);
    let pinned = findings.iter().find(|f| f["mechanism"] == "dma-buf-pinned").unwrap();
    assert_eq!((&pinned["gpu"], &pinned["outcome"]), (&"0000:1a:00.0".into(), &"unknown".into()));
    let last = pinned["conditions"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["holds"], &last["evidence"]), (&true.into(), &"P2PDMA BUS_ADDR, PIX".into()));
}

/// The names of all members at any depth.
fn members<'a>(value: &'a Value, names: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(object) => {
            names.extend(object.keys().map(String::as_str));
            object.values().for_each(|value| members(value, names));
        }
        Value::Array(array) => array.iter().for_each(|value| members(value, names)),
        _ => {}
    }
}

#[test]
fn help_says_what_json_has() {
    let help = doctor(&["--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, help) = help.split_once("--json prints").expect("a paragraph about it");
    let documented = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let documented: BTreeSet<&str> = documented.collect();
    let output = doctor(&["--json", "--from", "default"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut names = BTreeSet::new();
    members(&json, &mut names);
    for finding in json["findings"].as_array().unwrap() {
        names.extend(
            [&finding["mechanism"], &finding["outcome"]].map(|name| name.as_str().unwrap()),
        );
    }
    let missing: Vec<_> = names.difference(&documented).collect();
    assert!(names.len() > 16 && missing.is_empty(), "{missing:?} of {names:?}");
}

/// A capture of this host says what the host itself says.
#[test]
fn a_capture_of_this_host_says_the_same() {
    let file = std::env::temp_dir().join(format!("peerdma-doctor-{}.tar.gz", std::process::id()));
    let file = file.to_str().unwrap();
    let json = |output: Output| -> Value { serde_json::from_slice(&output.stdout).unwrap() };
    let here = json(doctor(&["--json"]));
    let taken = Command::new(env!("CARGO_BIN_EXE_peerdma"))
        .args(["topo", "--write-capture", file])
        .output()
        .unwrap();
    assert!(taken.status.success(), "{taken:?}");
    let there = json(doctor(&["--json", "--from", file]));
    std::fs::remove_file(file).unwrap();
    assert!(!here["findings"].as_array().unwrap().is_empty());
    assert_eq!(here, there);
}

#[test]
fn what_cannot_be_read_is_a_failure() {
    let output = doctor(&["--from", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("No such file"));
}

#[test]
fn a_probe_lets_the_software_hca_prove_itself() {
    let output = doctor(&["--probe", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = json["findings"].as_array().unwrap();
    let software = findings.iter().find(|f| f["mechanism"] == "software-hca").unwrap();
    assert_eq!(software["outcome"], "works", "{software}");
    let proof = software["conditions"].as_array().unwrap().last().unwrap();
    assert!(proof["evidence"].as_str().unwrap().contains("proved it"), "{proof}");
    assert_eq!(doctor(&["--probe", "--from", DEFAULT]).status.code(), Some(2), "nothing to probe");
}
