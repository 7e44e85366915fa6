//! Many of everything: each works, and one more costs little memory. How fast it is the bench says
//! (`cargo xtask bench --only scale`).

use std::path::PathBuf;
use std::time::Duration;
use system::{Namespace, Run, skip};

const LIMIT: Duration = Duration::from_secs(300);

/// A namespace of its own and the program, or the end of the test.
macro_rules! host {
    ($label:literal) => {{
        if !system::is_root() {
            skip!("network namespaces need root");
        }
        match system::c_program("scale") {
            Ok(program) => Host { namespace: Namespace::new($label), program },
            Err(reason) => skip!("{reason}"),
        }
    }};
}

struct Host {
    namespace: Namespace,
    program: PathBuf,
}

/// What a run found.
struct Found(String);

impl Host {
    /// Runs the program by the ways of the link, `auto` or `roce`.
    fn run(&self, what: &str, link: &str) -> Found {
        let run = Run::hca(&format!("{} {what}", self.program.display()));
        let run = run.option("--link").option(link).within(&self.namespace).limit(LIMIT);
        Found(run.finish().ok().stdout)
    }
}

impl Found {
    #[track_caller]
    fn figure(&self, name: &str) -> f64 {
        let figure = self.0.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        figure.unwrap_or_else(|| panic!("no {name}: {}", self.0))
    }
}

/// Bytes that a queue pair takes, beside its queues.
const MOST_BYTES: f64 = 4096.0;
/// Of its queues, which are for one request each way.
const QUEUES: f64 = 640.0;

#[test]
fn ten_thousand_queue_pairs_take_little_memory() {
    let host = host!("pairs");
    for link in ["auto", "roce"] {
        let found = host.run("pairs 10000", link);
        let bytes = found.figure("bytes each, used");
        assert!(bytes <= MOST_BYTES + QUEUES, "{bytes} bytes: {}", found.0);
    }
}

#[test]
fn a_thousand_busy_queue_pairs_all_go_on() {
    let host = host!("busy");
    for what in ["busy 1000 65536 4", "busy 1000 8 4 send"] {
        for link in ["auto", "roce"] {
            let found = host.run(what, link);
            let (least, most) = (found.figure("least of one"), found.figure("most of one"));
            assert!(least > 0.0, "{what} by {link}: {least} to {most}");
        }
    }
}

/// More than any 16-bit number tells apart. The program sees to it that each region is its own.
#[test]
fn a_hundred_thousand_regions_are_told_apart() {
    let host = host!("regions");
    for link in ["auto", "roce"] {
        let found = host.run("regions 100000", link);
        let bytes = found.figure("bytes each");
        assert!(bytes <= 1536.0, "{bytes} bytes: {}", found.0);
    }
}

#[test]
fn a_device_that_idles_does_nothing() {
    // At once: each counts what its own process uses, and next to nothing but time goes by.
    let hosts = [host!("idle"), host!("idle"), host!("idle")];
    std::thread::scope(|scope| {
        for (host, link) in hosts.iter().zip(["auto", "local", "roce"]) {
            scope.spawn(move || idles(host, link));
        }
    });
}

fn idles(host: &Host, link: &str) {
    let found = host.run("idle 10", link);
    // Less than one tick in all; the kernel's own count of ticks adds up each thread's parts.
    assert!(found.figure("microseconds of processor") < 10_000.0, "{}", found.0);
    assert!(found.figure("context switches") <= 10.0, "{}", found.0);
}
