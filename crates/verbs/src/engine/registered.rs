//! Registered memory as the functions of the platform's HCAs reach it.

use crate::base::env::{self, PeerDirect};
use crate::base::ffi::{Errno, Res};
use crate::drm;
use crate::platform::place;
use dmabuf::{AttachRequest, Hold};
use mm::Sink;
use pcie::{Function, Platform};
use std::sync::{Arc, Once};
use umem::{AccessFlags, DmabufRange, PeerClients, RegError, Umem};

impl From<RegError> for Errno {
    fn from(error: RegError) -> Errno {
        crate::log!("{error}");
        Errno(error.errno())
    }
}

/// The Peer-Direct clients, the software GPU's among them.
fn peers() -> &'static PeerClients {
    static REGISTERED: Once = Once::new();
    let clients = PeerClients::process();
    REGISTERED.call_once(|| {
        clients.register(Box::new(drm::GpuPeer));
    });
    clients
}

/// Registers memory of this process for `hca`: on demand if `access` says so; otherwise host
/// memory, or what a Peer-Direct client knows, asked before or after.
pub fn user(
    hca: &Function,
    memory: Sink<'static>,
    iova: u64,
    access: AccessFlags,
) -> Res<Arc<Umem>> {
    let platform = place::platform()?;
    if access.contains(AccessFlags::ON_DEMAND) {
        let pages = Arc::new(drm::HostPages);
        return Ok(Umem::on_demand(&space(), pages, memory, iova, access, hca, platform)?);
    }
    let order = env::peer_direct()?;
    let ask = || peers().from_user(memory.addr(), memory.len(), access, hca, platform);
    if order == PeerDirect::Before
        && let Some(claimed) = ask()
    {
        return Ok(claimed?);
    }
    let refused = match host(platform, hca, memory, access) {
        Err(RegError::Fault) if order == PeerDirect::After => RegError::Fault,
        other => return Ok(other?),
    };
    Ok(ask().unwrap_or(Err(refused))?)
}

fn host(
    platform: &Platform,
    hca: &Function,
    memory: Sink<'static>,
    access: AccessFlags,
) -> Result<Arc<Umem>, RegError> {
    let (addr, len) = (memory.addr(), memory.len());
    if drm::is_device_memory(addr, len) {
        return Err(RegError::Fault);
    }
    let umem = Umem::from_user(&space(), memory, access, hca, platform)?;
    if !umem.is_watched() {
        say_unwatched(addr, len);
    }
    Ok(umem)
}

/// The kernel does not report when this memory goes: what the C library gives back by itself must
/// be looked for.
#[cold]
fn say_unwatched(addr: u64, len: u64) {
    shim::watch_heap();
    let why = match mm::can_watch() {
        Ok(()) => {
            "of a kind that it does not watch, of another userfaultfd, or too many".to_owned()
        }
        Err(error) => format!("userfaultfd: {error}"),
    };
    crate::log!(
        "the kernel does not watch {len} bytes at {addr:#x} ({why}): interposed calls alone tell \
         their end"
    );
}

fn space() -> Arc<mm::AddressSpace> {
    let space = mm::AddressSpace::process();
    // Each time: a forked child has a space of its own.
    space.enforce_memlock(env::enforces_memlock());
    space
}

/// Registers a part of a dma-buf as a function of the platform reaches it. Control blocks of
/// buffers are found through `registry`.
pub fn dmabuf(
    function: &Function,
    registry: &registry::Client,
    range: &DmabufRange,
    access: AccessFlags,
    hold: Hold,
) -> Res<Arc<Umem>> {
    let request = AttachRequest { function, platform: place::platform()? };
    Ok(Umem::from_dmabuf(range, registry, access, &request, hold)?)
}
