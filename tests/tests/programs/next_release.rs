//! The next Debian release's programs, unmodified, in its own root file system: the library built
//! here runs beside a newer C library, and newer versions of rdma-core, perftest and UCX run on it.

use std::path::{Path, PathBuf};
use std::time::Duration;
use system::conformance::{Kind, Outcome, exceptions, outcomes, surprises};
use system::{
    Container, Namespace, Run, beside_suite, c_program, converse, next_debian, pair, port, skip,
    suite,
};

/// Generic tests of rdma-core's suite that pass.
const LEAST_PASSES: usize = 165;

/// The root file system, and a network of its own.
struct Debian {
    root: Container,
    folder: PathBuf,
    network: Namespace,
}

macro_rules! debian {
    () => {
        match next_debian() {
            Ok(folder) => {
                Debian { root: Container::of(&folder), folder, network: Namespace::new("debian") }
            }
            Err(reason) => skip!("{reason}"),
        }
    };
}

impl Debian {
    fn run(&self, line: &str) -> Run {
        Run::hca(line).inside(&self.root).within(&self.network)
    }

    /// Runs a server and its client, which meet at a TCP port; the line says PORT.
    fn meet(&self, line: &str, dress: impl Fn(Run) -> Run) -> String {
        let port = port();
        let line = line.replace("PORT", &port.to_string());
        let server = dress(self.run(&line));
        let client = dress(self.run(&format!("{line} 127.0.0.1")));
        pair(server, Some(&self.network), client, port).1.stdout
    }
}

#[test]
fn rdma_core() {
    let debian = debian!();
    let info = debian.run("ibv_devinfo -v").finish().ok();
    assert!(info.stdout.contains("hca_id:\tpeerdma0") && info.stderr.is_empty(), "{info}");
    for program in ["rc", "uc", "ud", "srq", "xsrq"] {
        debian.meet(&format!("ibv_{program}_pingpong -g 0 -n 200 -p PORT"), |run| run);
    }
}

/// rdma-core's own tests of memory keys and their signatures, one more than in the present release.
#[test]
fn mlx5s_tests_of_memory_keys() {
    let root = match next_debian() {
        Ok(root) => root,
        Err(reason) => skip!("{reason}"),
    };
    let network = Namespace::new("keys");
    let test = "tests/run_tests.py --dev peerdma0 --port 1 --gid 0 -v tests.test_mlx5_mkey";
    let script = format!("cd {} && exec /usr/bin/python3 {test}", suite().display());
    let run = Run::hca("sh -c").arg(script);
    let run = run.option("--model").option("connectx").env("PYTHONDONTWRITEBYTECODE", "1");
    let run = run.inside(&Container::of(&root)).within(&network).limit(Duration::from_secs(120));
    let ended = run.finish();
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert!(said.contains("Ran 12 tests") && said.lines().any(|line| line == "OK"), "{said}");
}

