//! Memory of the machine's own providers, registered and moved by RDMA. The kernel's are there in a
//! guest with a newer kernel; CUDA's driver is a stand-in, which checks how it is called.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use system::lab::{Guest, newest_kernel};
use system::{Run, peerdma, skip};

const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn the_kernels_buffers_are_written_and_read_by_rdma() {
    let program = match system::c_program("kernel_dmabuf") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let guest =
        newest_kernel().and_then(|kernel| Guest::boot_kernel(&kernel, &[&program, peerdma()]));
    let guest = match guest {
        Ok(guest) => guest,
        Err(reason) => skip!("{reason:#}"),
    };
    is_honest(&json(&guest, "peerdma gpu providers --json"));
    for device in ["/dev/udmabuf", "/dev/dma_heap/system", "/dev/dri/card0"] {
        let said = in_network(&guest, &format!("peerdma run -- kernel_dmabuf {device}"));
        assert!(said.lines().any(|line| line.starts_with("ok bytes of the kernel's")), "{said}");
    }
    for provider in ["udmabuf", "dma-heap", "drm"] {
        for memory in ["dmabuf", "dmabuf-pinned"] {
            proves(&guest, provider, memory);
        }
    }
}

/// Runs a line where the guest's rxe does not hold UDP port 4791: in a network namespace. It must
/// succeed.
fn in_network(guest: &Guest, line: &str) -> String {
    let script = format!("unshare -n sh -c 'ip link set lo up; HOME=/tmp {line}'");
    let (status, said) = guest.script(&script, LIMIT).unwrap();
    assert_eq!(status, 0, "{line}\n{said}\n{}", guest.console());
    said
}

fn json(guest: &Guest, line: &str) -> Value {
    let said = in_network(guest, line);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The providers of this guest are what the kernel's sources say they are.
fn is_honest(listing: &Value) {
    let found = |name: &str| {
        let mut all = listing["providers"].as_array().unwrap().iter();
        all.find(|provider| provider["provider"] == name).unwrap_or_else(|| panic!("{listing}"))
    };
    for (name, called) in
        [("udmabuf", "udmabuf"), ("dma-heap", "dma-heap system"), ("drm", "vgem at /dev/dri/card0")]
    {
        let provider = found(name);
        assert_eq!(provider["works"], true, "{provider}");
        assert_eq!(provider["name"], called);
        assert_eq!(provider["exports"], "static");
        assert_eq!(
            (&provider["mmap"], &provider["moves"]),
            (&Value::from(true), &Value::from(false))
        );
        assert_eq!(provider["memory"], "host");
    }
    let software = found("software");
    assert_eq!(software["exports"], "dynamic");
    assert_eq!(software["moves"], true);
    let cuda = found("cuda");
    assert_eq!(cuda["works"], false);
    assert!(cuda["reason"].as_str().unwrap().contains("NVIDIA's driver"), "{cuda}");
}

/// The demo's two processes move a file between a provider's buffers, over the route to the host's
/// memory.
fn proves(guest: &Guest, provider: &str, memory: &str) {
    let demo = format!("peerdma demo --provider {provider} --memory {memory} --size 3M --json");
    let report = json(guest, &demo);
    assert_eq!(report["proven"], true);
    assert_eq!((&report["provider"], &report["memory"]), (&provider.into(), &memory.into()));
    for side in report["sides"].as_array().unwrap() {
        let route = &side["route"];
        assert!(route["written_bytes"].as_u64() >= Some(3 << 20), "{side}");
        // PCI_P2PDMA_MAP_NONE: not a peer, the host
        assert_eq!(route["map_type"], "NONE", "{side}");
    }
}

/// A folder with a driver's library in it, or why there is none.
fn stand_in(folder: &Path) -> Result<(), String> {
    if !system::has("cc") {
        return Err("cc is not installed (package gcc)".to_owned());
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/gpu/libcuda.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o"]);
    let output = compiler.arg(folder.join("libcuda.so.1")).arg(source).output().expect("cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn cuda_with(folder: &Path, setting: &str) -> Value {
    let run = Run::program(peerdma()).args(&["gpu", "providers", "--json"]);
    let run = run.env("LD_LIBRARY_PATH", folder).env("LIBCUDA_LOG", folder.join("log"));
    let run = if setting.is_empty() { run } else { run.env(setting, "1") };
    let listing: Value = serde_json::from_str(&run.finish().ok().stdout).unwrap();
    let all = listing["providers"].as_array().unwrap();
    all.iter().find(|provider| provider["provider"] == "cuda").unwrap().clone()
}

#[test]
fn cudas_driver_is_asked_for_whole_pages_by_both_mappings() {
    let folder = tempfile::tempdir().unwrap();
    if let Err(reason) = stand_in(folder.path()) {
        skip!("{reason}");
    }
    let cuda = cuda_with(folder.path(), "");
    assert_eq!(cuda["name"], "Stand-in at 0000:1a:00.0", "{cuda}");
    assert_eq!(cuda["works"], true);
    assert_eq!((&cuda["exports"], &cuda["mmap"]), (&"static".into(), &Value::from(false)));
    assert_eq!(cuda["memory"], "device");
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let expected =
        ["retain", "alloc 8192", "export pcie", "export default", "free", "release"].join("\n");
    assert_eq!(log.trim(), expected);
}

#[test]
fn cudas_driver_without_gpu_or_dma_bufs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    if let Err(reason) = stand_in(folder.path()) {
        skip!("{reason}");
    }
    for (setting, reason) in [
        ("LIBCUDA_NO_DEVICE", "cuInit: CUDA_ERROR_NO_DEVICE"),
        ("LIBCUDA_NO_DMA_BUF", "NVIDIA's open kernel modules"),
    ] {
        let cuda = cuda_with(folder.path(), setting);
        assert_eq!(cuda["works"], false);
        assert!(cuda["reason"].as_str().unwrap().contains(reason), "{cuda}");
    }
}
