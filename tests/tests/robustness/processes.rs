//! Processes that die, stand still or crowd one address: none disturbs another, and nothing is
//! left.
//!
//! Every test has a network namespace of its own, and so a registry of its own.

use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use system::{
    Finished, Namespace, Run, Running, c_program, judged, listening, pair, peerdma, port, skip,
};

/// A namespace of its own for the test, or the end of it.
macro_rules! host {
    ($label:literal) => {{
        if !system::has("ib_write_bw") {
            skip!("perftest is not installed");
        }
        if !system::is_root() {
            skip!("network namespaces need root");
        }
        Namespace::new($label)
    }};
}

fn write_bw(host: &Namespace, port: u16, switches: &str) -> Run {
    Run::hca(&format!("ib_write_bw -d peerdma0 -x 0 -F -p {port} {switches}")).within(host)
}

/// A server and a client in the middle of a long transfer.
fn busy_pair(host: &Namespace, seconds: u32) -> (Running, Running) {
    busy_pair_of(|port| write_bw(host, port, &format!("-D {seconds} -s 65536")), host)
}

fn busy_pair_of(run: impl Fn(u16) -> Run, host: &Namespace) -> (Running, Running) {
    let port = port();
    let mut server = run(port).start();
    listening(port, Some(host), &mut server);
    (server, run(port).arg("127.0.0.1").start())
}

/// A short transfer between two fresh processes, which must succeed.
fn short_pair(host: &Namespace, when: &str) {
    short_pair_of(|port| write_bw(host, port, "-n 500"), host, when);
}

fn short_pair_of(run: impl Fn(u16) -> Run, host: &Namespace, when: &str) {
    let port = port();
    let (_, client) = pair(run(port), Some(host), run(port).arg("127.0.0.1"), port);
    assert!(client.stdout.contains("#bytes"), "{when}: {client}");
}

/// The processes with a device in this namespace and what each has sent, as `peerdma ps` tells it.
fn listed(host: &Namespace) -> Vec<u64> {
    let line = format!("{} ps --json", peerdma().display());
    let listing = Run::plain(&line).within(host).finish().ok();
    let listing: Value = serde_json::from_str(&listing.stdout).expect("JSON");
    let sent = |process: &Value| {
        // counted by the queue pairs, and by the device
        assert!(process["counters"]["sent_bytes"].is_u64(), "{process}");
        process["sent_bytes"].as_u64().expect("a number")
    };
    listing["processes"].as_array().expect("processes").iter().map(sent).collect()
}

/// Waits until the traffic of this namespace grows.
fn until_traffic(host: &Namespace, running: &mut Running) {
    let sent = || listed(host).iter().sum::<u64>();
    let before = sent();
    running.until("no traffic", |_| sent() > before);
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
    let host = host!("kill");
    let (server, mut client) = busy_pair(&host, 40);
    until_traffic(&host, &mut client);
    server.signal(Signal::KILL);
    let killed = Instant::now();
    let client = client.finish();
    assert_completion_error(&client);
    // Timeout 14 and seven retries make half a second; the rest is room for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(20), "{:?}: {client}", killed.elapsed());
}

#[test]
fn a_stopped_process_goes_on_where_it_stood() {
    let host = host!("stop");
    let (server, mut client) = busy_pair(&host, 15);
    until_traffic(&host, &mut client);
    server.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(150));
    server.signal(Signal::CONT);
    client.finish().ok();
    server.finish().ok();
}

#[test]
fn a_program_ends_soon_though_the_host_of_the_registry_stands_still() {
    let host = host!("ends");
    let program = match c_program("leaves_listening") {
        Ok(program) => program.display().to_string(),
        Err(reason) => skip!("{reason}"),
    };
    // It takes the registry over, and if it cannot, nobody answers any of its calls.
    for way in ["follow", "full"] {
        // Whoever is first hosts the registry; it sleeps, waiting for a client.
        let port = port();
        let mut first = write_bw(&host, port, "-n 500").start();
        listening(port, Some(&host), &mut first);
        let line = format!("{program} 127.0.0.1 {way}");
        let mut ending = Run::hca(&line).within(&host).start();
        ending.until("no listeners", |ending| ending.stdout().contains("listens"));
        first.signal(Signal::STOP);
        let asked = Instant::now();
        ending.signal(Signal::USR1);
        let ended = ending.finish().ok();
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(2), "{way}: {took:?}: {ended}");
    }
}

