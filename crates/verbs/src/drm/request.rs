//! The requests of `include/uapi/drm/{drm,drm_mode,amdgpu_drm}.h` as bytes, and carrying them out.
//! As the kernel does, a request is known by its number alone; a shorter structure is taken as
//! filled up with zeroes, and answered as far as it reaches.

use super::Node;
use super::cpu_map::forget_gone;
use crate::base::ffi::{Errno, INVALID, Res};
use dmabuf::Placement;
use mm::Sink;
use std::os::fd::{BorrowedFd, IntoRawFd};

const FAULT: Errno = Errno(libc::EFAULT);
/// `DRM_IOCTL_BASE`.
const BASE: u32 = b'd' as u32;
/// Longest structure of those below (`struct drm_version`).
const LONGEST: usize = 64;

// Request numbers.
const VERSION: u32 = 0x00;
const GEM_CLOSE: u32 = 0x09;
const GET_CAP: u32 = 0x0c;
const PRIME_HANDLE_TO_FD: u32 = 0x2d;
const PRIME_FD_TO_HANDLE: u32 = 0x2e;
const AMDGPU_GEM_CREATE: u32 = 0x40;
const AMDGPU_GEM_MMAP: u32 = 0x41;
/// Our own, the last of a driver's: a dma-buf of a part of what a dma-buf stands for.
const EXPORT_PART: u32 = 0x9f;
const MODE_CREATE_DUMB: u32 = 0xb2;
const MODE_MAP_DUMB: u32 = 0xb3;
const MODE_DESTROY_DUMB: u32 = 0xb4;

// `DRM_CAP_*`.
const CAP_DUMB_BUFFER: u64 = 0x1;
const CAP_PRIME: u64 = 0x5;
const PRIME_CAP_EXPORT: u64 = 2;

// `AMDGPU_GEM_*`.
const DOMAIN_GTT: u64 = 0x2;
const DOMAIN_VRAM: u64 = 0x4;
const CREATE_CPU_ACCESS_REQUIRED: u64 = 1 << 0;
const CREATE_NO_CPU_ACCESS: u64 = 1 << 1;
const CREATE_CPU_GTT_USWC: u64 = 1 << 2;
const CREATE_VRAM_CLEARED: u64 = 1 << 3;

/// What programs know the driver by, and the version of amdgpu's interface that has what is here.
const NAME: &[u8] = b"amdgpu";
const DATE: &[u8] = b"20150101";
const DESCRIPTION: &[u8] = b"peerdma software GPU";
const INTERFACE: [u32; 3] = [3, 0, 0];

/// A request's structure.
struct Body {
    bytes: [u8; LONGEST],
}

impl Body {
    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes[at..at + 4].try_into().unwrap_or_default())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes[at..at + 8].try_into().unwrap_or_default())
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn set_u64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Carries out an `ioctl(2)` request with the argument at an address of the program's.
///
/// # Safety
/// The program made the request: the structure is its own, and so is what that names for answers.
pub unsafe fn run(node: &Node, request: u32, argument: u64) -> Res<()> {
    if (request >> 8) & 0xff != BASE {
        return Err(Errno(libc::ENOTTY));
    }
    let len = ((request >> 16) & 0x3fff) as usize;
    let mut body = Body { bytes: [0; LONGEST] };
    let known = len.min(LONGEST);
    // SAFETY: the structure is there to be read and answered in.
    let structure = unsafe { Sink::vouched(argument, known as u64) };
    if let Some(bytes) = body.bytes.get_mut(..known) {
        structure.source().read(bytes).map_err(|_| FAULT)?;
    }
    dispatch(node, request & 0xff, &mut body)?;
    let answer = body.bytes.get(..known).unwrap_or_default();
    structure.write(answer).map_err(|_| FAULT)
}

fn dispatch(node: &Node, number: u32, body: &mut Body) -> Res<()> {
    match number {
        VERSION => version(body),
        GET_CAP => cap(body),
        GEM_CLOSE => node.gem().close(body.u32(0)).map_err(|_| INVALID),
        PRIME_HANDLE_TO_FD => export(node, body),
        // Buffers are not imported; the capability says so.
        PRIME_FD_TO_HANDLE => Err(Errno(libc::ENOSYS)),
        AMDGPU_GEM_CREATE => create(node, body),
        AMDGPU_GEM_MMAP => {
            let offset = node.gem().fake_offset(body.u32(0)).map_err(cpu_access)?;
            body.set_u64(0, offset);
            Ok(())
        }
        EXPORT_PART => export_part(body),
        // As the kernel: a render node has nothing to do with displays.
        MODE_CREATE_DUMB | MODE_MAP_DUMB | MODE_DESTROY_DUMB if node.renders() => {
            Err(Errno(libc::EACCES))
        }
        MODE_CREATE_DUMB => create_dumb(node, body),
        MODE_MAP_DUMB => {
            let offset = node.gem().fake_offset(body.u32(0)).map_err(cpu_access)?;
            body.set_u64(8, offset);
            Ok(())
        }
        MODE_DESTROY_DUMB => Ok(node.gem().close(body.u32(0))?),
        _ => Err(INVALID),
    }
}

