//! Libraries that stand on verbs, unmodified: gloo, which PyTorch's collectives use, librpma, for
//! persistent memory of other machines, and uDAPL, which older databases and MPIs speak, by the
//! programs that come with it.

use std::path::Path;
use std::time::Duration;
use system::{Counters, Namespace, Run, is_root, port, skip, veth_pair};

const LIMIT: Duration = Duration::from_secs(60);

macro_rules! need {
    ($program:expr) => {
        match $program {
            Ok(program) if is_root() => program,
            Ok(_) => skip!("network namespaces need root"),
            Err(reason) => skip!("{reason}"),
        }
    };
}

fn run(program: &Path, network: &Namespace, counters: &Counters, args: &[&str]) -> Run {
    let run = Run::hca(&program.display().to_string()).args(args).within(network);
    run.env("PEERDMA_COUNTERS", counters.file()).limit(LIMIT)
}

#[test]
fn gloo_adds_up_vectors() {
    let program = need!(system::gloo_program("gloo_allreduce"));
    let network = Namespace::new("gloo");
    let (counters, store) = (Counters::new(), tempfile::tempdir().unwrap());
    let store = store.path().display().to_string();
    let ranks = ["0", "1", "2"];
    let ends = ranks.map(|rank| run(&program, &network, &counters, &[rank, "3", &store]).start());
    for end in ends {
        let said = end.finish().ok();
        assert_eq!(said.stdout.matches(": right").count(), 6, "{said}");
    }
    assert!(counters.sum("sent_bytes") > 3 * 4_000_000, "{}", counters.text());
}

/// It finds its device by an address, which the loopback address names none by (`rdma_bind_addr`).
#[test]
fn librpma_writes_flushes_and_reads() {
    let program = need!(system::c_program("rpma_pair"));
    let (counters, port, ends) = (Counters::new(), port().to_string(), veth_pair("rpma", 1500));
    let run = |role, end| run(&program, end, &counters, &[role, "198.18.9.1", &port]);
    let mut target = run("target", &ends.0).start();
    target.until("the target listens", |target| target.stdout().contains("listens"));
    let initiator = run("initiator", &ends.1).finish().ok();
    assert!(initiator.stdout.contains("read: right"), "{initiator}");
    let target = target.finish().ok();
    assert!(target.stdout.contains("written: right"), "{target}");
    assert!(counters.sum("sent_bytes") >= 2 << 20, "{}", counters.text());
}

/// uDAPL's provider that connects by librdmacm, over the interface of a pair of namespaces.
const DAT_CONF: &str = "peer u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"wire 0\" \"\"\n";

/// Runs uDAPL's own programs: a server until it says `ready`, and its clients in turn.
fn udapl(server: &str, ready: &str, clients: &[&str]) -> Vec<String> {
    let (ends, folder) = (veth_pair("dapl", 1500), tempfile::tempdir().unwrap());
    let conf = folder.path().join("dat.conf");
    std::fs::write(&conf, DAT_CONF).unwrap();
    let run =
        |line: &str, end| Run::hca(line).within(end).env("DAT_OVERRIDE", conf.clone()).limit(LIMIT);
    let mut running = run(server, &ends.0).start();
    running.until(ready, |server| server.said().contains(ready));
    let said = clients.iter().map(|line| run(line, &ends.1).finish().ok().stdout).collect();
    running.finish().ok();
    said
}

macro_rules! need_udapl {
    () => {
        if !system::has("dtest") {
            skip!("uDAPL's programs are not installed (package dapl2-utils)");
        }
        if !is_root() {
            skip!("network namespaces need root");
        }
    };
}

#[test]
fn udapls_example_passes() {
    need_udapl!();
    let said = udapl("dtest -P peer", "Server is waiting", &["dtest -P peer -h 198.18.9.1"]);
    assert!(said[0].contains("DAPL Test Complete. PASSED"), "{}", said[0]);
}

/// Sends, RDMA WRITEs and READs, each with its bytes compared (`-V`), and then the server's end.
#[test]
fn udapls_own_test_passes() {
    need_udapl!();
    let test = "dapltest -T T -s 198.18.9.1 -D peer -i 200 -t 2 -w 2 -V client RR 4096 2 \
                server RW 2048 4 server SR 1024 client SR 1024";
    let said = udapl(
        "dapltest -T S -D peer",
        "Service Point Ready",
        &[test, "dapltest -T Q -s 198.18.9.1 -D peer"],
    );
    let lines = ["Total Send", "Total Recv", "Total RDMA Read", "Total RDMA Write"];
    for what in lines {
        let moved = said[0].lines().find(|line| line.starts_with(what));
        assert!(moved.is_some_and(|line| !line.contains(" 0.00 MB ")), "{what}: {}", said[0]);
    }
}