#[test]
fn a_stopped_or_killed_process_disturbs_no_other() {
    let host = host!("both");
    // The first process hosts the registry; the second stands still; the third pair must work all
    // the same.
    let (first_server, mut first_client) = busy_pair(&host, 60);
    until_traffic(&host, &mut first_client);
    let (second_server, mut second_client) = busy_pair(&host, 60);
    until_traffic(&host, &mut second_client);
    second_server.signal(Signal::STOP);
    short_pair(&host, "one is stopped");
    first_server.signal(Signal::KILL);
    short_pair(&host, "the registry's host was killed");
    first_client.signal(Signal::KILL);
    short_pair(&host, "two were killed");
    second_server.signal(Signal::KILL);
    second_client.signal(Signal::KILL);
    short_pair(&host, "all were killed");
}

#[test]
fn traffic_goes_on_when_the_host_of_the_registry_dies_or_stands_still() {
    let host = host!("seat");
    for signal in [Signal::KILL, Signal::STOP] {
        // Whoever is first hosts the registry; it sleeps, waiting for a client.
        let port = port();
        let mut first = write_bw(&host, port, "-n 500").start();
        listening(port, Some(&host), &mut first);
        let (server, mut client) = busy_pair(&host, 15);
        until_traffic(&host, &mut client);
        first.signal(signal);
        // Both are asked for anew: the listing needs a registry that answers.
        until_traffic(&host, &mut client);
        short_pair(&host, "the registry's host is gone or stands still");
        client.finish().ok();
        server.finish().ok();
        first.signal(Signal::KILL);
    }
}

/// The process ids that a command of peerdma's lists.
fn pids(host: &Namespace, command: &str, list: &str) -> BTreeSet<u64> {
    let line = format!("{} {command} --json", peerdma().display());
    let listing = Run::plain(&line).within(host).finish().ok();
    let listing: Value = serde_json::from_str(&listing.stdout).expect("JSON");
    let listed = listing[list].as_array().expect("a list");
    listed.iter().map(|entry| entry["pid"].as_u64().expect("a process id")).collect()
}

#[test]
fn nobody_is_missing_from_a_listing_when_the_host_of_the_registry_dies() {
    let host = host!("list");
    // Whoever is first hosts the registry, then one of the others; all sleep, waiting for clients.
    let mut idle = Vec::new();
    for _ in 0..5 {
        let port = port();
        let mut server = write_bw(&host, port, "-n 500").start();
        listening(port, Some(&host), &mut server);
        idle.push(server);
    }
    let lists = [("ps", "processes"), ("ctl", "functions")];
    let mut left = pids(&host, lists[0].0, lists[0].1);
    assert_eq!(left.len(), idle.len());
    let mut missed = Vec::new();
    while idle.len() > 1 {
        let killed = idle.remove(0);
        let all = left.clone();
        // Some ask before, some amid and some after the change.
        let ended = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let asking = lists.map(|(command, list)| {
                let (host, ended) = (&host, &ended);
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    let mut last = false;
                    while !std::mem::replace(&mut last, ended.load(Relaxed)) {
                        seen.push((command, pids(host, command, list)));
                    }
                    seen
                })
            });
            killed.signal(Signal::KILL);
            drop(killed);
            for _ in 0..3 {
                left = pids(&host, lists[0].0, lists[0].1);
            }
            ended.store(true, Relaxed);
            asking.map(|asking| asking.join().expect("listings")).concat()
        });
        assert_eq!(left.len(), idle.len());
        assert!(left.is_subset(&all));
        missed.extend(seen.into_iter().find(|(_, seen)| !seen.is_superset(&left)));
    }
    // Who is kept from the processors for longer than a new host waits may be missing once.
    assert!(missed.len() <= 1, "{missed:?}");
}

