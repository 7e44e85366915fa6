//! How a server and its client meet: at a TCP port that can be seen, or by an address that rdma_cm
//! knows.

use crate::run::read;
use crate::{Finished, Namespace, Run, Running};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A TCP port that no other test of this run uses.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Below the ephemeral range, apart for test binaries that run at the same time.
    let base = 10_000 + (std::process::id() % 200) as u16 * 100;
    base + NEXT.fetch_add(1, Relaxed) % 100
}

/// Whether somebody in `namespace` (or in the test program's own) listens on a TCP port.
pub fn listens(port: u16, namespace: Option<&Namespace>) -> bool {
    let wanted = format!(":{port:04X}");
    let tables = match namespace {
        None => tables_here(),
        Some(namespace) => namespace.output("cat /proc/net/tcp /proc/net/tcp6"),
    };
    tables.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&wanted)) && words.nth(1) == Some("0A")
    })
}

/// Waits until somebody in `namespace` (or in the test program's own) listens on a TCP port, for at
/// most 20 seconds.
///
/// # Panics
/// When nobody does, or `server` ends first.
pub fn listening(port: u16, namespace: Option<&Namespace>, server: &mut Running) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if listens(port, namespace) {
            return;
        }
        assert!(server.alive(), "the server ended early: {}\n{}", server.line, server.said());
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nobody listens on TCP port {port}: {}\n{}", server.line, server.said());
}

/// TCP's tables of the network that programs run in unless they are given another.
fn tables_here() -> String {
    let process =
        test_support::network::own().map_or("self".to_owned(), |own| own.pid().to_string());
    let table = |name: &str| read(Path::new(&format!("/proc/{process}/net/{name}")));
    table("tcp") + &table("tcp6")
}

/// Whether this is a client of perftest's that was refused its second connection: it may ask before
/// the server's second listener is up, and what perftest 6.06 then does to try again is a
/// segmentation fault. Both ends start anew.
pub fn perftest_came_early(said: &str) -> bool {
    said.contains("Failed to connect RDMA CM events")
}

/// Whether this is a client of riostream's whose connection the server took before it had set the
/// options of its listening socket: it listens first, and who comes between may map no memory. The
/// server takes this connection for the one that it serves, and both start anew.
fn riostream_came_early(said: &str) -> bool {
    said.contains("riomap: Cannot allocate memory")
}

/// Whether this is ucmatose or udaddy told that nobody listens. Of its many requests others may
/// have come when the server did: that one ends too, or waits for ever for who is gone, and both
/// start anew.
fn nobody_listened(said: &str) -> bool {
    said.contains("RDMA_CM_EVENT_REJECTED, error: 8")
        || said.contains("RDMA_CM_EVENT_UNREACHABLE, error: 1")
}

/// Whether this is rping with every message behind it, waiting for ever: since rdma-core 60 its
/// thread polls for an event, `rdma_destroy_id` may take that event away, as the kernel's does, and
/// the thread then reads what no longer comes. `-v` shows the messages, where stdbuf(1) lets each
/// line out at once.
fn rping_waits_for_nothing(end: &Finished) -> bool {
    let mut words = end.line.split_whitespace().skip_while(|word| *word != "-C").skip(1);
    let wanted = words.next().and_then(|count| count.parse().ok());
    let seen = end.stdout.lines().filter(|line| line.contains("ping data: ")).count();
    end.timed_out && end.line.contains(" rping ") && wanted == Some(seen)
}

/// Whether an rping that was done closed the channel of events while its other thread still read
/// from it, which ends the program with that thread's error.
fn rping_closed_its_channel(end: &Finished) -> bool {
    let closed = end.stderr.contains("DISCONNECT EVENT")
        && end.stderr.contains("rdma_get_cm_event: Bad file descriptor");
    end.line.contains(" rping ") && end.status.code() == Some(255) && closed
}

/// Whether a program that connects by address has done its work.
///
/// # Panics
/// When it has not.
#[track_caller]
pub fn done(end: Finished) {
    if !rping_closed_its_channel(&end) {
        end.ok();
    }
}

/// How long a server that connects by address may take until it listens.
const STARTING: Duration = Duration::from_secs(20);

/// Runs a server and a client that meet by rdma_cm on the port they are given. Nobody sees from
/// outside when such a server listens: before, the client is refused, and tries again. With `ends`
/// the server must end, too; else it may serve for ever. If it ends it must end with 0. Gives what
/// the client said.
///
/// # Panics
/// When either fails.
#[track_caller]
pub fn converse(ends: bool, programs: impl Fn(u16) -> (Run, Run)) -> String {
    let mut line = String::new();
    for _ in 0..10 {
        let (server, client) = programs(port());
        match attempt(server, &client, ends) {
            Ok(said) => return said,
            Err(early) => line = early,
        }
    }
    panic!("both ends of {line} always had to start anew");
}

/// What the client said, or its line where both ends have to start anew.
#[track_caller]
fn attempt(server: Run, client: &Run, ends: bool) -> Result<String, String> {
    let mut server = server.start();
    let begun = Instant::now();
    let mut refused = false;
    let said = loop {
        let client = client.clone().finish();
        if client.succeeded() {
            break client.stdout;
        }
        refused |= nobody_listened(&client.stdout);
        let anew = perftest_came_early(&client.stderr)
            || riostream_came_early(&client.stderr)
            || rping_waits_for_nothing(&client);
        if anew || (refused && (client.timed_out || !server.alive())) {
            return Err(client.line);
        }
        let late = begun.elapsed() > STARTING || client.timed_out;
        assert!(!late && server.alive(), "{client}\nserver: {}", server.said());
    };
    if ends || !server.alive() {
        let server = server.finish();
        if rping_waits_for_nothing(&server) {
            return Err(server.line);
        }
        done(server);
    }
    Ok(said)
}

/// Runs a server and, once it listens on `port`, its client; both must end with 0.
#[track_caller]
pub fn pair(
    server: Run,
    server_at: Option<&Namespace>,
    client: Run,
    port: u16,
) -> (Finished, Finished) {
    let mut server = server.start();
    listening(port, server_at, &mut server);
    let client = client.finish();
    if !client.succeeded() {
        // The server may hang then; what it said helps.
        server.deadline = Instant::now() + Duration::from_secs(1);
        let server = server.finish();
        panic!("{client}\n{server}");
    }
    (server.finish().ok(), client)
}
