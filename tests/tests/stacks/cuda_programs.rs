//! Programs of others whose buffers are in GPU memory, unmodified, on the software GPU
//! (`peerdma run --gpu cuda`): from Python wheels, perftest and UCX.

use std::time::Duration;
use system::{
    Counters, CudaPerftest, CudaUcx, Namespace, Run, Wheels, is_root, judged, of_gpus, pair, port,
    skip,
};

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
    assert!(!said.stderr.contains("No CUDA device"), "the runtime was refused: {said}");
    let text = counters.text();
    assert_ne!(counters.sum("sent_bytes"), 0, "nothing was sent by the device: {text}");
    of_gpus(&text)
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
fn nixl(wheels: &Wheels, module: &str) {
    let run = wheels.run("nixl_pair.py").env("NIXL", module).env("UCX_NET_DEVICES", "peerdma0:1");
    let ways = ["VRAM to VRAM", "DRAM to VRAM", "VRAM from VRAM"];
    assert!(right(run.env("UCX_TLS", "rc_v,cuda_copy"), &ways) >= 5 << 20);
}

#[test]
fn nixl_moves_gpu_memory_between_processes() {
    nixl(&wheels!(), "nixl_cu12");
}

/// The one whose UCX is linked to CUDA 13's runtime.
#[test]
fn nixl_of_cuda_13_moves_gpu_memory_between_processes() {
    nixl(&wheels!(), "nixl_cu13");
}

/// Mooncake's transfer engine over its RDMA transport. It is linked with the CUDA runtime, asks it
/// what memory is whose, and registers memory by its address.
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

