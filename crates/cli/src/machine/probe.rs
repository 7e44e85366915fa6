//! Asks the devices of this host what no file tells: whether a driver registers dma-bufs, and, on
//! request, whether memory can be registered and bytes moved.
//!
//! The question about dma-bufs registers nothing: its descriptor is none. A transfer goes from a
//! device to itself. On request every GPU whose driver exports dma-bufs gives a small buffer, which
//! is registered with each device and given back.

use ::doctor::{Facts, FirmwareCaps, OnDemand, Probe};
use gpu::Provider;
use gpu::providers::Kind;
use pcie::Address;
use peerdma::{Access, Context, HostBuffer, Library, Pd, Qp};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Bytes that a device writes to itself.
const LOOPBACK_BYTES: usize = 64 << 10;
/// Bytes of a GPU's buffer that is registered: a page of the largest kind that GPUs have.
const BUFFER_BYTES: u64 = 2 << 20;
/// How long that may take. It takes microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// A GPU's buffer as a dma-buf, or why there is none.
struct Exported {
    gpu: Address,
    buffer: Result<OwnedFd, String>,
}

/// Lets this host's devices say what no file tells; with `transfer`, by registering memory and
/// moving bytes.
pub fn ask_devices(facts: &mut Facts, transfer: bool) {
    (facts.probes, facts.unexported) = devices(transfer);
    facts.nodes = nodes();
    facts.kernel_watches = Some(mm::can_watch().map_err(|error| error.to_string()));
    facts.rdma_core = Some(Path::new("/sys/class/infiniband").is_dir());
    facts.software_hca = transfer.then(software_hca);
}

/// Asks every device that this host's libibverbs shows; with `transfer`, also to register memory
/// and to move bytes. Beside the answers, why ways to GPUs gave no buffer to register.
fn devices(transfer: bool) -> (Vec<Probe>, Vec<(String, String)>) {
    // Without the library or a device there is nobody to ask: then files must do.
    let Ok(library) = Library::system() else { return Default::default() };
    let devices = library.devices().unwrap_or_default();
    let (exported, failed) =
        if transfer && !devices.is_empty() { exported() } else { Default::default() };
    let answers = devices.into_iter();
    (answers.map(|device| ask(&library, device.name, transfer, &exported)).collect(), failed)
}

/// A buffer of every GPU that a driver here exports memory of, and why one does not.
fn exported() -> (Vec<Exported>, Vec<(String, String)>) {
    let (mut exported, mut failed) = (Vec::new(), Vec::new());
    for kind in [Kind::Drm, Kind::Cuda] {
        for provider in kind.open() {
            match provider {
                Ok(provider) => match buffer(&*provider) {
                    Some(buffer) => exported.push(buffer),
                    None => {
                        let why = format!("{} is at no known PCI address", provider.name());
                        failed.push((kind.to_string(), why));
                    }
                },
                Err(error) => failed.push((kind.to_string(), error.to_string())),
            }
        }
    }
    (exported, failed)
}

/// A buffer of a GPU, if the GPU's place is known.
fn buffer(provider: &dyn Provider) -> Option<Exported> {
    let export = || provider.alloc(BUFFER_BYTES)?.export();
    let buffer = export().map_err(|error: gpu::Error| error.to_string());
    Some(Exported { gpu: provider.address()?, buffer })
}

fn ask(library: &Library, device: String, transfer: bool, exported: &[Exported]) -> Probe {
    let opened = library.open(Some(&device)).and_then(|context| Ok((context.alloc_pd()?, context)));
    match opened {
        Ok((pd, context)) => Probe {
            device,
            on_demand: memory(&context).map(|(on_demand, _)| on_demand),
            bounces: memory(&context).map(|(_, bounces)| bounces),
            firmware: firmware(&context),
            unopened: None,
            registers_dmabuf: dmabuf(&pd),
            data_direct: context
                .data_direct_path()
                .ok()
                .map(|path| path.map(|path| path.display().to_string())),
            loopback: transfer.then(|| loopback(&context, &pd).map_err(|error| error.to_string())),
            buffers: exported.iter().map(|exported| register(&pd, exported)).collect(),
        },
        Err(error) => Probe { device, unopened: Some(error.to_string()), ..Probe::default() },
    }
}

