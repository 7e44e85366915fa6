//! Processes that die, stand still or crowd one address: none disturbs another, and nothing is left.

use rustix::process::Signal;
use std::time::{Duration, Instant};
use system::{Finished, Run, Running, listening, pair, port, skip};

macro_rules! need_perftest {
    () => {
        if !system::has("ib_write_bw") {
            skip!("perftest is not installed");
        }
    };
}

fn write_bw(port: u16, switches: &str) -> Run {
    Run::hca(&format!("ib_write_bw -d peerdma0 -x 0 -F -p {port} {switches}"))
}

/// A server and a client in the middle of a long transfer.
fn busy_pair(port: u16, seconds: u32) -> (Running, Running) {
    let switches = format!("-D {seconds} -s 65536");
    let mut server = write_bw(port, &switches).start();
    listening(port, None, &mut server);
    let client = write_bw(port, &switches).arg("127.0.0.1").start();
    (server, client)
}

/// Waits until traffic of `running`'s device grows.
fn until_traffic(running: &mut Running) {
    let sent = || -> u64 {
        let listing =
            Run::plain(&format!("{} ps --json", system::peerdma().display())).finish().ok();
        listing
            .stdout
            .split("\"tx_bytes\":")
            .skip(1)
            .filter_map(|rest| {
                let digits: String =
                    rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
                digits.parse::<u64>().ok()
            })
            .sum()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let before = sent();
    while sent() <= before {
        assert!(Instant::now() < deadline && running.alive(), "no traffic: {}", running.stdout());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn assert_completion_error(client: &Finished) {
    assert!(!client.succeeded() && !client.timed_out, "{client}");
    let said = format!("{}{}", client.stdout, client.stderr);
    assert!(
        said.contains("Completion with error") || said.contains("Failed status"),
        "no completion error was reported: {client}"
    );
}

#[test]
fn the_peer_of_a_killed_process_gets_completion_errors() {
    need_perftest!();
    let (server, mut client) = busy_pair(port(), 30);
    until_traffic(&mut client);
    server.signal(Signal::KILL);
    let killed = Instant::now();
    let client = client.finish();
    assert_completion_error(&client);
    // Timeout 14 and seven retries make half a second; the rest is room for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}: {client}", killed.elapsed());
}

#[test]
fn a_stopped_process_goes_on_where_it_stood() {
    need_perftest!();
    let (server, mut client) = busy_pair(port(), 6);
    until_traffic(&mut client);
    server.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(150));
    server.signal(Signal::CONT);
    client.finish().ok();
    server.finish().ok();
}

#[test]
fn a_stopped_or_killed_process_disturbs_no_other() {
    need_perftest!();
    // The first process hosts the registry; the second stands still; the third pair must work all the same.
    let (first_server, mut first_client) = busy_pair(port(), 60);
    until_traffic(&mut first_client);
    let (second_server, mut second_client) = busy_pair(port(), 60);
    until_traffic(&mut second_client);
    second_server.signal(Signal::STOP);
    let run = |label: &str| {
        let port = port();
        let (_, client) =
            pair(write_bw(port, "-n 500"), None, write_bw(port, "-n 500").arg("127.0.0.1"), port);
        assert!(client.stdout.contains("#bytes"), "{label}: {client}");
    };
    run("one is stopped");
    first_server.signal(Signal::KILL);
    run("the registry's host was killed");
    first_client.signal(Signal::KILL);
    run("two were killed");
    second_server.signal(Signal::KILL);
    second_client.signal(Signal::KILL);
    run("all were killed");
}

#[test]
fn nothing_is_left() {
    need_perftest!();
    let (server, mut client) = busy_pair(port(), 30);
    until_traffic(&mut client);
    server.signal(Signal::KILL);
    client.signal(Signal::KILL);
    drop((server, client));
    let (port, switches) = (port(), "-n 100");
    pair(write_bw(port, switches), None, write_bw(port, switches).arg("127.0.0.1"), port);
    let shared = std::fs::read_dir("/dev/shm").map(|entries| {
        entries.flatten().filter(|e| e.file_name().to_string_lossy().contains("peerdma")).count()
    });
    assert_eq!(shared.unwrap_or(0), 0, "shared memory files are left");
}
