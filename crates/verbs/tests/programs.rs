//! Unmodified programs of the distribution on the built library.

mod library;

use engine_thread::lock;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Output, Stdio};
use std::sync::Mutex;
use test_support::{has, skip};

/// Ends a test of the distribution's programs where they are not.
macro_rules! need_programs {
    () => {
        if !has("ibv_devinfo") {
            skip!("the programs of verbs are not installed (package ibverbs-utils)");
        }
    };
}

fn run(program: &str, args: &[&str]) -> (bool, String, String) {
    told(library::command(program).args(args).output().unwrap())
}

fn told(out: Output) -> (bool, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.success(), text(out.stdout), text(out.stderr))
}

#[test]
fn ibv_devices_lists_one_device_and_prints_nothing_else() {
    need_programs!();
    let (ok, out, err) = run("ibv_devices", &[]);
    assert!(ok);
    assert_eq!(out.lines().filter(|line| line.contains("peerdma0")).count(), 1, "{out}");
    assert_eq!(err, "");
}

#[test]
fn ibv_devinfo_reads_every_attribute() {
    need_programs!();
    let (ok, out, err) = run("ibv_devinfo", &["-v"]);
    assert!(ok, "{out}{err}");
    for wanted in ["PORT_ACTIVE", "Ethernet", "RoCE v2", "ATOMIC_HCA"] {
        assert!(out.contains(wanted), "{wanted} is not in {out}");
    }
    assert_eq!(err, "");
}

#[test]
fn a_device_that_is_not_there_is_not_found() {
    need_programs!();
    assert!(!run("ibv_devinfo", &["-d", "mlx5_0"]).0);
}

/// One pair at a time: a process that ends may take the registry with it, and a takeover may cost
/// others an unreliable packet, for which UC and UD pingpongs then wait.
static ONE_PAIR: Mutex<()> = Mutex::new(());

/// Runs `tool` as server and client; both must succeed.
fn pingpong(tool: &str, args: &[&str]) {
    let _alone = lock(&ONE_PAIR);
    // The tool listens on its own: a port that was free just now, tried again should somebody have
    // taken it.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let port = port.to_string();
    let base: Vec<&str> = args.iter().copied().chain(["-g", "0", "-p", &port]).collect();
    let server = library::command(tool)
        .args(&base)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The server prints its address once it listens no earlier than its QP exists; the client
    // retries until then.
    let client = loop {
        let client = told(library::command(tool).args(&base).arg("127.0.0.1").output().unwrap());
        if client.0 || !client.2.contains("Couldn't connect") {
            break client;
        }
    };
    let server = told(server.wait_with_output().unwrap());
    assert!(client.0 && server.0, "client: {client:?}\nserver: {server:?}");
    assert!(client.1.contains("iters in"), "{client:?}");
}

#[test]
fn pingpongs_polling_with_validated_data() {
    need_programs!();
    for tool in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        pingpong(tool, &["-c"]);
    }
}

#[test]
fn pingpongs_sleeping_on_events() {
    need_programs!();
    for tool in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        pingpong(tool, &["-c", "-e"]);
    }
}

#[test]
fn pingpongs_of_the_newer_calls() {
    need_programs!();
    pingpong("ibv_rc_pingpong", &["-c", "-N"]);
    pingpong("ibv_rc_pingpong", &["-c", "-t"]);
    pingpong("ibv_rc_pingpong", &["-c", "-j"]);
}
