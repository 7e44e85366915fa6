//! Requests to the kernel's device nodes, whose structures are its user interface (`include/uapi`).
//! By raw system calls: the C library's are interposed where this runs under `peerdma run`, and the
//! machine's own nodes are meant.
#![allow(unsafe_code, reason = "an ioctl is a pointer to a structure")]

use crate::Error;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::c_char;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Structures of integers in the kernel's layout.
///
/// # Safety
/// Any bytes are a value, there is no padding, and no pointer in it.
pub(super) unsafe trait Plain: Copy {}

/// A request's number, with the size of its structure (`_IOC`).
const fn number<T>(directions: u64, group: u8, number: u64) -> u64 {
    directions << 30 | (size_of::<T>() as u64) << 16 | (group as u64) << 8 | number
}

/// A request: its name in the kernel's headers, and its number.
pub(super) struct Request<T> {
    name: &'static str,
    number: u64,
    plain: std::marker::PhantomData<T>,
}

impl<T: Plain> Request<T> {
    /// One that the kernel only reads (`_IOW`).
    pub(super) const fn write(name: &'static str, group: u8, nr: u64) -> Request<T> {
        Request { name, number: number::<T>(1, group, nr), plain: std::marker::PhantomData }
    }

    /// One that the kernel reads and answers (`_IOWR`).
    pub(super) const fn read_write(name: &'static str, group: u8, nr: u64) -> Request<T> {
        Request { name, number: number::<T>(3, group, nr), plain: std::marker::PhantomData }
    }

    /// Makes the request; what the call returns.
    pub(super) fn make(&self, node: &OwnedFd, argument: &mut T) -> Result<i32, Error> {
        // SAFETY: the number says the structure's size, and that the kernel reads or writes no
        // more; `Plain` has no pointers.
        unsafe { ioctl(self.name, node, self.number, argument) }
    }
}

/// Makes a request; what the call returns.
///
/// # Safety
/// The number's structure is `T`, and what pointers in it lead to has the room that the structure
/// says.
unsafe fn ioctl<T>(
    name: &'static str,
    node: &OwnedFd,
    number: u64,
    argument: &mut T,
) -> Result<i32, Error> {
    // SAFETY: the caller's promise.
    let code =
        unsafe { libc::syscall(libc::SYS_ioctl, node.as_raw_fd(), number, &raw mut *argument) };
    if code < 0 {
        let errno = Errno::from_io_error(&std::io::Error::last_os_error());
        return Err(Error::System(name, errno.unwrap_or(Errno::IO)));
    }
    Ok(code as i32)
}

/// A descriptor that a request has answered.
pub(super) fn answered(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made it for us; nobody else knows its number.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A device node.
pub(super) fn open(path: &str, remedy: &'static str) -> Result<OwnedFd, Error> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::NoNode { path: path.to_owned(), errno, remedy })
}

/// `struct drm_version`.
#[repr(C)]
struct DrmVersion {
    numbers: [i32; 3],
    name_len: usize,
    name: *mut c_char,
    date_len: usize,
    date: *mut c_char,
    desc_len: usize,
    desc: *mut c_char,
}

/// Name of a DRM node's driver (`DRM_IOCTL_VERSION`).
pub(super) fn drm_driver(node: &OwnedFd) -> Result<String, Error> {
    let mut name = [0u8; 64];
    let null = std::ptr::null_mut();
    let mut version = DrmVersion {
        numbers: [0; 3],
        name_len: name.len(),
        name: name.as_mut_ptr().cast(),
        date_len: 0,
        date: null,
        desc_len: 0,
        desc: null,
    };
    let request = number::<DrmVersion>(3, b'd', 0);
    // SAFETY: the structure's size is in the number; the name has the room it says, the other
    // strings have none.
    unsafe { ioctl("DRM_IOCTL_VERSION", node, request, &mut version) }?;
    let len = version.name_len.min(name.len());
    Ok(String::from_utf8_lossy(&name[..len]).into_owned())
}

/// `struct udmabuf_create`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UdmabufCreate {
    pub(super) memfd: u32,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
}
// SAFETY: integers, the narrow ones in a pair.
unsafe impl Plain for UdmabufCreate {}

/// `struct dma_heap_allocation_data`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct DmaHeapAllocation {
    pub(super) len: u64,
    pub(super) fd: u32,
    pub(super) fd_flags: u32,
    pub(super) heap_flags: u64,
}
// SAFETY: integers, the narrow ones in a pair.
unsafe impl Plain for DmaHeapAllocation {}

/// `struct drm_mode_create_dumb`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct CreateDumb {
    pub(super) height: u32,
    pub(super) width: u32,
    pub(super) bpp: u32,
    pub(super) flags: u32,
    pub(super) handle: u32,
    pub(super) pitch: u32,
    pub(super) size: u64,
}
// SAFETY: integers, the narrow ones an even number of them.
unsafe impl Plain for CreateDumb {}

