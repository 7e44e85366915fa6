//! The commands that only print: environment, completions, manual page, help.

use std::process::{Command, Output};

fn peerdma(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peerdma"));
    command.args(arguments).env("COLUMNS", "200").output().unwrap()
}

fn out(arguments: &[&str]) -> String {
    let output = peerdma(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn env_is_the_same_in_every_form_and_works_in_a_shell() {
    let json: serde_json::Value = serde_json::from_str(&out(&["env", "--json"])).unwrap();
    let tree = json["PEERDMA_SYSFS"].as_str().unwrap();
    assert!(std::path::Path::new(tree).join("class/infiniband/peerdma0").exists());
    assert!(out(&["env"]).contains(&format!("export PEERDMA_SYSFS='{tree}'")));
    assert!(out(&["env", "--fish"]).contains(&format!("set -gx PEERDMA_SYSFS '{tree}'")));
    assert!(out(&["env", "--docker"]).contains(&format!("ENV PEERDMA_SYSFS=\"{tree}\"")));
    let script = "eval \"$($0 env)\" && test -r \"$LD_PRELOAD\" && test -d \"$PEERDMA_SYSFS\"";
    let status =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_peerdma")]).status().unwrap();
    assert!(status.success());
}

#[test]
fn the_printed_platform_is_one_to_start_from() {
    let file = std::env::temp_dir().join(format!("peerdma-platform-{}.toml", std::process::id()));
    std::fs::write(&file, out(&["platforms", "default"])).unwrap();
    let same = out(&["env", "--json", "--platform", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    let tree = |json: &str| {
        serde_json::from_str::<serde_json::Value>(json).unwrap()["PEERDMA_SYSFS"].clone()
    };
    assert_eq!(tree(&same), tree(&out(&["env", "--json"])));
}

#[test]
fn ps_lists_no_or_some_processes() {
    let json: serde_json::Value = serde_json::from_str(&out(&["ps", "--json"])).unwrap();
    assert!(json["processes"].is_array());
    out(&["ps"]);
}

#[test]
fn completions_and_manual_page_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = out(&["completions", shell]);
        assert!(script.contains("demo") && !script.contains("demo-peer"), "{shell}");
    }
    let page = out(&["man"]);
    for word in [
        ".TH",
        "PEERDMA RUN",
        "PEERDMA DEMO",
        "PEERDMA CDI",
        "PEERDMA TOPO",
        "PEERDMA DOCTOR",
        "PEERDMA GPU",
        "PEERDMA PLATFORMS",
        "PEERDMA_COUNTERS",
        "PEERDMA_MEMLOCK",
        "PEERDMA_DMABUF",
        "PEERDMA_PEER_DIRECT",
        "PEERDMA_REREG_MR_FD",
    ] {
        assert!(page.contains(word), "{word}");
    }
}

#[test]
fn help_has_examples_and_no_colour_off_a_terminal() {
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["demo", "--help"],
        &["env", "--help"],
        &["cdi", "--help"],
        &["ps", "--help"],
        &["platforms", "--help"],
        &["top", "--help"],
    ] {
        let help = out(arguments);
        assert!(help.contains("Example"), "{arguments:?}");
        assert!(!help.contains('\u{1b}'), "{arguments:?}");
        let examples = help.split("Examples:").nth(1).unwrap_or_default().lines();
        let longest = examples.take_while(|line| line.is_empty() || line.starts_with("  "));
        assert!(longest.map(|line| line.chars().count()).max() <= Some(80), "{help}");
    }
    let output = peerdma(&["run", "no-such-program-here"]);
    assert!(!output.stderr.contains(&0x1b));
}

#[test]
fn wrong_usage_is_status_2() {
    assert_eq!(peerdma(&["run"]).status.code(), Some(2));
    assert_eq!(peerdma(&["demo", "--size", "nought"]).status.code(), Some(2));
    assert_eq!(peerdma(&["env", "--fish", "--json"]).status.code(), Some(2));
}

#[test]
fn addresses_that_a_guest_cannot_share_are_refused() {
    let socket = std::env::temp_dir().join(format!("peerdma-address-{}", std::process::id()));
    let connectx = |arguments: &[&str]| {
        let output =
            peerdma(&[&["connectx", "--socket", socket.to_str().unwrap()], arguments].concat());
        assert!(!socket.exists(), "{arguments:?}");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (address, why) in [
        ("127.0.0.1", "loopback addresses stay this host's alone"),
        ("127.77.0.1", "loopback addresses stay this host's alone"),
        ("::1", "loopback addresses stay this host's alone"),
        ("::ffff:127.0.0.1", "loopback addresses stay this host's alone"),
        ("0.0.0.0", "it names no host"),
        ("239.1.2.3", "it names no host"),
        ("host", "an IP address is expected"),
    ] {
        let (status, said) = connectx(&["--port", "roce", "--address", address]);
        assert_eq!(status, Some(2), "{address}: {said}");
        assert!(said.contains(why), "{address}: {said}");
    }
    let (status, said) = connectx(&["--port", "ib", "--address", "198.18.7.1"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("an InfiniBand port has no IP address"), "{said}");
    assert!(said.contains("--port roce"), "{said}");
}

#[test]
fn ready_made_platforms_are_listed_and_taken_by_name() {
    let list = out(&["platforms"]);
    let json: serde_json::Value = serde_json::from_str(&out(&["platforms", "--json"])).unwrap();
    for platform in json["platforms"].as_array().unwrap() {
        let name = platform["name"].as_str().unwrap();
        assert!(list.contains(name), "{list}");
        assert!(out(&["topo", "--from", name]).contains("platform file"), "{name}");
        let env = out(&["env", "--json", "--platform", name]);
        let env: serde_json::Value = serde_json::from_str(&env).unwrap();
        assert_eq!(env["PEERDMA_PLATFORM"], name);
    }
    let output = peerdma(&["platforms", "nought"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("peerdma platforms"));
}
