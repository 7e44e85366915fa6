//! Yama as the kernel has it: whom a process lets at its memory. Under `ptrace_scope` 1, Ubuntu's
//! default, the two ends of a connection of one plain user reach each other's memory all the same;
//! where nobody may, and where a program has said itself whom it lets there, bytes go by packets.

use std::path::Path;
use std::time::Duration;
use system::lab::Guest;
use system::{peerdma, skip};

const LIMIT: Duration = Duration::from_secs(60);
const ITERATIONS: u64 = 1000;
/// A plain user, in a network without the kernel's own RoCE port.
const PLAIN: &str = "$IP netns exec calm setpriv --reuid=65534 --regid=65534 --clear-groups";

/// Runs perftest between two programs under `scope`, the server with `variable` in its environment;
/// answers with the client's requests that went directly.
fn direct_requests(guest: &Guest, scope: u32, variable: &str) -> u64 {
    guest
        .output(&format!("rm -f /tmp/counters; echo {scope} > /proc/sys/kernel/yama/ptrace_scope"));
    let run = |variable: &str| format!("{PLAIN} env HOME=/tmp {variable} peerdma run --");
    let line = format!("ib_write_lat -d peerdma0 -x 0 -F -s 4096 -n {ITERATIONS}");
    let server = guest.start(&format!("{} {line}", run(variable)));
    guest.output("until $IP netns exec calm netstat -ltn | grep -q :18515; do usleep 50000; done");
    let client = format!("{} {line} 127.0.0.1", run("PEERDMA_COUNTERS=/tmp/counters"));
    let (status, said) = guest.script(&client, LIMIT).unwrap();
    assert_eq!(status, 0, "scope {scope}: {said}\nserver: {}", server.said());
    let (succeeded, said) = server.finish();
    assert!(succeeded, "scope {scope}: {said}");
    let counters = guest.output("cat /tmp/counters");
    let direct = counters.lines().find_map(|line| line.strip_prefix("direct_requests "));
    direct.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no counter: {counters}"))
}

#[test]
fn the_ends_of_a_connection_let_each_other_in() {
    if !system::has("ib_write_lat") {
        skip!("perftest is not installed");
    }
    let names_another = match system::c_library("names_tracer") {
        Ok(library) => library,
        Err(reason) => skip!("{reason}"),
    };
    let extra = [peerdma(), Path::new("/usr/bin/setpriv"), &names_another];
    let guest = match Guest::boot(&extra) {
        Ok(guest) => guest,
        Err(error) => skip!("{error:#}"),
    };
    guest.output("$IP netns add calm; $IP netns exec calm $IP link set lo up; chmod 1777 /tmp");
    let (status, said) = guest.script("cat /proc/sys/kernel/yama/ptrace_scope", LIMIT).unwrap();
    if status != 0 {
        skip!("the guest's kernel has no Yama: {said}");
    }
    for scope in [0, 1] {
        let direct = direct_requests(&guest, scope, "");
        assert!(direct >= ITERATIONS / 2, "scope {scope}: {direct} of {ITERATIONS} went directly");
    }
    let preload = names_another.file_name().expect("a name").display();
    let preload = format!("LD_PRELOAD=/usr/bin/{preload}");
    assert_eq!(direct_requests(&guest, 1, &preload), 0, "the server lets another one in");
    assert_eq!(direct_requests(&guest, 2, ""), 0, "nobody may");
}
