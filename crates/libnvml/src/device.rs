//! GPUs: which there are, and what is told of one.

use crate::ffi::{Error, Out, Res, Text, put_text, text};
use crate::session::gpus;
use crate::topology::{Level, level};
use cuda::gpu::{Address, Gpu, attribute};

/// A GPU as programs hold it: its index, from this number on.
const FIRST: u64 = 0x6fce_0000_0000_0000;

fn handle(index: usize) -> u64 {
    FIRST + index as u64
}

fn index_of(handle: u64) -> Res<usize> {
    let index = handle.checked_sub(FIRST).and_then(|index| usize::try_from(index).ok());
    index.filter(|index| gpus().is_ok_and(|gpus| *index < gpus.len())).ok_or(Error::InvalidArgument)
}

fn gpu(handle: u64) -> Res<&'static Gpu> {
    let gpus = gpus()?;
    Ok(&gpus[index_of(handle)?])
}

fn by_index(out: Out<u64>, index: u32) -> Res {
    let index = index as usize;
    if index < gpus()?.len() { out.put(handle(index)) } else { Err(Error::InvalidArgument) }
}

fn by_bus_id(out: Out<u64>, id: Text) -> Res {
    let gpus = gpus()?;
    let address: Address = id.get()?.parse().map_err(|()| Error::InvalidArgument)?;
    let found = gpus.iter().position(|gpu| gpu.address() == address);
    out.put(handle(found.ok_or(Error::NotFound)?))
}

/// `nvmlPciInfo_t` up to what its first version has.
#[repr(C)]
#[derive(Clone, Copy)]
struct PciInfo1 {
    short_id: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    ids: u32,
}

/// Its second version.
#[repr(C)]
#[derive(Clone, Copy)]
struct PciInfo2 {
    first: PciInfo1,
    subsystem: u32,
    reserved: [u32; 4],
}

/// Its third.
#[repr(C)]
#[derive(Clone, Copy)]
struct PciInfo3 {
    first: PciInfo1,
    subsystem: u32,
    bus_id: [u8; 32],
}

fn ids((vendor, device): (u16, u16)) -> u32 {
    u32::from(device) << 16 | u32::from(vendor)
}

fn pci_1(gpu: &Gpu) -> PciInfo1 {
    let Address { domain, bus, device, .. } = gpu.address();
    PciInfo1 {
        short_id: text(&gpu.address().to_string().to_uppercase()),
        domain,
        bus: bus.into(),
        device: device.into(),
        ids: ids(gpu.found().id),
    }
}

fn pci_3(gpu: &Gpu) -> PciInfo3 {
    let long = format!("{:08x}{}", gpu.address().domain, &gpu.address().to_string()[4..]);
    let subsystem = ids(gpu.found().subsystem);
    PciInfo3 { first: pci_1(gpu), subsystem, bus_id: text(&long.to_uppercase()) }
}

/// `nvmlMemory_t`, `nvmlBAR1Memory_t`: total, free, used, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Memory([u64; 3]);

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Memory2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Generation of a link of so many GT/s.
fn generation(speed_gts: u32) -> Res<u32> {
    match speed_gts {
        2 => Ok(1),
        5 => Ok(2),
        8 => Ok(3),
        16 => Ok(4),
        32 => Ok(5),
        64 => Ok(6),
        _ => Err(Error::NotSupported),
    }
}

fn link_generation(out: Out<u32>, device: u64) -> Res {
    out.put(generation(gpu(device)?.found().link.0)?)
}

/// What processes have of a GPU is not known here, so there are none to tell of.
fn no_process(count: Out<u32>, device: u64) -> Res {
    gpu(device)?;
    count.put(0)
}

fn link_width(out: Out<u32>, device: u64) -> Res {
    out.put(gpu(device)?.found().link.1)
}

fn count(out: Out<u32>) -> Res {
    out.put(gpus()?.len() as u32)
}

