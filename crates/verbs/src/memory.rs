//! Registered memory as the functions of the platform's HCAs reach it.

use crate::drm;
use crate::env::{self, PeerDirect};
use crate::ffi::{Errno, Res};
use dmabuf::Hold;
use hca::identity;
use mm::Sink;
use pcie::{Function, Platform, Role};
use std::ffi::c_int;
use std::sync::{Arc, Once, OnceLock};
use umem::{AccessFlags, PeerClients, RegError, Umem};

impl From<RegError> for Errno {
    fn from(error: RegError) -> Errno {
        crate::log!("{error}");
        Errno(error.errno())
    }
}

/// The machine that the devices sit in, and where in it.
struct Place {
    platform: Platform,
    hcas: Vec<Function>,
}

/// The platform, read once: `PEERDMA_PLATFORM`, or the default one.
fn place() -> Res<&'static Place> {
    static PLACE: OnceLock<Option<Place>> = OnceLock::new();
    PLACE.get_or_init(read_place).as_ref().ok_or(Errno(libc::ENODEV))
}

fn read_place() -> Option<Place> {
    let platform = match env::platform() {
        None => Platform::default(),
        Some(path) => match Platform::load(&path) {
            Ok(platform) => platform,
            Err(error) => {
                env::say_not_open(format_args!("{}: {error}", path.display()));
                return None;
            }
        },
    };
    if let Some(fraction) = env::pace() {
        platform.pace(fraction);
    }
    let hcas: Vec<Function> = platform.with_role(Role::Hca).cloned().collect();
    if hcas.is_empty() {
        env::say_not_open("the platform has no function with role \"hca\"");
        return None;
    }
    Some(Place { hcas, platform })
}

/// Plugs in the HCA's Data Direct function, where the platform has one.
pub fn plug_data_direct(hca: &Function, device: &hca::Device) -> Res<()> {
    let Place { platform, .. } = place()?;
    if let Some(function) = platform.data_direct_of(hca) {
        device.plug_data_direct(function)?;
    }
    Ok(())
}

/// Path of a function in sysfs, without the leading `/sys`.
pub fn sysfs_path(function: &Function) -> Res<String> {
    let machine = place()?.platform.machine();
    let bridges: Vec<_> = machine.bridges(function).iter().map(ToString::to_string).collect();
    Ok(format!("/{}", sysfs::pci_directory(&bridges, &function.address.to_string())))
}

/// The platform's HCAs, in order of their addresses: at least one. ENODEV where there is no platform to sit in.
pub fn hcas() -> Res<&'static [Function]> {
    Ok(&place()?.hcas)
}

/// The number of the first HCA that is on the host's interface of this name.
pub fn first_on(interface: &str) -> Option<usize> {
    let Place { platform, hcas } = place().ok()?;
    hcas.iter().position(|hca| identity::interfaces(platform, hca).have(interface))
}

/// The interfaces of an HCA.
pub fn interfaces(hca: &Function) -> link::Interfaces {
    place().map_or_else(|_| Default::default(), |place| identity::interfaces(&place.platform, hca))
}

/// The GPU at an address of the platform.
pub fn gpu(address: pcie::Address) -> Res<&'static Function> {
    place()?.platform.machine().function(address).ok_or(Errno(libc::ENODEV))
}

/// The address of the platform's GPU of a number, from 0.
pub fn gpu_number(number: u32) -> Res<pcie::Address> {
    let gpu = place()?.platform.with_role(Role::Gpu).nth(number as usize);
    gpu.map(|gpu| gpu.address).ok_or(Errno(libc::ENODEV))
}

/// Addresses of an HCA's functions: its own, and its Data Direct function's.
fn functions(platform: &Platform, hca: &Function) -> Vec<pcie::Address> {
    let all = [Some(hca), platform.data_direct_of(hca)];
    all.into_iter().flatten().map(|function| function.address).collect()
}

/// Lets other processes see the routes of the device's functions. Without room for that they are still counted.
pub fn publish(hca: &Function, device: &hca::Device) {
    let Ok(Place { platform, .. }) = place() else { return };
    match device.directory().route_table() {
        Ok(table) => {
            let table = Arc::new(table);
            for function in functions(platform, hca) {
                platform.publish(function, table.clone());
            }
        }
        Err(errno) => crate::log!("peerdma top will not see the routes: {errno}"),
    }
}

/// What an HCA moved over the machine so far, by links and by routes: lines `link NAME BYTES` and
/// `route FUNCTION TARGET MAP-TYPE READ WRITTEN`, in bytes. A name or target may have spaces. Where ACS leaves translated requests
/// a way of their own, what went there is on a line `translated …` of the same form.
pub fn traffic(hca: &Function) -> String {
    place().map_or_else(|_| String::new(), |place| lines(&place.platform, hca))
}

fn lines(platform: &Platform, hca: &Function) -> String {
    let functions = functions(platform, hca);
    let link = |(name, bytes): (pcie::LinkId, u64)| format!("link {name} {bytes}\n");
    let route = |route: &Arc<pcie::Route>| {
        let (read, written) = (route.read_bytes(), route.written_bytes());
        let function = route.function().filter(|function| functions.contains(function))?;
        let (name, target) =
            (if route.is_translated() { "translated" } else { "route" }, route.target());
        Some(format!("{name} {function} {target} {} {read} {written}\n", route.map_type()))
    };
    let mut routes: Vec<String> = platform.routes().iter().filter_map(route).collect();
    routes.sort();
    platform.link_bytes_of(&functions).into_iter().map(link).chain(routes).collect()
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

/// Registers memory of this process for `hca`: on demand if `access` says so; otherwise host memory, or
/// what a Peer-Direct client knows, asked before or after.
pub fn user(
    hca: &Function,
    memory: Sink<'static>,
    iova: u64,
    access: AccessFlags,
) -> Res<Arc<Umem>> {
    let Place { platform, .. } = place()?;
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

/// The kernel does not tell when this memory goes: what the C library gives back by itself must be looked for.
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
        "the kernel does not watch {len} bytes at {addr:#x} ({why}): interposed calls alone tell their end"
    );
}

fn space() -> Arc<mm::AddressSpace> {
    let space = mm::AddressSpace::process();
    // Each time: a forked child has a space of its own.
    space.enforce_memlock(env::enforces_memlock());
    space
}

/// Registers a part of the dma-buf behind `fd` as a function of the platform reaches it. Control blocks of buffers are found
/// through `registry`.
pub fn dmabuf(
    function: &Function,
    registry: &registry::Client,
    fd: c_int,
    (offset, len): (u64, u64),
    access: AccessFlags,
    hold: Hold,
) -> Res<Arc<Umem>> {
    let platform = &place()?.platform;
    Ok(Umem::from_dmabuf_fd(fd, registry, offset, len, access, function, platform, hold)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie::Target;

    #[test]
    fn traffic_is_told_by_links_and_routes() {
        let platform = Platform::default();
        let function = |name| platform.named(name).unwrap();
        let gpu = Target::Function(function("gpu0").address);
        platform.route(function("peerdma0"), gpu).unwrap().count_read(7);
        platform.route(function("peerdma0"), Target::HOST).unwrap().count_written(5);
        let text = lines(&platform, function("peerdma0"));
        for line in [
            "link link below 0000:17:00.0 12",
            "link link below 0000:17:02.0 7",
            "link root complex 0 5",
            "route 0000:18:00.0 0000:1a:00.0 BUS_ADDR 7 0",
            "route 0000:18:00.0 host memory NONE 0 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
