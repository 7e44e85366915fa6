//! The machine that the devices sit in, and where in it.

use crate::base::env;
use crate::base::ffi::{Errno, Res};
use hca::identity;
use pcie::{Function, Platform, Role};
use std::sync::{Arc, OnceLock};

/// The machine that the devices sit in, and where in it.
struct Hardware {
    platform: Platform,
    hcas: Vec<Function>,
}

/// The platform, read once: `PEERDMA_PLATFORM`, or the default one.
fn hardware() -> Res<&'static Hardware> {
    static HARDWARE: OnceLock<Option<Hardware>> = OnceLock::new();
    HARDWARE.get_or_init(read).as_ref().ok_or(Errno(libc::ENODEV))
}

fn read() -> Option<Hardware> {
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
    Some(Hardware { hcas, platform })
}

/// The platform. ENODEV where there is none to sit in.
pub fn platform() -> Res<&'static Platform> {
    Ok(&hardware()?.platform)
}

/// Plugs in the HCA's Data Direct function, where the platform has one.
pub fn plug_data_direct(hca: &Function, device: &hca::Device) -> Res<()> {
    let Hardware { platform, .. } = hardware()?;
    if let Some(function) = platform.data_direct_of(hca) {
        device.data_direct().plug(function)?;
    }
    Ok(())
}

/// Path of a function in sysfs, without the leading `/sys`.
pub fn sysfs_path(function: &Function) -> Res<String> {
    let machine = hardware()?.platform.machine();
    let bridges: Vec<_> = machine.bridges(function).iter().map(ToString::to_string).collect();
    Ok(format!("/{}", sysfs::pci_directory(&bridges, &function.address.to_string())))
}

/// The platform's HCAs, in order of their addresses: at least one. ENODEV where there is no
/// platform to sit in.
pub fn hcas() -> Res<&'static [Function]> {
    Ok(&hardware()?.hcas)
}

/// The number of the first HCA that is on the host's interface of this name.
pub fn first_on(interface: &str) -> Option<usize> {
    let Hardware { platform, hcas } = hardware().ok()?;
    hcas.iter().position(|hca| identity::interfaces(platform, hca).have(interface))
}

/// The numbers of the HCAs that an interface may be of: those that name theirs, and the first of
/// the others.
pub fn owners() -> Vec<usize> {
    let hcas = hcas().unwrap_or_default();
    let first = hcas.iter().position(|hca| hca.interfaces.is_empty());
    let is_owner = |number: &usize| Some(*number) == first || !hcas[*number].interfaces.is_empty();
    (0..hcas.len()).filter(is_owner).collect()
}

/// The interfaces of an HCA.
pub fn interfaces(hca: &Function) -> link::Interfaces {
    hardware().map_or_else(
        |_| Default::default(),
        |hardware| identity::interfaces(&hardware.platform, hca),
    )
}

/// The GPU at an address of the platform.
pub fn gpu(address: pcie::Address) -> Res<&'static Function> {
    hardware()?.platform.machine().function(address).ok_or(Errno(libc::ENODEV))
}

/// The address of the platform's GPU of a number, from 0.
pub fn gpu_number(number: u32) -> Res<pcie::Address> {
    let gpu = hardware()?.platform.with_role(Role::Gpu).nth(number as usize);
    gpu.map(|gpu| gpu.address).ok_or(Errno(libc::ENODEV))
}

/// Addresses of an HCA's functions: its own, and its Data Direct function's.
fn functions(platform: &Platform, hca: &Function) -> Vec<pcie::Address> {
    let all = [Some(hca), platform.data_direct_of(hca)];
    all.into_iter().flatten().map(|function| function.address).collect()
}

/// Lets other processes see the routes of the device's functions. Without room for that they are
/// still counted.
pub fn publish(hca: &Function, device: &hca::Device) {
    let Ok(Hardware { platform, .. }) = hardware() else { return };
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
/// `route FUNCTION TARGET MAP-TYPE READ WRITTEN`, in bytes. A name or target may have spaces. Where
/// ACS leaves translated requests a way of their own, what went there is on a line `translated …`
/// of the same form.
pub fn traffic(hca: &Function) -> String {
    hardware().map_or_else(|_| String::new(), |hardware| lines(&hardware.platform, hca))
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