/// An RPATH leads to NVIDIA's runtime, as one of PyTorch's libraries does.
#[test]
fn the_runtime_comes_before_nvidias() {
    let nvidias = wheels!().runtime(12).expect("the runtime's wheel");
    let program = match system::c_program_with("cuda_by_path", &nvidias) {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let run = Run::hca(&program.display().to_string()).arg(&nvidias);
    judged(run.option("--gpu").option("cuda"), 9);
}

#[test]
fn nvidias_python_bindings_work() {
    let run = wheels!().run("cuda_bindings.py").option("--gpu").option("cuda");
    let said = run.limit(Duration::from_secs(120)).finish().ok();
    assert!(said.stdout.ends_with("all right\n"), "{said}");
}

macro_rules! pytorch {
    () => {
        match Wheels::with_pytorch() {
            Ok(wheels) => wheels,
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// The setting by which PyTorch's allocator makes memory longer where it lies, by the driver's
/// virtual memory, instead of asking the runtime for more.
const GROWING: (&str, &str) = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");

/// PyTorch's tensors in so many GPUs' memories: what it does with memory is as on a GPU, and a
/// kernel is refused by name.
fn tensors_are_right(run: Run, gpus: &str) {
    let kinds = [
        "devices",
        "copies",
        "streams",
        "memory that comes back",
        "no more memory",
        "kernels",
        "workers",
        "a fork",
        "another process",
    ];
    let namespace = is_root().then(|| Namespace::new("tensors"));
    let run = run.arg(gpus).option("--gpu").option("cuda").limit(Duration::from_secs(400));
    let said = namespace.iter().fold(run, Run::within).finish().ok();
    for kind in kinds {
        assert!(said.stdout.contains(&format!("{kind}: right")), "{kind}: {said}");
    }
    for kernel in ["CUDAFunctorOnSelf_add", "FillFunctor"] {
        let names_it = |line: &str| line.contains(kernel) && line.contains("is not executed");
        assert!(said.stderr.lines().any(names_it), "{kernel}: {said}");
    }
}

#[test]
fn pytorchs_tensors_lie_in_a_gpus_memory() {
    tensors_are_right(pytorch!().run("torch_memory.py"), "2");
}

#[test]
fn pytorchs_tensors_lie_in_memory_that_grows() {
    tensors_are_right(pytorch!().run("torch_memory.py").env(GROWING.0, GROWING.1), "2");
}

#[test]
fn pytorch_sees_the_gpus_of_a_machine_and_those_that_are_visible() {
    let dgx = pytorch!().run("torch_memory.py").option("--platform").option("dgx");
    tensors_are_right(dgx, "8");
    tensors_are_right(pytorch!().run("torch_memory.py").env("CUDA_VISIBLE_DEVICES", "1"), "1");
}

/// A tensor that `copy_` filled goes to a tensor of another process, by way of no memory of the
/// host's, and comes back changed.
#[test]
fn nixl_moves_pytorchs_tensors_between_processes() {
    const BYTES: u64 = 3_000_001;
    for variable in [("PEERDMA_LOG", "open"), ("CUDA_VISIBLE_DEVICES", "1"), GROWING] {
        let run = pytorch!().run("torch_pair.py").arg(BYTES.to_string());
        let run = run.env("UCX_NET_DEVICES", "peerdma0:1").env(variable.0, variable.1);
        let ways = ["tensor to tensor", "tensor from tensor"];
        let moved = right(run.env("UCX_TLS", "rc_v,cuda_copy"), &ways);
        assert!(moved >= 4 * BYTES, "{moved} bytes of GPUs, {variable:?}");
    }
}

const MESSAGES: u64 = 2000;

/// GPU memory by its address, by a dma-buf, and of the GPU that is reached through the other root
/// complex.
#[test]
fn perftest_measures_gpu_memory() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let perftest = match CudaPerftest::built() {
        Ok(perftest) => perftest,
        Err(reason) => skip!("{reason}"),
    };
    let network = Namespace::new("perftest");
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat", "ib_read_lat"] {
        for memory in ["0", "0 --use_cuda_dmabuf", "1 --use_cuda_dmabuf"] {
            let (counters, port) = (Counters::new(), port());
            let line = format!("{program} -F -p {port} -n {MESSAGES} -s 65536 --use_cuda={memory}");
            let run = |line: &str| {
                let run = perftest.run(line).within(&network);
                run.env("PEERDMA_COUNTERS", counters.file())
            };
            let client = run(&format!("{line} 127.0.0.1"));
            pair(run(&line), Some(&network), client, port);
            let text = counters.text();
            assert!(of_gpus(&text) >= 2 * MESSAGES * 65_536, "{line}: not from GPU to GPU: {text}");
            // What a busy machine repeats are a few; answers that a full ring loses are a third.
            let repeats = program != "ib_read_bw" || counters.sum("retransmits") < MESSAGES / 10;
            assert!(repeats, "{line}: {text}");
        }
    }
}

macro_rules! cuda_ucx {
    () => {
        match CudaUcx::built() {
            Ok(ucx) => ucx,
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// UCX's transports for CUDA are there beside that of the device, and it hears of memory that is
/// given back: what it writes over in `libcuda.so.1` and in the C library, it can.
#[test]
fn ucx_finds_gpus() {
    let run = cuda_ucx!().run("ucx_info -d").env("UCX_MEM_LOG_LEVEL", "diag");
    let said = run.finish().ok();
    for transport in ["cuda_copy", "cuda_ipc", "rc_verbs", "ud_verbs"] {
        let line = format!("Transport: {transport}");
        let found = said.stdout.lines().any(|found| found.ends_with(&line));
        assert!(found, "{transport} is not there: {said}");
    }
    let all = format!("{}{}", said.stdout, said.stderr);
    assert!(!all.contains("failed to"), "{said}");
}

/// UCX's benchmark over its RC transport with every kind of operation, between GPUs and between a
/// GPU and host memory. Long messages, tagged or active, are fetched or written by their receiver
/// or sender (rendezvous): shorter ones UCX copies from a buffer of its own.
#[test]
fn ucx_perftest_measures_gpu_memory() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let ucx = cuda_ucx!();
    let network = Namespace::new("ucx");
    for operation in ["ucp_put_bw", "ucp_put_lat", "ucp_get", "tag_bw", "tag_lat", "ucp_am_bw"] {
        for (memory, gpus) in [("cuda", 2), ("host,cuda", 1), ("cuda,host", 1)] {
            let (counters, port) = (Counters::new(), port());
            let run = |rest: String| {
                let run = ucx.run(&format!("ucx_perftest -p {port}{rest}")).within(&network);
                let run = run.env("UCX_TLS", "rc_v,cuda_copy").env("UCX_NET_DEVICES", "peerdma0:1");
                run.env("UCX_RNDV_THRESH", "8192").env("PEERDMA_COUNTERS", counters.file())
            };
            let what = format!("-t {operation} -m {memory} -s 65536 -n {MESSAGES} -w 10");
            let client = run(format!(" {what} -f 127.0.0.1"));
            pair(run(String::new()), Some(&network), client, port);
            let text = counters.text();
            assert!(of_gpus(&text) >= gpus * MESSAGES * 65_536, "{what}: not all: {text}");
        }
    }
}