/// What the device says of on-demand paging, and whether its DMA bounces.
fn memory(context: &Context) -> Option<(OnDemand, bool)> {
    let attr = context.memory_attr().ok()?;
    Some((OnDemand { supported: attr.on_demand, rc: attr.on_demand_rc }, attr.bounces))
}

/// What a ConnectX's firmware offers; other devices have none to ask.
fn firmware(context: &Context) -> Option<FirmwareCaps> {
    let caps = context.firmware_caps().ok()?;
    Some(FirmwareCaps {
        data_direct: caps.data_direct,
        query_vuid: caps.query_vuid,
        crossing_vhca_mkey: caps.crossing_vhca_mkey,
        ats: caps.ats,
    })
}

/// Whether this user may open the device files by which dma-bufs are made and adapters reached.
/// Opening one does nothing.
fn nodes() -> Vec<(String, Result<(), String>)> {
    let within = |folder: &str, start: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut paths: Vec<String> = names
            .filter(|name| name.starts_with(start))
            .map(|name| format!("{folder}/{name}"))
            .collect();
        paths.sort_unstable();
        paths
    };
    let mut paths = vec!["/dev/udmabuf".to_owned()];
    paths.extend(within("/dev/dma_heap", ""));
    paths.extend(within("/dev/infiniband", "uverbs"));
    let open = |path: &String| {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.map(drop).map_err(|error| error.to_string())
    };
    paths.into_iter().map(|path| (path.clone(), open(&path))).collect()
}

/// Registers a GPU's buffer, and gives it back.
fn register(pd: &Pd, exported: &Exported) -> (Address, Result<u64, String>) {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let result = match &exported.buffer {
        Ok(buffer) => pd
            .reg_dmabuf(buffer.as_fd(), 0, BUFFER_BYTES, 0, access)
            .map(|_registered| BUFFER_BYTES)
            .map_err(|error| error.to_string()),
        Err(why) => Err(why.clone()),
    };
    (exported.gpu, result)
}

fn dmabuf(pd: &Pd) -> Option<(bool, String)> {
    let says = |word: &str| format!("`ibv_reg_dmabuf_mr` with descriptor -1 says {word}");
    match pd.registers_dmabuf() {
        Ok(true) => Some((true, says("EBADF"))),
        Ok(false) => Some((false, says("EOPNOTSUPP"))),
        Err(_) => None,
    }
}

/// Writes a buffer into another one through a connection of a device to itself, and compares.
fn loopback(context: &Context, pd: &Pd) -> peerdma::Result<u64> {
    let bytes: Vec<u8> = (0..LOOPBACK_BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    let source = pd.reg(HostBuffer::new(LOOPBACK_BYTES)?, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let target = pd.reg(HostBuffer::new(LOOPBACK_BYTES)?, access)?;
    source.write(0, &bytes)?;
    let cq = context.create_cq(4, None)?;
    let (near, far) = (pd.qp(&cq, &cq).build()?, pd.qp(&cq, &cq).access(access).build()?);
    let (near_end, far_end) = (near.endpoint(), far.endpoint());
    let far: Qp = far.connect(&near_end)?;
    let near: Qp = near.connect(&far_end)?;
    near.post_write(1, &[source.slice(..)?], target.remote())?;
    let mut done = cq.wait(Some(PATIENCE))?;
    done.pop().ok_or(peerdma::Error::NotSupported("no completion came"))?.result?;
    let mut arrived = vec![0; LOOPBACK_BYTES];
    target.read(0, &mut arrived)?;
    drop((near, far));
    if arrived != bytes {
        return Err(peerdma::Error::NotSupported("other bytes arrived than were sent"));
    }
    Ok(LOOPBACK_BYTES as u64)
}

/// Lets the software HCA prove itself: the demo, in a small form. What it said where it failed.
fn software_hca() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["demo", "--size", "256K", "--json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(said.lines().next().unwrap_or("the demo failed and said nothing").to_owned())
}