/// The suite's tests that are no vendor's, on the newer libibverbs;
/// `conformance/exceptions_next.txt` names those that do not pass and why. PEERDMA_CONFORMANCE runs
/// those only that have it in their names.
#[test]
fn rdma_cores_generic_tests() {
    let root = match next_debian() {
        Ok(root) => root,
        Err(reason) => skip!("{reason}"),
    };
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    for part in ["cuda", "in_guest.py", "list_tests.py", "frames.py"] {
        beside_suite(&root, &ours.join(part));
    }
    let suite = suite();
    std::fs::write(root.join("usr/share/suite/generic"), generic(&root)).expect("a list");
    std::fs::write(root.join("usr/share/suite/counters"), "").expect("a file for counters");
    let (network, _other) = system::veth_pair("generic", 1500);
    let only = std::env::var("PEERDMA_CONFORMANCE").unwrap_or_default();
    // What passes through shared memory only the device counts; what processes of the test send
    // that end without closing theirs, only the network.
    let counter = ["lo", "wire"].map(|name| format!("/sys/class/net/{name}/statistics/tx_packets"));
    let counter = counter.join(":");
    let (mut first, mut results) = (0, Vec::new());
    // A test that crashes takes Python with it; the next run begins behind it.
    loop {
        let python = format!(
            "FIRST={first} ONLY={only} CHOSEN=generic COUNTER={counter} \
             PEERDMA_COUNTERS=counters exec /usr/bin/python3 in_guest.py --dev peerdma0 --port 1 --gid 0"
        );
        let run = Run::hca("sh -c").arg(format!("cd {} && {python}", suite.display()));
        let run = run.env("PYTHONDONTWRITEBYTECODE", "1").inside(&Container::of(&root));
        let ended = run.within(&network).limit(Duration::from_secs(900)).finish();
        let (last, done) = outcomes(&ended.stdout, &mut results);
        match last {
            _ if done => break,
            Some((number, case)) if !ended.timed_out => {
                results.push((case, Outcome::Never(format!("crashes: {ended}"))));
                first = number + 1;
            }
            _ => panic!("{ended}"),
        }
    }
    // What the network counts is not the device's alone, so that it sent nothing `conformance.rs`
    // asks, of the tests that are refused.
    for (case, outcome) in &mut results {
        let moved = matches!(outcome, Outcome::Never(why) if why == "passes with traffic");
        if case.kind == Kind::IsRefused && moved {
            *outcome = Outcome::Passed;
        }
    }
    let list = std::fs::read_to_string(ours.join("exceptions_next.txt")).expect("the list");
    let wrong = surprises(&results, &exceptions(&list), only.is_empty());
    let passes = results.iter().filter(|(_, outcome)| *outcome == Outcome::Passed).count();
    eprintln!("{passes} of {} generic tests pass", results.len());
    assert!(wrong.is_empty(), "{passes} pass; {} surprises:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!only.is_empty() || passes >= LEAST_PASSES, "only {passes} pass");
}

/// Beginnings of the names of the tests that are no vendor's. Those of dma-bufs are left out: this
/// pyverbs has no `DmaBuf.add_ref`, which they call, and what they leave behind then brings Python
/// down.
fn generic(root: &Path) -> String {
    let folder = root.join("usr/share/suite/tests");
    let files = std::fs::read_dir(&folder).expect("the suite");
    let mut classes = String::new();
    for name in files.filter_map(|file| file.ok()?.file_name().into_string().ok()) {
        let Some(module) = name.strip_suffix(".py").filter(|name| name.starts_with("test_")) else {
            continue;
        };
        if ["test_mlx5", "test_efa"].iter().any(|vendor| module.starts_with(vendor)) {
            continue;
        }
        let source = std::fs::read_to_string(folder.join(&name)).expect("a module");
        let names =
            source.lines().filter_map(|line| line.strip_prefix("class ")?.split('(').next());
        for class in names.filter(|class| !class.starts_with("DmaBuf")) {
            classes += &format!("tests.{module}.{class}.\n");
        }
    }
    classes
}

#[test]
fn perftest() {
    let debian = debian!();
    for line in [
        "ib_write_bw -n 500",
        "ib_write_lat -n 200 -c UC",
        "ib_write_bw -n 200 -c XRC",
        "ib_read_bw -n 200",
        "ib_send_bw -n 200 -e",
        "ib_send_lat -n 200 -c UD",
        "ib_send_bw -n 200 -c XRC",
        "ib_atomic_bw -n 200",
    ] {
        let said = debian.meet(&format!("{line} -d peerdma0 -F -p PORT"), |run| run);
        assert!(said.contains("#bytes"), "{line}: {said}");
    }
}

#[test]
fn connections_by_address() {
    let debian = debian!();
    for (server, client) in [
        ("rping -s -p PORT -C 10 -V", "rping -c -a 127.0.0.1 -p PORT -C 10 -V"),
        ("ucmatose -p PORT -c 5", "ucmatose -s 127.0.0.1 -p PORT -c 5"),
        ("ib_write_bw -R -F -n 200 -p PORT", "ib_write_bw -R -F -n 200 -p PORT 127.0.0.1"),
    ] {
        converse(true, |port| {
            let run = |line: &str| debian.run(&line.replace("PORT", &port.to_string()));
            (run(server), run(client))
        });
    }
}

#[test]
fn ucx_takes_dma_bufs() {
    let debian = debian!();
    let probe = debian.run("ucx_info -d").env("UCX_LOG_LEVEL", "debug");
    let said = probe.finish().ok();
    assert!(said.stdout.contains("peerdma0: dmabuf is supported"), "{said}");
    for transports in ["rc_v", "ud_v"] {
        for test in ["ucp_put_bw -s 65536", "ucp_get -s 8000", "ucp_fadd -s 8", "tag_lat -s 8"] {
            // This one is built for MPI, and does without it.
            let line = format!("ucx_perftest -P 0 -f -p PORT -n 50 -t {test}");
            debian.meet(&line, |run| {
                // What MPI loads closes a socket in whose `accept` a thread of its own waits, and
                // waits for that thread.
                let run = run.env("FI_VERBS_DGRAM_USE_NAME_SERVER", "0");
                run.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "peerdma0:1")
            });
        }
    }
}

/// That build of UCX checks what it is asked, and says itself that an endpoint over plain verbs has
/// no key for a strong fence, which is what it takes of itself. `ucx.rs` tells of builds that do
/// not check.
#[test]
fn ucx_has_no_key_for_a_strong_fence() {
    let debian = debian!();
    let program = match c_program("ucx_fence") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let place = beside_suite(&debian.folder, &program).join("ucx_fence");
    for mode in ["weak", "strong", "auto"] {
        let run = debian.run(&place.display().to_string()).env("UCX_FENCE_MODE", mode);
        let run = run.env("UCX_TLS", "rc_v").env("UCX_NET_DEVICES", "peerdma0:1");
        let ended = run.finish().ok();
        let lacks_key = ended.to_string().contains("flush(remote) is not supported");
        assert_eq!(lacks_key, mode != "weak", "{mode}: {ended}");
        assert!(ended.stdout.contains("memory: as it was put"), "{mode}: {ended}");
    }
}
