//! `peerdma gpu`: the software GPUs' exported buffers on this host, moving them, taking them back;
//! and who else makes such buffers ([`providers`]).
//!
//! A buffer is found by its descriptor in some process of the user's, and its control block by the
//! registry; whoever has both may move it.

mod providers;
pub mod vram;

use crate::args::demo::{ProviderKind, Side};
use crate::args::device::Device;
use crate::args::gpu::{Gpu, GpuAction, GpuPlace};
use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style;
use crate::surroundings::tree;
use crate::watch::observer;
use dmabuf::{MEMFD_PREFIX, Placement, Storage, User, id_of};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long a move or a revoke waits for users that are inside.
const LIMIT: Duration = Duration::from_secs(2);

/// Does what the arguments ask.
pub fn gpu(arguments: &Gpu) -> Outcome {
    match &arguments.action {
        None => list(&buffers()?, arguments.json),
        Some(GpuAction::Alloc { size, platform }) => alloc(*size, platform.clone()),
        Some(GpuAction::Providers { json, platform }) => {
            let device = Device { platform: platform.clone(), ..Device::default() };
            providers::list(&tree::platform(&device)?, *json)
        }
        Some(GpuAction::Move { buffer, place }) => {
            let to = match place {
                GpuPlace::Vram => Placement::Vram,
                GpuPlace::Host => Placement::Host,
            };
            each(&buffers()?, buffer, |storage| {
                let moved = storage.move_to(to, None, LIMIT)?;
                Ok(format!("{} {to}", if moved { "moved to" } else { "was already in" }))
            })
        }
        Some(GpuAction::Revoke { buffer }) => each(&buffers()?, buffer, |storage| {
            storage.revoke(LIMIT)?;
            Ok("revoked".to_owned())
        }),
    }
}

/// Holds exported memory. The kernel frees it when a signal ends this process and nobody has it
/// open.
fn alloc(size: u64, platform: Option<PathBuf>) -> Outcome {
    let device = Device { platform, ..Device::default() };
    let gpu = vram::Gpu::open(Side::Near, &tree::platform(&device)?, ProviderKind::Software)?;
    let memory = gpu.allocate(size)?;
    let (pid, fd) = (std::process::id(), memory.fd().as_raw_fd());
    style::outln(format_args!("/proc/{pid}/fd/{fd}"));
    loop {
        std::thread::park();
    }
}

/// Exported buffers by id. Those whose exporter has ended are left out: nobody keeps their control
/// block.
fn buffers() -> Outcome<BTreeMap<u64, Arc<Storage>>> {
    let Some(client) = observer::registry()? else { return Ok(BTreeMap::new()) };
    let mut buffers = BTreeMap::new();
    for path in descriptors() {
        let file = File::options().read(true).write(true).open(&path);
        let Ok(fd) = file.map(OwnedFd::from) else { continue };
        let Some(id) = id_of(fd.as_fd()).filter(|id| !buffers.contains_key(id)) else { continue };
        if let Ok(storage) = Storage::import(&fd, id, &*client) {
            buffers.insert(id, storage);
        }
    }
    Ok(buffers)
}

/// Descriptors of software GPUs' memory, in all processes of this network namespace that may be
/// looked into.
fn descriptors() -> impl Iterator<Item = PathBuf> {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let network = |process: PathBuf| fs::read_link(process.join("ns/net")).ok();
    let here = network("/proc/self".into());
    let processes = entries("/proc".into())
        .filter(move |entry| entry.file_name().to_str().is_some_and(is_process))
        .filter(move |entry| network(entry.path()) == here);
    let descriptors = processes.flat_map(move |process| entries(process.path().join("fd")));
    let prefix = format!("/memfd:{MEMFD_PREFIX}");
    descriptors.map(|entry| entry.path()).filter(move |path| {
        let target = fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().starts_with(&prefix)
    })
}

/// Acts on the buffer of an id, or on all.
fn each(
    buffers: &BTreeMap<u64, Arc<Storage>>,
    which: &str,
    act: impl Fn(&Storage) -> Result<String, dmabuf::Error>,
) -> Outcome {
    let is_meant = |id: u64| which == "all" || format!("{id:016x}") == which;
    let meant: Vec<_> = buffers.iter().filter(|(id, _)| is_meant(**id)).collect();
    if meant.is_empty() {
        return Err(match which {
            "all" => Failure::new("no process of this user exports GPU memory here")
                .remedy("start a program that does, and keep it running"),
            _ => Failure::new(format_args!("there is no GPU buffer {which}"))
                .remedy("`peerdma gpu` lists them"),
        });
    }
    let mut status = 0;
    for (id, storage) in meant {
        match act(storage).what(format_args!("buffer {id:016x} stays as it is")) {
            Ok(done) => style::outln(format_args!("{id:016x} {done}")),
            Err(failure) => status = failure.report(),
        }
    }
    Ok(status)
}

fn list(buffers: &BTreeMap<u64, Arc<Storage>>, as_json: bool) -> Outcome {
    if as_json {
        let buffers: Vec<_> = buffers.iter().map(|(id, storage)| as_object(*id, storage)).collect();
        style::json(&json!({ "buffers": buffers }));
        return Ok(0);
    }
    if buffers.is_empty() {
        style::errln(format_args!("No process of this user exports GPU memory here."));
        return Ok(0);
    }
    let heading =
        ["BUFFER", "GPU", "BYTES", "PLACE", "MOVES", "EXPORTER", "USERS", "PINS", "STATE"];
    let rows = buffers.iter().map(|(id, storage)| cells(*id, storage));
    style::show(style::table(&style::headed(heading, rows), &[2, 4, 5, 6, 7]), 1);
    Ok(0)
}

fn state(storage: &Storage) -> &'static str {
    let state = storage.control().state();
    match (state.is_revoked(), state.is_closed()) {
        (true, _) => "revoked",
        (_, true) => "moving",
        _ => "",
    }
}

/// Everybody but the exporter, which has its buffer open always.
fn users(storage: &Storage) -> Vec<User> {
    let exporter = storage.control().exporter_pid();
    storage.users().into_iter().filter(|user| user.pid != exporter).collect()
}

fn cells(id: u64, storage: &Storage) -> Vec<String> {
    let (control, now, users) = (storage.control(), storage.control().state(), users(storage));
    vec![
        format!("{id:016x}"),
        control.gpu().to_string(),
        storage.size().to_string(),
        now.placement().to_string(),
        now.generation().to_string(),
        control.exporter_pid().to_string(),
        users.len().to_string(),
        users.iter().map(|user| user.pins).sum::<u64>().to_string(),
        state(storage).to_owned(),
    ]
}

fn as_object(id: u64, storage: &Storage) -> serde_json::Value {
    let (control, now) = (storage.control(), storage.control().state());
    let users = users(storage).into_iter();
    let users =
        users.map(|user| json!({ "pid": user.pid, "accesses": user.accesses, "pins": user.pins }));
    json!({
        "buffer": format!("{id:016x}"),
        "gpu": control.gpu().to_string(),
        "bytes": storage.size(),
        "place": now.placement().to_string(),
        "moves": now.generation(),
        "exporter_pid": control.exporter_pid(),
        "users": users.collect::<Vec<_>>(),
        "state": state(storage),
    })
}