api! {
    fn nvmlDeviceGetCount(out: Out<u32>) {
        count(out)
    }

    fn nvmlDeviceGetCount_v2(out: Out<u32>) {
        count(out)
    }

    fn nvmlDeviceGetHandleByIndex(index: u32, device: Out<u64>) {
        by_index(device, index)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<u64>) {
        by_index(device, index)
    }

    fn nvmlDeviceGetHandleByPciBusId(id: Text, device: Out<u64>) {
        by_bus_id(device, id)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(id: Text, device: Out<u64>) {
        by_bus_id(device, id)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<u64>) {
        let (gpus, uuid) = (gpus()?, uuid.get()?);
        let found = gpus.iter().position(|gpu| gpu.uuid_text() == uuid);
        device.put(handle(found.ok_or(Error::NotFound)?))
    }

    fn nvmlDeviceGetIndex(device: u64, index: Out<u32>) {
        index.put(index_of(device)? as u32)
    }

    fn nvmlDeviceGetMinorNumber(device: u64, number: Out<u32>) {
        number.put(index_of(device)? as u32)
    }

    fn nvmlDeviceGetName(device: u64, name: Out<u8>, len: u32) {
        put_text(name, len, &gpu(device)?.name())
    }

    fn nvmlDeviceGetUUID(device: u64, uuid: Out<u8>, len: u32) {
        put_text(uuid, len, &gpu(device)?.uuid_text())
    }

    fn nvmlDeviceGetPciInfo(device: u64, info: Out<PciInfo1>) {
        info.put(pci_1(gpu(device)?))
    }

    fn nvmlDeviceGetPciInfo_v2(device: u64, info: Out<PciInfo2>) {
        let gpu = gpu(device)?;
        let subsystem = ids(gpu.found().subsystem);
        info.put(PciInfo2 { first: pci_1(gpu), subsystem, reserved: [0; 4] })
    }

    fn nvmlDeviceGetPciInfo_v3(device: u64, info: Out<PciInfo3>) {
        info.put(pci_3(gpu(device)?))
    }

    fn nvmlDeviceGetMemoryInfo(device: u64, memory: Out<Memory>) {
        let gpu = gpu(device)?;
        let (total, free) = (gpu.found().memory_bytes, gpu.free_bytes());
        memory.put(Memory([total, free, total - free]))
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: u64, memory: Out<Memory2>) {
        let gpu = gpu(device)?;
        let version = memory.now()?.version;
        if version != 2 << 24 | size_of::<Memory2>() as u32 {
            return Err(Error::ArgumentVersionMismatch);
        }
        let (total, free) = (gpu.found().memory_bytes, gpu.free_bytes());
        memory.put(Memory2 { version, total, reserved: 0, free, used: total - free })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: u64, memory: Out<Memory>) {
        let total = gpu(device)?.found().bar_bytes;
        memory.put(Memory([total, total, 0]))
    }

    fn nvmlDeviceGetTopologyCommonAncestor(one: u64, other: u64, nearest: Out<u32>) {
        nearest.put(level(gpu(one)?.found(), gpu(other)?.found()) as u32)
    }

    fn nvmlDeviceGetTopologyNearestGpus(
        device: u64, wanted: u32, count: Out<u32>, found: Out<u64>,
    ) {
        let own = gpu(device)?;
        let room = count.now()? as usize;
        let mut near = 0;
        for (index, other) in gpus()?.iter().enumerate() {
            let level = level(own.found(), other.found());
            if level == Level::Internal || level as u32 != wanted {
                continue;
            }
            if near < room {
                found.at(near).put(handle(index))?;
            }
            near += 1;
        }
        count.put(near as u32)
    }

    // reading, writing, NVLink, atomics, by the property asked for: no links but PCIe's
    fn nvmlDeviceGetP2PStatus(one: u64, other: u64, property: u32, status: Out<u32>) {
        gpu(one)?;
        gpu(other)?;
        status.put(if property <= 1 { 0 } else { 5 })
    }

    fn nvmlDeviceGetCudaComputeCapability(device: u64, major: Out<i32>, minor: Out<i32>) {
        let gpu = gpu(device)?;
        major.put(attribute(gpu, 75).unwrap_or(0))?;
        minor.put(attribute(gpu, 76).unwrap_or(0))
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(device: u64, out: Out<u32>) {
        link_generation(out, device)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: u64, out: Out<u32>) {
        link_generation(out, device)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: u64, out: Out<u32>) {
        link_width(out, device)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: u64, out: Out<u32>) {
        link_width(out, device)
    }

    fn nvmlDeviceGetComputeMode(device: u64, mode: Out<u32>) {
        gpu(device)?;
        mode.put(0)
    }

    fn nvmlDeviceGetPersistenceMode(device: u64, mode: Out<u32>) {
        gpu(device)?;
        mode.put(1)
    }

    fn nvmlDeviceGetComputeRunningProcesses(device: u64, count: Out<u32>, _list: Out<u8>) {
        no_process(count, device)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(device: u64, count: Out<u32>, _list: Out<u8>) {
        no_process(count, device)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: u64, count: Out<u32>, _list: Out<u8>) {
        no_process(count, device)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(device: u64, count: Out<u32>, _list: Out<u8>) {
        no_process(count, device)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: u64, count: Out<u32>, _list: Out<u8>) {
        no_process(count, device)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: u64, count: Out<u32>, _list: Out<u8>) {
        no_process(count, device)
    }

    fn nvmlUnitGetCount(out: Out<u32>) {
        gpus()?;
        out.put(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<PciInfo1>(), size_of::<PciInfo2>()), (32, 52));
        assert_eq!((size_of::<PciInfo3>(), size_of::<Memory2>()), (68, 40));
    }

    #[test]
    fn handles_are_refused_that_nobody_gave() {
        assert_eq!(index_of(7), Err(Error::InvalidArgument));
        assert_eq!(index_of(FIRST + 1000), Err(Error::InvalidArgument));
        assert_eq!((generation(32), generation(31)), (Ok(5), Err(Error::NotSupported)));
    }
}
