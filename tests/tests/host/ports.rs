//! A device of 300 ports: more than the 8 bits of most calls can name.

use std::path::PathBuf;
use system::{Run, c_program, pair, peerdma, port, shared_dir, skip};

const PORTS: usize = 300;

/// A platform file like the embedded one, whose HCA has 300 ports.
fn platform() -> PathBuf {
    let embedded = Run::program(peerdma()).args(&["platforms", "default"]).finish().ok().stdout;
    let text =
        embedded.replacen("role = \"hca\"\n", &format!("role = \"hca\"\nports = {PORTS}\n"), 1);
    assert_ne!(text, embedded, "the platform has an HCA");
    let path = shared_dir().join(format!("ports-{}.toml", port()));
    std::fs::write(&path, text).expect("a platform file");
    path
}

/// A run on that platform.
fn on_many(line: &str, platform: &PathBuf) -> Run {
    Run::hca(line).option("--platform").option(platform)
}

#[test]
fn every_call_names_what_it_can() {
    let program = match c_program("ports") {
        Ok(program) => program.display().to_string(),
        Err(reason) => skip!("{reason}"),
    };
    let finished = on_many(&program, &platform()).finish();
    let wrong: Vec<&str> = finished.stdout.lines().filter(|l| l.starts_with("NOT")).collect();
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), finished.stderr);
    let finished = finished.ok();
    assert!(finished.stdout.ends_with("32 rows, 0 wrong\n"), "{finished}");
}

#[test]
fn sysfs_lists_them_all() {
    let platform = platform();
    let ports = "/sys/class/infiniband/peerdma0/ports";
    let listed = on_many(&format!("ls {ports}"), &platform).finish().ok();
    assert_eq!(listed.stdout.lines().count(), PORTS);
    let state = on_many(&format!("cat {ports}/300/state {ports}/300/link_layer"), &platform);
    assert_eq!(state.finish().ok().stdout, "4: ACTIVE\nEthernet\n");
    assert!(!on_many(&format!("cat {ports}/301/state"), &platform).finish().succeeded());
}

#[test]
fn traffic_takes_the_last_port_that_fits_8_bits() {
    if !system::has("ibv_rc_pingpong") || !system::has("ibv_devinfo") {
        skip!("ibv_rc_pingpong is not installed (package ibverbs-utils)");
    }
    let platform = platform();
    let info = on_many("ibv_devinfo", &platform).finish().ok();
    assert!(info.stdout.contains("phys_port_cnt:\t\t\t255"), "{info}");
    assert_eq!(info.stdout.matches("PORT_ACTIVE").count(), 255, "{info}");
    let port = port();
    let line = format!("ibv_rc_pingpong -g 0 -i 255 -n 200 -c -p {port}");
    let client = on_many(&line, &platform).arg("127.0.0.1");
    let (_, client) = pair(on_many(&line, &platform), None, client, port);
    assert!(client.stdout.contains("iters in"), "{client}");
}
