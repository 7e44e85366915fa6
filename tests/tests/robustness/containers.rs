//! What containers lack: a root file system to write to, `/sys`, memory to write files to; for root
//! and for a plain user. And a UDP port 4791 that somebody else has.

use serde_json::Value;
use std::path::Path;
use system::{Container, Finished, Namespace, Run, User, is_root, pair, port, skip};

macro_rules! need_root {
    () => {
        if !is_root() {
            skip!("mount and network namespaces need root");
        }
        if !system::has("ibv_rc_pingpong") {
            skip!("ibv_rc_pingpong is not installed (package ibverbs-utils)");
        }
    };
}

const USERS: [User; 2] = [User::Same, User::Nobody];

/// Lets two programs of `user` talk, each in such a container of its own.
#[track_caller]
fn they_talk(container: &Container, user: User) {
    let (own, port) = (Namespace::new("box"), port());
    let run = |line: String| Run::hca(&line).inside(container).within(&own).user(user);
    let line = format!("ibv_rc_pingpong -g 0 -n 200 -c -p {port}");
    pair(run(line.clone()), Some(&own), run(format!("{line} 127.0.0.1")), port);
}

/// Runs a program that is to fail with a message of these words.
#[track_caller]
fn refused(run: Run, words: &[&str]) -> Finished {
    let end = run.finish();
    assert!(!end.succeeded() && !end.timed_out, "{end}");
    for word in words {
        assert!(end.stderr.contains(word), "{word} is not said: {end}");
    }
    end
}

#[test]
fn without_sys() {
    need_root!();
    for user in USERS {
        let bare = Container::new().without("/sys");
        let own = Namespace::new("box");
        let info = Run::hca("ibv_devinfo").inside(&bare).within(&own).user(user).finish().ok();
        assert!(info.stdout.contains("hca_id:\tpeerdma0"), "{info}");
        they_talk(&bare, user);
    }
}

#[test]
fn with_a_read_only_root() {
    need_root!();
    for user in USERS {
        // Somewhere files can be written, as a container's /tmp or /dev/shm.
        they_talk(&Container::new().remount("/", "ro").remount("/tmp", "rw"), user);
        they_talk(&Container::new().remount("/", "ro").remount("/dev/shm", "rw,exec"), user);
    }
}

#[test]
fn without_shared_memory() {
    need_root!();
    for user in USERS {
        they_talk(&Container::new().remount("/dev/shm", "ro"), user);
    }
}

#[test]
fn with_no_place_for_files() {
    need_root!();
    let nowhere =
        Container::new().remount("/", "ro").remount("/tmp", "ro").remount("/dev/shm", "ro");
    for user in USERS {
        let run = Run::hca("ibv_devinfo").inside(&nowhere).user(user);
        refused(run, &["no place for temporary files", "Read-only file system", "set TMPDIR"]);
    }
}

#[test]
fn with_no_place_for_libraries() {
    need_root!();
    let data_only = Container::new()
        .remount("/", "ro")
        .remount("/tmp", "rw,noexec")
        .remount("/dev/shm", "rw,noexec");
    for user in USERS {
        let run = Run::hca("ibv_devinfo").inside(&data_only).user(user);
        refused(run, &["no place for temporary files", "/tmp is mounted noexec", "set TMPDIR"]);
    }
}

/// Applies a device of what `peerdma cdi` prints, as a container runtime does: its mounts, and
/// words that set its variables.
fn with_device(file: &Value, number: usize) -> (Container, String) {
    let device = &file["devices"][number]["containerEdits"];
    let mounts = [&file["containerEdits"]["mounts"], &device["mounts"]];
    let mut container = Container::new().empty("/opt");
    for mount in mounts.into_iter().flat_map(|mounts| mounts.as_array().unwrap()) {
        let here = Path::new(mount["hostPath"].as_str().unwrap());
        container = container.bind(here, mount["containerPath"].as_str().unwrap());
    }
    let variables = device["env"].as_array().unwrap().iter();
    let variables = variables.map(|variable| variable.as_str().unwrap()).collect::<Vec<_>>();
    (container, format!("env {}", variables.join(" ")))
}

#[test]
fn a_device_of_the_container_device_interface() {
    need_root!();
    let cache = tempfile::tempdir().unwrap();
    let cdi = |platform: &str| -> Value {
        let run = Run::program(system::peerdma()).args(&["cdi", "--platform", platform]);
        let printed = run.env("XDG_CACHE_HOME", cache.path()).finish().ok().stdout;
        serde_json::from_str(&printed).unwrap()
    };
    let (container, env) = with_device(&cdi("default"), 0);
    for user in USERS {
        let (own, port) = (Namespace::new("box"), port());
        let run = |line: &str| {
            let line = format!("{env} {line}");
            Run::plain(&line).inside(&container).within(&own).user(user)
        };
        let info = run("ibv_devinfo").finish().ok();
        assert!(info.stdout.contains("hca_id:\tpeerdma0"), "{info}");
        let line = format!("ibv_rc_pingpong -g 0 -n 200 -c -p {port}");
        pair(run(&line), Some(&own), run(&format!("{line} 127.0.0.1")), port);
    }
    // Of a machine with several, just the one that is asked for.
    let dgx = cdi("dgx");
    let shown = |number| {
        let (container, env) = with_device(&dgx, number);
        let list = Run::plain(&format!("{env} ibv_devices")).inside(&container).finish().ok();
        let lines = list.stdout.lines().filter(|line| line.contains("peerdma"));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    let all = shown(0);
    assert!(all.len() > 1, "{all:?}");
    assert_eq!(shown(2), all[1..2]);
}

#[test]
fn the_port_of_another_user() {
    need_root!();
    let own = Namespace::new("port");
    let port = port();
    let mut holder = Run::hca(&format!("ibv_rc_pingpong -g 0 -p {port}")).within(&own).start();
    system::listening(port, Some(&own), &mut holder);
    let late = Run::hca("ibv_devinfo").within(&own).user(User::Nobody);
    refused(
        late,
        &[
            "UDP port 4791 is taken by a program of uid 0",
            "only programs of one user",
            "or run in another network namespace",
        ],
    );
    assert!(holder.alive(), "the holder ended: {}", holder.said());
}

#[test]
fn the_port_of_another_program() {
    need_root!();
    if !system::has("python3") {
        skip!("python3 is not installed");
    }
    let own = Namespace::new("port");
    let script = "import socket, time\n\
                  udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                  udp.bind((\"0.0.0.0\", 4791))\n\
                  print(\"bound\", flush=True)\n\
                  time.sleep(60)";
    let mut holder = Run::plain("python3 -c").arg(script).within(&own).start();
    while !holder.stdout().contains("bound") {
        assert!(holder.alive(), "the holder ended: {}", holder.said());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let words = "UDP port 4791 is taken by a program of this user that does not share it";
    refused(Run::hca("ibv_devinfo").within(&own), &[words, "stop that program"]);
}