#[test]
fn unreliable_traffic_loses_nothing_when_the_host_of_the_registry_ends() {
    let host = host!("lost");
    if !system::has("ibv_uc_pingpong") {
        skip!("ibv_uc_pingpong is not installed (package ibverbs-utils)");
    }
    for signal in [Signal::KILL, Signal::TERM] {
        let idle = port();
        let mut first = write_bw(&host, idle, "-n 500").start();
        listening(idle, Some(&host), &mut first);
        // One lost packet stops a pingpong for good.
        let (server, mut client) = busy_pair_of(
            |port| {
                Run::hca(&format!("ibv_uc_pingpong -g 0 -n 100000 -s 512 -p {port}"))
                    .within(&host)
                    .limit(Duration::from_secs(400))
            },
            &host,
        );
        until_traffic(&host, &mut client);
        first.signal(signal);
        short_pair(&host, "the registry's host is gone");
        client.finish().ok();
        server.finish().ok();
    }
}

#[test]
fn nothing_is_left() {
    let host = host!("left");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let entries = || std::fs::read_dir(folder.path()).expect("the folder").count();
    let run = |switches: &'static str| {
        let (host, folder) = (&host, folder.path());
        move |port| write_bw(host, port, switches).env("TMPDIR", folder)
    };
    let (server, mut client) = busy_pair_of(run("-D 40 -s 65536"), &host);
    until_traffic(&host, &mut client);
    assert_eq!(listed(&host).len(), 2);
    assert_ne!(entries(), 0, "they keep their files elsewhere");
    server.signal(Signal::KILL);
    client.signal(Signal::KILL);
    drop((server, client));
    assert_eq!(listed(&host).len(), 0, "a killed process is still listed");
    // The next run sweeps what the killed ones could not.
    short_pair_of(run("-n 500"), &host, "all were killed");
    assert_eq!(entries(), 0, "files are left");
    assert_eq!(host.output("ss -Hxa").lines().count(), 0, "UNIX sockets are left");
}

/// Nearly each of them hosts the registry for a moment, and has to find out where the others are.
#[test]
fn hundreds_of_processes_that_begin_at_once_all_get_the_device() {
    let host = host!("at-once");
    if !system::has("ibv_devinfo") {
        skip!("ibv_devinfo is not installed");
    }
    let all = "for i in $(seq 256); do \
               (ibv_devinfo -v 2>&1 | grep -q 'GID\\[' || echo refused) & \
               done; wait";
    let said = Run::hca("sh -c").arg(all).within(&host).finish().ok();
    assert_eq!(said.stdout.matches("refused").count(), 0, "{said}");
}

/// One of them under a debugger, one stopped, some killed.
#[test]
fn hundreds_of_processes_share_an_address() {
    let host = host!("crowd");
    let program = match c_program("crowd") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    judged(Run::hca(&format!("{} 256", program.display())).within(&host), 9);
}

/// What a host holds grows with the processes of its user; its memory need not suffice for it.
#[test]
fn a_host_without_memory_leaves_hosting_to_another() {
    let host = host!("starved");
    let program = match c_program("starved_host") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    judged(Run::hca(&format!("{} 60", program.display())).within(&host), 7);
}

#[test]
fn what_another_process_has_is_neither_imported_nor_opened() {
    let program = match c_program("of_others") {
        Ok(program) => program.display().to_string(),
        Err(reason) => skip!("{reason}"),
    };
    let (name, file) = (format!("of-others-{}", std::process::id()), system::shared_dir());
    let run = |role| Run::hca(&format!("{program} {role} {name} {}", file.display()));
    let mut giver = run("give").start();
    giver.until("it has what it gives", |giver| giver.stdout().contains("ready"));
    judged(run("take"), 13);
}
