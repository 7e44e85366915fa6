//! What `cuDeviceGetAttribute` answers (`CUdevice_attribute` of `cuda.h`). Of computing, which this
//! GPU does not do, it answers the limits of compute capability 9.0, so that programs that ask
//! first go on; of memory and its ways, what is so.

use super::Gpu;
use crate::{Error, Res};

/// The compute capability that limits are of.
const CAPABILITY: (i32, i32) = (9, 0);

/// Value of an attribute.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a number that CUDA 13 has no attribute of.
pub fn attribute(gpu: &Gpu, number: i32) -> Res<i32> {
    if !(1..=161).contains(&number) {
        return Err(Error::INVALID_VALUE);
    }
    Ok(of_place(gpu, number)
        .or_else(|| of_memory(gpu, number))
        .or_else(|| of_arrays(number))
        .or_else(|| of_computing(number))
        .unwrap_or(0))
}

/// Where it is and what it is.
fn of_place(gpu: &Gpu, number: i32) -> Option<i32> {
    let (found, address) = (gpu.found(), gpu.address());
    let pair = |(vendor, device): (u16, u16)| (u32::from(device) << 16 | u32::from(vendor)) as i32;
    Some(match number {
        33 => i32::from(address.bus),
        34 => i32::from(address.device),
        50 => address.domain as i32,
        139 => pair(found.id),
        140 => pair(found.subsystem),
        // NUMA_CONFIG: its memory is no node of the host; NUMA_ID; HOST_NUMA_ID
        130 => 0,
        131 => -1,
        134 => found.numa_node,
        _ => return None,
    })
}

/// Ways to its memory, and what is told of host memory.
fn of_memory(gpu: &Gpu, number: i32) -> Option<i32> {
    let is_rdma = i32::from(gpu.found().bar_bytes > 0);
    Some(match number {
        11 => i32::MAX, // MAX_PITCH
        15 => 1,        // GPU_OVERLAP
        19 => 1,        // CAN_MAP_HOST_MEMORY
        40 => 2,        // ASYNC_ENGINE_COUNT
        41 => 1,        // UNIFIED_ADDRESSING
        83 => 1,        // MANAGED_MEMORY
        89 => 1,        // CONCURRENT_MANAGED_ACCESS
        91 => 1,        // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        92..=94 => 1,   // CAN_USE_STREAM_MEM_OPS, 64 bits of them, NOR: the first version
        98 => 1,        // CAN_FLUSH_REMOTE_WRITES
        99 => 1,        // HOST_REGISTER_SUPPORTED
        102 => 1,       // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        103 => 1,       // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        110 => is_rdma, // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        113 => 1,       // READ_ONLY_HOST_REGISTER_SUPPORTED
        115 => 1,       // MEMORY_POOLS_SUPPORTED
        116 => is_rdma, // GPU_DIRECT_RDMA_SUPPORTED
        117 => 3,       // FLUSH_WRITES_OPTIONS: by the host, by streams
        118 => 200,     // WRITES_ORDERING: seen by all devices
        119 => 1,       // MEMPOOL_SUPPORTED_HANDLE_TYPES: a descriptor
        122 | 123 => 1, // CAN_USE_64_BIT_STREAM_MEM_OPS, and NOR of them
        124 => is_rdma, // DMA_BUF_SUPPORTED
        125 => 1,       // IPC_EVENT_SUPPORTED
        _ => return None,
    })
}

/// How many elements an array has at most each way (`MAXIMUM_TEXTURE*` and `MAXIMUM_SURFACE*`), as
/// in compute capability 9.0.
fn of_arrays(number: i32) -> Option<i32> {
    Some(match number {
        21 | 22 | 56 => 1 << 17, // widths of one dimension and of two
        23 | 57 => 1 << 16,      // heights of two
        24..=26 | 58..=60 => 1 << 14,
        47 | 48 => 1 << 13, // the other bounds of three dimensions
        49 => 1 << 15,
        29 | 43 | 62 | 65 => 1 << 11, // layers
        54 | 68 => 2046,              // layers that are faces of cubes
        // with layers or as cubes, where four are gathered, a surface of one dimension
        27 | 28 | 42 | 45 | 46 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 => 1 << 15,
        69 => 1 << 28, // of plain memory
        70 => 131_072,
        71 => 65_000,
        72 => 2_097_120,
        73 | 74 | 77 => 1 << 15, // with levels
        _ => return None,
    })
}

/// Limits of kernels, of which none is executed.
fn of_computing(number: i32) -> Option<i32> {
    Some(match number {
        1..=3 => 1024, // threads of a block, and of its x and y
        4 => 64,
        5 => i32::MAX, // blocks of a grid
        6 | 7 => 65535,
        8 => 48 << 10,    // shared memory of a block
        9 => 64 << 10,    // constant memory
        10 => 32,         // WARP_SIZE
        12 | 82 => 65536, // registers of a block, of a multiprocessor
        13 => 1_000_000,  // kHz
        14 => 512,        // alignments of textures and surfaces
        30 => 512,
        51 => 32,
        16 => 1,         // MULTIPROCESSOR_COUNT
        31 => 1,         // CONCURRENT_KERNELS
        36 => 1_000_000, // kHz of the memory
        37 => 512,       // bits of its bus
        38 => 1 << 20,   // L2_CACHE_SIZE
        39 => 2048,      // threads of a multiprocessor
        75 => CAPABILITY.0,
        76 => CAPABILITY.1,
        78 => 1, // STREAM_PRIORITIES_SUPPORTED
        79 | 80 => 1,
        81 => 228 << 10, // shared memory of a multiprocessor
        87 => 2,         // ratio of single to double precision
        90 => 1,         // COMPUTE_PREEMPTION_SUPPORTED
        97 => 227 << 10,
        106 => 32, // blocks of a multiprocessor
        111 => 1 << 10,
        126 => 1, // MEM_SYNC_DOMAIN_COUNT
        129 => 1, // UNIFIED_FUNCTION_POINTERS
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Found;

    #[test]
    fn attributes_say_where_it_is_and_how_its_memory_is_reached() {
        let mut found = Found::for_tests("0001:9a:02.0".parse().unwrap());
        found.bar_bytes = 0;
        let hidden = Gpu::new(found);
        let gpu = Gpu::new(Found::for_tests("0001:9a:02.0".parse().unwrap()));
        let of = |number| attribute(&gpu, number);
        assert_eq!((of(50), of(33), of(34)), (Ok(1), Ok(0x9a), Ok(2)));
        assert_eq!((of(116), of(124), of(118)), (Ok(1), Ok(1), Ok(200)));
        assert_eq!((of(22), of(29), of(54), of(68)), (Ok(131_072), Ok(2048), Ok(2046), Ok(2046)));
        assert_eq!([92, 93, 94, 98, 122, 123].map(of), [Ok(1); 6]);
        assert_eq!((attribute(&hidden, 116), attribute(&hidden, 124)), (Ok(0), Ok(0)));
        assert_eq!((of(75), of(18), of(161)), (Ok(9), Ok(0), Ok(0)));
        assert_eq!(
            (of(0), of(162), of(-1)),
            (Err(Error::INVALID_VALUE), Err(Error::INVALID_VALUE), Err(Error::INVALID_VALUE))
        );
    }
}