/// `struct drm_mode_destroy_dumb`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct DestroyDumb {
    pub(super) handle: u32,
}
// SAFETY: one integer.
unsafe impl Plain for DestroyDumb {}

/// `struct drm_prime_handle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PrimeHandle {
    pub(super) handle: u32,
    pub(super) flags: u32,
    pub(super) fd: i32,
}
// SAFETY: integers of one width.
unsafe impl Plain for PrimeHandle {}

/// `struct drm_gem_close`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct GemClose {
    pub(super) handle: u32,
    pub(super) pad: u32,
}
// SAFETY: integers of one width.
unsafe impl Plain for GemClose {}

/// `union drm_amdgpu_gem_create`, and `struct pgpu_create` of the virtual GPU's driver. The
/// answer's handle is in the lower half of the size.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AmdgpuGemCreate {
    pub(super) size_or_handle: u64,
    pub(super) alignment: u64,
    pub(super) domains: u64,
    pub(super) flags: u64,
}
// SAFETY: integers of one width.
unsafe impl Plain for AmdgpuGemCreate {}

/// `struct drm_xe_gem_create`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct XeGemCreate {
    /// A pointer to the kernel; there are none.
    extensions: u64,
    pub(super) size: u64,
    pub(super) placement: u32,
    pub(super) flags: u32,
    pub(super) vm_id: u32,
    pub(super) handle: u32,
    pub(super) cpu_caching: u16,
    pad: [u16; 3],
    reserved: [u64; 2],
}
// SAFETY: integers without a gap; the pointer among them is null, for nobody else can set it.
unsafe impl Plain for XeGemCreate {}

/// `struct drm_xe_device_query`.
#[derive(Default)]
#[repr(C)]
struct XeDeviceQuery {
    extensions: u64,
    query: u32,
    size: u32,
    data: u64,
    reserved: [u64; 2],
}

/// `struct drm_xe_mem_region`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct XeMemRegion {
    /// 1 for the device's own memory.
    pub(super) class: u16,
    pub(super) instance: u16,
    pub(super) min_page_size: u32,
    sizes: [u64; 4],
    reserved: [u64; 6],
}

/// `struct drm_xe_query_mem_regions` with more regions than `placement` has bits.
#[derive(Default)]
#[repr(C)]
struct XeMemRegions {
    count: u32,
    pad: u32,
    regions: [XeMemRegion; 32],
}

/// The memories of a node of xe's (`DRM_XE_DEVICE_QUERY_MEM_REGIONS`).
pub(super) fn xe_regions(node: &OwnedFd) -> Result<Vec<XeMemRegion>, Error> {
    const NAME: &str = "DRM_IOCTL_XE_DEVICE_QUERY";
    let mut regions = XeMemRegions::default();
    let mut query = XeDeviceQuery { query: 1, ..XeDeviceQuery::default() };
    let request = number::<XeDeviceQuery>(3, b'd', 0x40);
    // SAFETY: the structure's size is in the number; of size 0, the data is not touched, and the
    // size that it has is answered.
    unsafe { ioctl(NAME, node, request, &mut query) }?;
    if query.size as usize > size_of::<XeMemRegions>() {
        return Err(Error::System(NAME, Errno::OVERFLOW));
    }
    query.data = (&raw mut regions).expose_provenance() as u64;
    // SAFETY: as before, and the data has at least as much room as the size says; any bytes are a
    // value of it.
    unsafe { ioctl(NAME, node, request, &mut query) }?;
    Ok(regions.regions.into_iter().take(regions.count as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernels_headers() {
        // as printed by a C program that includes linux/udmabuf.h, linux/dma-heap.h, drm/drm.h
        assert_eq!(number::<UdmabufCreate>(1, b'u', 0x42), 0x4018_7542);
        assert_eq!(number::<DmaHeapAllocation>(3, b'H', 0), 0xc018_4800);
        assert_eq!(number::<CreateDumb>(3, b'd', 0xb2), 0xc020_64b2);
        assert_eq!(number::<DestroyDumb>(3, b'd', 0xb4), 0xc004_64b4);
        assert_eq!(number::<PrimeHandle>(3, b'd', 0x2d), 0xc00c_642d);
        assert_eq!(number::<DrmVersion>(3, b'd', 0), 0xc040_6400);
        // and drm/amdgpu_drm.h, drm/xe_drm.h
        assert_eq!(number::<GemClose>(1, b'd', 0x09), 0x4008_6409);
        assert_eq!(number::<AmdgpuGemCreate>(3, b'd', 0x40), 0xc020_6440);
        assert_eq!(number::<XeDeviceQuery>(3, b'd', 0x40), 0xc028_6440);
        assert_eq!(number::<XeGemCreate>(3, b'd', 0x41), 0xc038_6441);
        assert_eq!(size_of::<XeMemRegion>(), 88);
    }
}
