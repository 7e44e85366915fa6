//! libfabric's verbs provider, unmodified: its ping-pong over every kind of endpoint, every message
//! compared, and GPU memory by a newer version: that of the next Debian release, and one that is
//! built with CUDA, with its own tests.
//!
//! The provider passes over the loopback interface, so two namespaces joined by a wire are the
//! least it takes.

use std::path::{Path, PathBuf};
use system::{
    Container, Counters, Fabtests, Namespace, Run, beside_suite, converse, fabric_program, is_root,
    next_debian, of_gpus, pair, peerdma, port, skip, veth_pair,
};

macro_rules! need_libfabric {
    () => {
        if !system::has("fi_pingpong") {
            skip!("libfabric is not installed (package libfabric-bin)");
        }
        if !is_root() {
            skip!("network namespaces need root");
        }
    };
}

fn pingpong(endpoint: &str, sizes: &[u32], ends: &(Namespace, Namespace)) {
    for size in sizes {
        let (port, counters) = (port(), Counters::new());
        let run = |line: String| Run::hca(&line).env("PEERDMA_COUNTERS", counters.file());
        let line = format!("fi_pingpong -c -I 20 -S {size} {endpoint}");
        let server = run(format!("{line} -B {port}")).within(&ends.0);
        let client = run(format!("{line} -P {port} 198.18.9.1")).within(&ends.1);
        let (_, client) = pair(server, Some(&ends.0), client, port);
        assert!(client.stdout.contains("=20"), "{client}");
        assert_ne!(counters.sum("sent_pkts"), 0, "{client}: nothing went over the wire");
    }
}

#[test]
fn it_finds_every_kind_of_endpoint() {
    need_libfabric!();
    let (here, _there) = veth_pair("fi", 1500);
    let info = Run::hca("fi_info -p verbs").within(&here).finish().ok();
    for wanted in [
        "protocol: FI_PROTO_RDMA_CM_IB_RC",
        "protocol: FI_PROTO_IB_UD",
        "protocol: FI_PROTO_RXM",
        "protocol: FI_PROTO_RXD",
    ] {
        assert!(info.stdout.contains(wanted), "{wanted}: {info}");
    }
}

#[test]
fn messages() {
    need_libfabric!();
    pingpong("-p verbs -e msg", &[64, 1000, 1_000_000], &veth_pair("fi", 1500));
}

#[test]
fn reliable_datagrams_over_connections() {
    need_libfabric!();
    pingpong("-p verbs;ofi_rxm -e rdm", &[64, 20_000, 1_000_000], &veth_pair("fi", 1500));
}

#[test]
fn reliable_datagrams_over_unreliable_ones() {
    need_libfabric!();
    // In packets of 1 KiB a message is longer than the receive queue. What finds it empty is lost,
    // as on every adapter, and ofi_rxd of libfabric 2.1 does not always send it again.
    pingpong("-p verbs;ofi_rxd -e rdm", &[64, 100_000], &veth_pair("fi", 9000));
}

#[test]
fn datagrams() {
    need_libfabric!();
    pingpong("-p verbs -e dgram", &[64, 1000], &veth_pair("fi", 1500));
}

/// A root with libfabric 2.1, and in it the program that moves memory between GPUs.
fn gpu_program() -> Result<(PathBuf, PathBuf), String> {
    let root = next_debian()?;
    let program = fabric_program(&root, "fabric_gpu")?;
    let place = beside_suite(&root, &program).join("fabric_gpu");
    Ok((root, place))
}

