//! `peerdma cdi`: its file judged by what the specification of the Container Device Interface says
//! (SPEC.md and schema/ of cncf-tags/container-device-interface, version 0.5.0).

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn cdi(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerdma"));
    // What is preloaded here is not for containers.
    command.arg("cdi").args(arguments).env("LD_LIBRARY_PATH", "/of/this/shell").output().unwrap()
}

fn printed(arguments: &[&str]) -> Value {
    let output = cdi(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

type Verdict<T = ()> = Result<T, String>;

fn must(holds: bool, what: impl std::fmt::Display) -> Verdict {
    if holds { Ok(()) } else { Err(what.to_string()) }
}

/// An object with these members, the first `required` of which must be there, and no others.
fn members(value: &Value, known: &[&str], required: usize) -> Verdict {
    let object = value.as_object().ok_or(format!("no object: {value}"))?;
    for name in &known[..required] {
        must(object.contains_key(*name), format!("{name} is missing: {value}"))?;
    }
    let unknown = object.keys().find(|name| !known.contains(&name.as_str()));
    must(unknown.is_none(), format!("what is {unknown:?}?"))
}

fn text(value: &Value) -> Verdict<&str> {
    value.as_str().ok_or(format!("no string: {value}"))
}

fn list(value: &Value) -> Verdict<&[Value]> {
    match value {
        Value::Null => Ok(&[]),
        _ => value.as_array().map(Vec::as_slice).ok_or(format!("no list: {value}")),
    }
}

/// Letters and digits at both ends; between them these others too.
fn name(word: &str, others: &str) -> Verdict {
    let plain = |c: char| c.is_ascii_alphanumeric();
    let ends = word.starts_with(plain) && word.ends_with(plain);
    must(ends && word.chars().all(|c| plain(c) || others.contains(c)), format!("name {word:?}"))
}

fn edits(value: &Value) -> Verdict {
    members(value, &["env", "deviceNodes", "mounts", "hooks"], 0)?;
    for variable in list(&value["env"])? {
        let variable = text(variable)?;
        must(variable.find('=').is_some_and(|at| at > 0), format!("env {variable}"))?;
    }
    for mount in list(&value["mounts"])? {
        members(mount, &["hostPath", "containerPath", "options", "type"], 2)?;
        for path in ["hostPath", "containerPath"] {
            must(text(&mount[path])?.starts_with('/'), format!("{path} of {mount}"))?;
        }
        must(Path::new(text(&mount["hostPath"])?).exists(), format!("{mount} is not there"))?;
        list(&mount["options"])?.iter().try_for_each(|option| text(option).map(drop))?;
    }
    Ok(())
}

/// Whether a runtime would take the file.
fn judge(file: &Value) -> Verdict {
    members(file, &["cdiVersion", "kind", "devices", "containerEdits"], 3)?;
    must(file["cdiVersion"] == "0.5.0", "the version in which names may begin with a digit")?;
    let (vendor, class) = text(&file["kind"])?.split_once('/').ok_or("kind is VENDOR/CLASS")?;
    name(vendor, "-_.")?;
    name(class, "-_.")?;
    edits(&file["containerEdits"])?;
    let mut names = Vec::new();
    for device in list(&file["devices"])? {
        members(device, &["name", "containerEdits"], 2)?;
        name(text(&device["name"])?, "-_.:")?;
        names.push(text(&device["name"])?);
        edits(&device["containerEdits"])?;
        must(device["containerEdits"] != json!({}), "a device without edits is refused")?;
    }
    must(!names.is_empty(), "no devices")?;
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    must(names.len() == count, "two devices of one name")
}

/// What is spoilt, and how.
type Spoilt = (&'static str, fn(&mut Value));

fn names(file: &Value) -> Vec<&str> {
    file["devices"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect()
}

/// The value that a device gives a variable.
fn variable<'a>(device: &'a Value, name: &str) -> Option<&'a str> {
    let env = device["containerEdits"]["env"].as_array()?;
    env.iter().find_map(|entry| entry.as_str()?.strip_prefix(name)?.strip_prefix('='))
}

#[test]
fn runtimes_take_the_file() {
    let file = printed(&[]);
    judge(&file).unwrap();
    assert_eq!(file["kind"], "peerdma.dev/hca");
    assert_eq!(names(&file), ["all", "0"]);
    let preloaded = variable(&file["devices"][0], "LD_PRELOAD");
    assert_eq!(preloaded, Some("/opt/peerdma/lib/libibverbs.so.1"));
    assert!(!file.to_string().contains("/of/this/shell"), "{file}");
}

#[test]
fn the_judge_refuses_what_a_runtime_refuses() {
    let file = printed(&[]);
    let spoilt: [Spoilt; 8] = [
        ("kind", |file| file["kind"] = json!("peerdma.dev")),
        ("version", |file| file["cdiVersion"] = json!("0.3.0")),
        ("member", |file| file["more"] = json!(1)),
        ("name", |file| file["devices"][0]["name"] = json!("-all")),
        ("twice", |file| file["devices"][0]["name"] = json!("0")),
        ("edits", |file| file["devices"][0]["containerEdits"] = json!({})),
        ("env", |file| file["devices"][0]["containerEdits"]["env"] = json!(["LD_PRELOAD"])),
        ("path", |file| file["containerEdits"]["mounts"][0]["containerPath"] = json!("lib")),
    ];
    for (what, spoil) in spoilt {
        let mut other = file.clone();
        spoil(&mut other);
        assert!(judge(&other).is_err(), "{what}");
    }
}

#[test]
fn each_hca_of_a_platform_is_a_device_with_its_own_tree() {
    let file = printed(&["--platform", "dgx"]);
    judge(&file).unwrap();
    let devices = file["devices"].as_array().unwrap();
    assert!(devices.len() > 2 && names(&file)[..3] == ["all", "0", "1"], "{file}");
    let tree = |device: &Value| device["containerEdits"]["mounts"][0]["hostPath"].clone();
    let hcas = |device: &Value| {
        let folder = Path::new(tree(device).as_str().unwrap()).join("class/infiniband");
        std::fs::read_dir(folder).unwrap().count()
    };
    assert_eq!(hcas(&devices[0]), devices.len() - 1);
    for device in &devices[1..] {
        assert_eq!(hcas(device), 1);
        // The library reads the same platform that the tree is of.
        let platform = variable(device, "PEERDMA_PLATFORM").unwrap();
        assert_eq!(device["containerEdits"]["mounts"][1]["containerPath"], platform);
    }
    assert_ne!(tree(&devices[1]), tree(&devices[2]));
    assert_eq!(variable(&devices[0], "PEERDMA_PLATFORM"), Some("dgx"));
}

#[test]
fn the_file_is_written_whole_or_not_at_all() {
    let folder = std::env::temp_dir().join(format!("peerdma-cdi-test-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("peerdma.json");
    let output = cdi(&["--output", path.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty());
    let written: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(written, printed(&[]));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    let nowhere = cdi(&["--output", folder.join("no/folder.json").to_str().unwrap()]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("to do: name a file"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_means_nothing_to_a_container_is_refused() {
    for arguments in [&["--trace", "/tmp/x.pcap"][..], &["--library", "/tmp/libibverbs.so"]] {
        let output = cdi(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("`cdi` has no use for"));
    }
}
