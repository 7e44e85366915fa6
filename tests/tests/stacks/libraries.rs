//! Libraries that stand on verbs, unmodified: gloo, which PyTorch's collectives use, and librpma,
//! for persistent memory of other machines. Both compare every byte.

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