/// The program's two ends on hosts of their own, of a platform of this name in the program's
/// folder; what the client says.
fn between_gpus((root, program): &(PathBuf, PathBuf), way: &str, platform: Option<&str>) -> String {
    let (port, ends) = (port(), veth_pair("fi", 1500));
    let folder = program.parent().expect("a folder");
    let counters = folder.join(format!("counters-{way}"));
    let outside = |path: &Path| root.join(path.strip_prefix("/").expect("an absolute path"));
    std::fs::write(outside(&counters), "").expect("a file for counters");
    let run = |role: &str, end: &Namespace| {
        let line = format!("{} {role} {way} 198.18.9.1 {port}", program.display());
        let run = Run::hca(&line).option("--gpu").option("cuda");
        let run = run.env("PEERDMA_COUNTERS", &counters).inside(&Container::of(root)).within(end);
        match platform {
            None => run,
            Some(name) => run.option("--platform").option(folder.join(name)),
        }
    };
    let (server, client) = (run("server", &ends.0), run("client", &ends.1));
    let (server, client) = pair(server, Some(&ends.0), client, port);
    for end in [&server, &client] {
        assert!(end.stdout.ends_with(" 0 wrong\n"), "{end}");
    }
    // Each of four transfers is read from one GPU's memory and written to the other's.
    let text = std::fs::read_to_string(outside(&counters)).expect("counters");
    assert!(of_gpus(&text) >= 8 * 262_144, "the GPUs were not reached directly: {text}");
    client.stdout
}

/// The default platform with an HCA whose name libfabric takes for one that reaches GPUs.
fn mlx5_platform(file: &Path) {
    let platform = Run::plain(&format!("{} platforms default", peerdma().display())).finish().ok();
    let platform = platform.stdout.replace("\"peerdma0\"", "\"mlx5_0\"");
    std::fs::write(file, platform).expect("a platform");
}

/// A domain without FI_HMEM takes what fi_mr_attr says of the kind of memory for granted.
#[test]
fn gpu_memory_by_descriptor() {
    match gpu_program() {
        Ok(program) => {
            let said = between_gpus(&program, "dmabuf", None);
            assert!(said.contains("device peerdma0, without FI_HMEM"), "{said}");
        }
        Err(reason) => skip!("{reason}"),
    }
}

/// The provider offers FI_HMEM of a device whose name has `mlx` in it.
#[test]
fn gpu_memory_in_a_domain_for_it() {
    let program = match gpu_program() {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    mlx5_platform(&program.0.join("usr/share/suite/mlx5.toml"));
    let said = between_gpus(&program, "hmem", Some("mlx5.toml"));
    assert!(said.contains("device mlx5_0, with FI_HMEM"), "{said}");
}

#[test]
fn gpu_memory_by_address() {
    match gpu_program() {
        Ok(program) => drop(between_gpus(&program, "address", None)),
        Err(reason) => skip!("{reason}"),
    }
}

/// fabtests between two GPUs' memories, by libfabric with FI_HMEM_CUDA: registered by descriptor
/// (`-R`, FI_MR_DMABUF) and by address. Messages are compared (`-v`); so are WRITEs that bring
/// data, the only ones of which the other end knows that they came. Of datagrams, ofi_rxm has
/// shorter ones copied by CUDA.
#[test]
fn fabtests_with_cuda() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let fabtests = match Fabtests::built() {
        Ok(fabtests) => fabtests,
        Err(reason) => skip!("{reason}"),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let platform = folder.path().join("mlx5.toml");
    mlx5_platform(&platform);
    let ends = veth_pair("fi", 1500);
    for program in [
        "fi_msg_pingpong -p verbs -v",
        "fi_rma_bw -p verbs -e msg -o write",
        "fi_rma_bw -p verbs -e msg -o read",
        "fi_rma_bw -p verbs -e msg -o writedata -v",
        "fi_rdm_tagged_pingpong -p verbs;ofi_rxm -v",
    ] {
        for registered in ["", " -R"] {
            let counters = Counters::new();
            let line = format!("{program}{registered} -D cuda -S 262144 -I 20");
            converse(true, |port| {
                let run = |end: &Namespace, rest: String| {
                    let run = fabtests.run(&format!("{line} {rest}")).within(end);
                    let run = run.option("--platform").option(&platform);
                    run.env("PEERDMA_COUNTERS", counters.file())
                };
                let server = run(&ends.0, format!("-s 198.18.9.1 -B {port}"));
                (server, run(&ends.1, format!("-P {port} 198.18.9.1")))
            });
            // Each transfer is read from one GPU's memory and written to the other's.
            let text = counters.text();
            assert!(of_gpus(&text) >= 2 * 20 * 262_144, "{line}: not from GPU to GPU: {text}");
        }
    }
}