/// amdgpu answers EPERM for a buffer made without CPU access.
fn cpu_access(error: gpu::Error) -> Errno {
    match error {
        gpu::Error::NotMappable => Errno(libc::EPERM),
        other => other.into(),
    }
}

/// `struct drm_version`: three numbers, then three texts by length and place; a text is cut to the
/// room given, and the length answered is its own.
fn version(body: &mut Body) -> Res<()> {
    for (at, number) in [0, 4, 8].into_iter().zip(INTERFACE) {
        body.set_u32(at, number);
    }
    for (at, text) in [16, 32, 48].into_iter().zip([NAME, DATE, DESCRIPTION]) {
        let (room, place) = (body.u64(at), body.u64(at + 8));
        let len = usize::try_from(room).map_or(text.len(), |room| room.min(text.len()));
        if place != 0 {
            // SAFETY: the program's request (`run`) names the place for this text.
            let place = unsafe { Sink::vouched(place, len as u64) };
            place.write(&text[..len]).map_err(|_| FAULT)?;
        }
        body.set_u64(at, text.len() as u64);
    }
    Ok(())
}

fn cap(body: &mut Body) -> Res<()> {
    let value = match body.u64(0) {
        CAP_DUMB_BUFFER => 1,
        CAP_PRIME => PRIME_CAP_EXPORT,
        _ => return Err(INVALID),
    };
    body.set_u64(8, value);
    Ok(())
}

/// `union drm_amdgpu_gem_create`: size, alignment, domains and flags in, a handle out. Buffers are
/// aligned to pages.
fn create(node: &Node, body: &mut Body) -> Res<()> {
    let (size, domains, flags) = (body.u64(0), body.u64(16), body.u64(24));
    let known = CREATE_CPU_ACCESS_REQUIRED
        | CREATE_NO_CPU_ACCESS
        | CREATE_CPU_GTT_USWC
        | CREATE_VRAM_CLEARED;
    if flags & !known != 0 || domains & !(DOMAIN_GTT | DOMAIN_VRAM) != 0 {
        return Err(INVALID);
    }
    let placement = match domains {
        0 => return Err(INVALID),
        DOMAIN_GTT => Placement::Host,
        _ => Placement::Vram,
    };
    let maps = flags & CREATE_NO_CPU_ACCESS == 0;
    forget_gone();
    let handle = node.gem().create(size, placement, maps)?;
    body.bytes = [0; LONGEST];
    body.set_u32(0, handle);
    Ok(())
}

/// `struct drm_mode_create_dumb`: height, width, bits per pixel, flags; out come handle, pitch and
/// size.
fn create_dumb(node: &Node, body: &mut Body) -> Res<()> {
    let (height, width, bits, flags) = (body.u32(0), body.u32(4), body.u32(8), body.u32(12));
    let pitch = u64::from(width) * u64::from(bits.div_ceil(8));
    let pitch = u32::try_from(pitch).ok().filter(|pitch| *pitch > 0 && height > 0 && flags == 0);
    let pitch = pitch.ok_or(INVALID)?;
    let mut gem = node.gem();
    let handle = gem.create(u64::from(pitch) * u64::from(height), Placement::Vram, true)?;
    body.set_u32(16, handle);
    body.set_u32(20, pitch);
    body.set_u64(24, gem.size(handle)?);
    Ok(())
}

/// `struct drm_prime_handle`: handle and flags in, a descriptor out.
fn export(node: &Node, body: &mut Body) -> Res<()> {
    let flags = body.u32(4) as i32;
    if flags & !(libc::O_CLOEXEC | libc::O_RDWR) != 0 {
        return Err(INVALID);
    }
    let fd = node.gem().export(body.u32(0), flags & libc::O_RDWR != 0)?.into_raw_fd();
    if flags & libc::O_CLOEXEC == 0 {
        // SAFETY: no pointer is passed.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    }
    body.set_u32(8, fd as u32);
    Ok(())
}

/// A descriptor of a dma-buf, a word that is 0, and where the part begins and its bytes in; a
/// descriptor of the part out, closed by exec(3). It is the caller's `Part` (`cuda/sys/node.rs`).
fn export_part(body: &mut Body) -> Res<()> {
    let (fd, flags, start, len) = (body.u32(0), body.u32(4), body.u64(8), body.u64(16));
    let end = start.checked_add(len).filter(|_| flags == 0).ok_or(INVALID)?;
    let fd = i32::try_from(fd).map_err(|_| Errno(libc::EBADF))?;
    // SAFETY: not -1. It is used in this call only, and refused where it is not open.
    let of = unsafe { BorrowedFd::borrow_raw(fd) };
    let part = dmabuf::export_part(of, start..end).map_err(|error| Errno(error.errno()))?;
    body.set_u32(0, part.into_raw_fd().cast_unsigned());
    Ok(())
}
