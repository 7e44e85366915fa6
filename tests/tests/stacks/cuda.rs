//! NVIDIA's driver library and NVML over the software GPU (`peerdma run --gpu cuda`): C programs
//! that judge themselves, and programs of others from Python wheels.

use std::time::Duration;
use system::{Counters, Namespace, Run, Wheels, is_root, judged, peerdma, skip};

fn cuda(program: &std::path::Path) -> Run {
    Run::hca(&program.display().to_string()).option("--gpu").option("cuda")
}

#[test]
fn memory_is_a_gpus_and_an_hca_reaches_it() {
    let program = match system::c_program("cuda_memory") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let counters = Counters::new();
    judged(cuda(&program).env("PEERDMA_COUNTERS", counters.file()), 130);
    let to_gpu = |line: &str| line.contains(" BUS_ADDR ") && !line.ends_with(" 0 0");
    assert!(counters.text().lines().any(to_gpu), "{}", counters.text());
}

/// What is freed can be had again at the limit of descriptors too.
#[test]
fn allocations_end_at_the_limit_of_descriptors_and_come_back() {
    let program = match system::c_program("cuda_memory") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let run = Run::hca("sh -c").arg("ulimit -n 200; exec $PROGRAM few");
    judged(run.env("PROGRAM", &program).option("--gpu").option("cuda"), 3);
}

#[test]
fn work_is_done_in_order_and_memory_is_shared() {
    match system::c_program("cuda_order") {
        Ok(program) => drop(judged(cuda(&program), 79)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn a_stream_waits_for_what_somebody_writes() {
    match system::c_program("cuda_waits") {
        Ok(program) => drop(judged(cuda(&program), 109)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn processes_share_events() {
    match system::c_program("cuda_shared_events") {
        Ok(program) => drop(judged(cuda(&program), 28)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn arrays_hold_what_is_copied_to_them() {
    match system::c_program("cuda_arrays") {
        Ok(program) => drop(judged(cuda(&program), 85)),
        Err(reason) => skip!("{reason}"),
    }
}

#[test]
fn gpus_are_told_of_by_nvml() {
    match system::c_program("cuda_nvml") {
        Ok(program) => drop(judged(cuda(&program), 30)),
        Err(reason) => skip!("{reason}"),
    }
}

/// What `peerdma gpu providers` asks of NVIDIA's driver, this one answers.
#[test]
fn the_cuda_provider_allocates_and_exports() {
    let line = format!("{} gpu providers", peerdma().display());
    let said = Run::hca(&line).option("--gpu").option("cuda").finish().ok().stdout;
    let works = |line: &&str| line.starts_with("cuda ") && line.contains("peerdma software GPU");
    assert_eq!(said.lines().filter(works).count(), 2, "{said}");
}

/// A kernel that is not executed is named in a line whatever the settings.
#[test]
fn a_kernel_is_named_and_not_executed() {
    let program = match system::c_program("cuda_order") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let said = cuda(&program).finish().ok().stderr;
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("twice")).collect();
    assert!(lines.len() == 1 && lines[0].contains("CUDA_ERROR_NOT_SUPPORTED"), "{said}");
}

/// Without `--gpu cuda` programs do not find it, and with it no device that is not visible.
#[test]
fn the_library_is_found_only_where_it_is_asked_for() {
    let places = |run: Run| run.arg("echo $LD_LIBRARY_PATH").finish().ok().stdout;
    let has_it = |places: String| places.trim().split(':').any(|place| place.ends_with("/cuda"));
    assert!(!has_it(places(Run::hca("sh -c"))));
    assert!(has_it(places(Run::hca("sh -c").option("--gpu").option("cuda"))));
    let program = match system::c_program("cuda_order") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let none = cuda(&program).env("CUDA_VISIBLE_DEVICES", "").finish();
    assert!(none.stdout.contains("NOT cuInit: CUDA_ERROR_NO_DEVICE"), "{none}");
}

/// Runs a program of Python wheels on the software GPU, which says for each of `ways` that it is
/// right; gives how many bytes the device moved from and to the GPU's memory directly.
fn right(run: Run, ways: &[&str]) -> u64 {
    let counters = Counters::new();
    let run = run.option("--gpu").option("cuda").env("PEERDMA_COUNTERS", counters.file());
    // Whoever else is on the host's network has no part in it.
    let namespace = is_root().then(|| Namespace::new("wheels"));
    let run = namespace.iter().fold(run.limit(Duration::from_secs(400)), Run::within);
    let said = run.finish().ok();
    for way in ways {
        assert!(said.stdout.contains(&format!("{way}: right")), "{way}: {said}");
    }
    let text = counters.text();
    assert_ne!(counters.sum("sent_bytes"), 0, "nothing was sent by the device: {text}");
    let bytes = text.lines().filter(|line| line.starts_with("route") && line.contains("BUS_ADDR"));
    let both =
        |line: &str| line.rsplit(' ').take(2).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>();
    bytes.map(both).sum()
}

macro_rules! wheels {
    () => {
        match Wheels::installed() {
            Ok(wheels) => wheels,
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// NIXL's agents in two processes, over UCX's RC transport: memory of the GPU goes to the GPU of
/// the other process and back.
#[test]
fn nixl_moves_gpu_memory_between_processes() {
    let run = wheels!().run("nixl_pair.py").env("UCX_NET_DEVICES", "peerdma0:1");
    let ways = ["VRAM to VRAM", "DRAM to VRAM", "VRAM from VRAM"];
    assert!(right(run.env("UCX_TLS", "rc_v,cuda_copy"), &ways) >= 5 << 20);
}

/// Mooncake's transfer engine over its RDMA transport. It asks the CUDA runtime what memory is
/// whose, takes all for the host's where that fails, and registers it by its address.
#[test]
fn mooncake_moves_gpu_memory_between_processes() {
    let ways = ["DRAM to DRAM", "VRAM to VRAM", "VRAM to DRAM", "read from both"];
    assert!(right(wheels!().run("mooncake_pair.py"), &ways) >= 5 << 20);
}

/// Mooncake's store, whose values lie in another process's memory.
#[test]
fn mooncakes_store_keeps_values() {
    let ways = ["1 bytes", "4096 bytes", "1048576 bytes", "5000000 bytes"];
    right(wheels!().run("mooncake_store.py"), &ways);
}

/// UCXX over UCX's RC transport; connections by address need UCX's TCP beside it.
#[test]
fn ucxx_sends_gpu_memory_and_gets_it_back() {
    let (wheels, names) = (wheels!(), tempfile::tempdir().unwrap());
    let run =
        wheels.run_with_ucx("ucxx_pair.py", names.path()).env("UCX_TLS", "rc_v,tcp,cuda_copy");
    assert!(right(run, &["VRAM and back", "DRAM and back"]) >= 4 << 20);
}

#[test]
fn nvidias_python_bindings_work() {
    let run = wheels!().run("cuda_bindings.py").option("--gpu").option("cuda");
    let said = run.limit(Duration::from_secs(120)).finish().ok();
    assert!(said.stdout.ends_with("all right\n"), "{said}");
}
