//! The next Debian release's programs, unmodified, in its own root file system: the library built
//! here runs beside a newer C library, and newer versions of rdma-core, perftest and UCX run on it.

use std::path::PathBuf;
use std::time::Duration;
use system::conformance::other_root::judge_generic_tests;
use system::{
    Container, Namespace, Run, beside_suite, c_program, converse, next_debian, pair, port, skip,
    suite,
};

/// Generic tests of rdma-core's suite that pass, of 182.
const LEAST_PASSES: usize = 179;

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

/// The suite's tests that are no vendor's, on the newer libibverbs.
#[test]
fn rdma_cores_generic_tests() {
    match next_debian() {
        Ok(root) => judge_generic_tests(&root, LEAST_PASSES),
        Err(reason) => skip!("{reason}"),
    }
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
