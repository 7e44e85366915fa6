use super::*;
use crate::Config;
use dmabuf::{AttachRequest, Hold, LocalControls, POISON, Placement};
use mm::page_size;
use pcie::{Platform, Role};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};
use umem::{AccessError, AccessFlags, DmabufRange, Umem};

const KIB: u64 = 1024;

fn gpu(vram_bytes: u64, bar_bytes: u64) -> (SoftwareGpu, Arc<LocalControls>) {
    let controls = Arc::new(LocalControls::default());
    let address = Platform::default().named("gpu0").unwrap().address;
    let config = Config { name: "gpu0".into(), vram_bytes, bar_bytes, address };
    (SoftwareGpu::new(config, controls.clone()), controls)
}

fn register(fd: &OwnedFd, controls: &LocalControls, len: u64) -> Result<Arc<Umem>, umem::RegError> {
    register_held(fd, controls, len, Hold::Dynamic)
}

fn register_held(
    fd: &OwnedFd,
    controls: &LocalControls,
    len: u64,
    hold: Hold,
) -> Result<Arc<Umem>, umem::RegError> {
    let platform = Platform::default();
    let hca = platform.named("peerdma0").unwrap();
    let access = AccessFlags::LOCAL_WRITE;
    let range = DmabufRange { fd: fd.as_raw_fd(), offset: 0, len, iova: 0 };
    let request = AttachRequest { function: hca, platform: &platform };
    Umem::from_dmabuf(&range, controls, access, &request, hold)
}

#[test]
fn memory_is_finite_and_comes_back() {
    let (gpu, _) = gpu(64 * KIB, 64 * KIB);
    let one = gpu.alloc(1).unwrap();
    assert_eq!((one.len(), one.size(), gpu.free_bytes()), (1, page_size(), 64 * KIB - page_size()));
    let more = 64 * KIB + page_size();
    assert_eq!(
        gpu.alloc(more).err(),
        Some(Error::OutOfMemory { wanted: more, free: gpu.free_bytes() })
    );
    drop(one);
    let all = gpu.alloc(64 * KIB).unwrap();
    assert_eq!(gpu.free_bytes(), 0);
    drop(all);
    for bad in [0, u64::MAX, u64::MAX - 4095, 1 << 63] {
        assert_eq!(gpu.alloc(bad).err(), Some(Error::BadLength(bad)));
    }
    assert_eq!(gpu.free_bytes(), 64 * KIB);
}

#[test]
fn bounds_are_checked() {
    let (gpu, _) = gpu(64 * KIB, 64 * KIB);
    let (a, b) = (gpu.alloc(100).unwrap(), gpu.alloc(50).unwrap());
    let out = |r: Result<(), Error>| matches!(r, Err(Error::OutOfRange { .. }));
    assert!(out(a.read(100, &mut [0])) && out(a.write(99, &[0, 0])) && out(a.fill(u64::MAX, 1, 0)));
    assert!(out(a.copy_to(0, &b, 0, 51)) && out(b.copy_to(0, &a, 60, 50)));
    assert!(out(a.add(&b)) && out(a.hash(1, 100).map(drop)));
    a.write(100, &[]).unwrap();
}

#[test]
fn kernels_compute() {
    let (gpu, _) = gpu(1024 * KIB, 64 * KIB);
    let len = 200_003;
    let bytes: Vec<u8> = (0..len as u32).map(|i| (i * 31 + 7) as u8).collect();
    let (a, b) = (gpu.alloc(len).unwrap(), gpu.alloc(len).unwrap());
    let mut back = vec![1; len as usize];
    a.read(0, &mut back).unwrap();
    assert!(back.iter().all(|&x| x == 0), "fresh memory is zeroed");
    a.write(0, &bytes).unwrap();
    assert_eq!(a.hash(0, len).unwrap().0, *blake3::hash(&bytes).as_bytes());
    assert_eq!(a.hash(3, 7).unwrap().0, *blake3::hash(&bytes[3..10]).as_bytes());
    assert_eq!(a.hash(5, 0).unwrap().0, *blake3::hash(b"").as_bytes());
    a.copy_to(10, &b, 0, len - 10).unwrap();
    b.read(0, &mut back).unwrap();
    assert_eq!(back[..bytes.len() - 10], bytes[10..]);
    b.fill(2, len - 2, 0xFF).unwrap();
    a.fill(0, 8, 1).unwrap();
    a.add(&b).unwrap();
    a.read(0, &mut back).unwrap();
    let word = |b: &[u8]| u64::from_le_bytes(b[..8].try_into().unwrap());
    let first = [bytes[10], bytes[11], 255, 255, 255, 255, 255, 255];
    assert_eq!(word(&back), 0x0101_0101_0101_0101u64.wrapping_add(word(&first)));
    assert_eq!(word(&back[80_000..]), word(&bytes[80_000..]).wrapping_sub(1));
    let tail = u32::from_le_bytes([bytes[200_000], bytes[200_001], bytes[200_002], 0])
        .wrapping_sub(1)
        .to_le_bytes();
    assert_eq!(back[200_000..], tail[..3]);
}

#[test]
fn an_export_is_registered_and_written_by_the_hca() {
    let (gpu, controls) = gpu(1024 * KIB, 1024 * KIB);
    let buffer = gpu.alloc(10_000).unwrap();
    let fd = buffer.export().unwrap();
    assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size as u64, buffer.size());
    let umem = register(&fd, &controls, buffer.size()).unwrap();
    umem.enter().unwrap().write(9_990, b"from peer!").unwrap();
    let mut back = [0; 10];
    buffer.read(9_990, &mut back).unwrap();
    assert_eq!(&back, b"from peer!");
    // nobody can cut the memory under an importer
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&fd, 1 << 20), Err(Errno::PERM));
    // a second export is the same buffer
    let again = register(&buffer.export().unwrap(), &controls, 10).unwrap();
    buffer.revoke().unwrap();
    assert_eq!(again.enter().err(), Some(AccessError::Revoked));
    assert_eq!(umem.enter().err(), Some(AccessError::Revoked));
}

#[test]
fn a_descriptor_outlives_its_buffer() {
    let (gpu, controls) = gpu(64 * KIB, 64 * KIB);
    let buffer = gpu.alloc(100).unwrap();
    buffer.write(0, b"kept").unwrap();
    let fd = buffer.export().unwrap();
    drop(buffer);
    let umem = register(&fd, &controls, 100).unwrap();
    drop(fd);
    let mut back = [0; 4];
    umem.enter().unwrap().read(0, &mut back).unwrap();
    assert_eq!(&back, b"kept");
    assert_eq!(gpu.free_bytes(), 64 * KIB - page_size(), "the registration holds it");
    drop(umem);
    assert_eq!(gpu.free_bytes(), 64 * KIB);
}

/// Whoever copies to it from outside has it mapped a while longer than it is used: that is not to
/// be told from memory that is free.
#[test]
fn a_view_of_an_outsiders_holds_no_memory_of_the_gpu() {
    let (gpu, _) = gpu(64 * KIB, 64 * KIB);
    let buffer = gpu.alloc(64 * KIB).unwrap();
    drop(buffer.export().unwrap());
    let (pid, control) = (std::process::id(), buffer.control().as_fd().as_raw_fd());
    let outsider = dmabuf::Outsider::new(pid, control.cast_unsigned()).unwrap();
    let addr = buffer.storage().memory(Placement::Vram).unwrap().addr();
    let (view, _) = outsider.reach(pid, addr, 0).unwrap().at(addr).unwrap();
    view.memory(0, 4).unwrap().write(b"late").unwrap();
    drop(buffer);
    assert_eq!(gpu.free_bytes(), 64 * KIB);
    let again = gpu.alloc(64 * KIB).unwrap();
    view.memory(0, 4).unwrap().write(b"late").unwrap();
    let mut all_new = [0; 4];
    again.read(0, &mut all_new).unwrap();
    assert_eq!(all_new, [0; 4]);
}

#[test]
fn a_registration_fills_holes_in_the_memory() {
    let page = page_size();
    let (gpu, controls) = gpu(64 * KIB, 64 * KIB);
    let buffer = gpu.alloc(4 * page).unwrap();
    let fd = buffer.export().unwrap();
    let pages = || rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512 / page;
    let register = || register(&fd, &controls, 4 * page).unwrap();
    assert_eq!(pages(), 0);
    drop(register());
    assert_eq!(pages(), 4);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fd, hole, page, 2 * page).unwrap();
    assert_eq!(pages(), 2);
    drop(register());
    assert_eq!(pages(), 4);
}

#[test]
fn memory_beyond_the_bar_is_not_exported() {
    let (gpu, _) = gpu(64 * KIB, 16 * KIB);
    let inside = gpu.alloc(16 * KIB).unwrap();
    let outside = gpu.alloc(4 * KIB).unwrap();
    inside.export().unwrap();
    assert_eq!(
        outside.export().err(),
        Some(Error::OutsideBar { end: 20 * KIB, bar_bytes: 16 * KIB })
    );
    outside.write(0, b"but usable by the GPU").unwrap();
}

#[test]
fn a_full_memory_sends_the_oldest_away_while_it_is_used() {
    let page = page_size();
    let (gpu, controls) = gpu(2 * page, 2 * page);
    let (one, two) = (gpu.alloc(page).unwrap(), gpu.alloc(page).unwrap());
    one.write(0, b"one").unwrap();
    let umem = register(&one.export().unwrap(), &controls, page).unwrap();
    let three = gpu.alloc(page).unwrap();
    assert_eq!(
        [&one, &two, &three].map(Buffer::placement),
        [Placement::Host, Placement::Vram, Placement::Vram]
    );
    assert_eq!((one.vram_range(), three.vram_range()), (None, Some(0..page)));
    umem.enter().unwrap().write(3, b"!").unwrap();
    let mut bytes = [0; 4];
    one.read(0, &mut bytes).unwrap();
    assert_eq!((&bytes, umem.faults()), (b"one!", 1));
    // it comes back when asked, at the cost of another
    assert_eq!(one.move_to(Placement::Vram), Ok(true));
    assert_eq!(two.placement(), Placement::Host);
    // all that is in the way is pinned
    let pin = |buffer: &Buffer| {
        let fd = buffer.export().unwrap();
        register_held(&fd, &controls, page, Hold::Pinned)
    };
    let pins = [pin(&one).unwrap(), pin(&three).unwrap()];
    assert_eq!(two.move_to(Placement::Vram), Err(Error::OutOfMemory { wanted: page, free: 0 }));
    assert_eq!(one.move_to(Placement::Host).unwrap_err().errno(), 16, "EBUSY");
    drop(pins);
    assert_eq!(two.move_to(Placement::Vram), Ok(true));
    assert_eq!(two.move_to(Placement::Vram), Ok(false));
}

#[test]
fn what_a_move_leaves_is_poison() {
    let page = page_size();
    let (gpu, _) = gpu(4 * page, 4 * page);
    let buffer = gpu.alloc(2 * page).unwrap();
    buffer.fill(0, 2 * page, 7).unwrap();
    let fd = buffer.export().unwrap();
    buffer.move_to(Placement::Host).unwrap();
    let mut left = vec![0; 2 * page as usize];
    rustix::io::pread(&fd, &mut left, 0).unwrap();
    assert!(left.iter().all(|&byte| byte == POISON));
    assert_eq!(gpu.free_bytes(), 4 * page);
    buffer.move_to(Placement::Vram).unwrap();
    rustix::io::pread(&fd, &mut left, 0).unwrap();
    assert!(left.iter().all(|&byte| byte == 7));
}

#[test]
fn the_platform_describes_gpus() {
    let platform = Platform::default();
    let controls: Arc<LocalControls> = Arc::default();
    for function in platform.with_role(Role::Gpu) {
        let gpu = SoftwareGpu::of(function, controls.clone()).unwrap();
        assert_eq!(
            (gpu.config().vram_bytes, Provider::address(&gpu)),
            (4 << 30, Some(function.address))
        );
        let memory = Provider::alloc(&gpu, 5).unwrap();
        memory.write(0, b"12345").unwrap();
        assert_eq!(memory.len(), 5);
    }
    let hca = platform.named("peerdma0").unwrap();
    assert_eq!(SoftwareGpu::of(hca, controls).err(), Some(Error::NotAGpu(hca.address)));
}

/// A kernel dma-buf made from a software GPU's buffer: mapped, bracketed, registered. Needs
/// `/dev/udmabuf`.
#[test]
fn a_udmabuf_of_a_buffer_is_a_kernel_dma_buf() {
    let device = match std::fs::File::options().read(true).write(true).open("/dev/udmabuf") {
        Ok(device) => device,
        Err(error) => test_support::skip!("/dev/udmabuf: {error}"),
    };
    let (gpu, controls) = gpu(64 * KIB, 64 * KIB);
    let buffer = gpu.alloc(8192).unwrap();
    let memfd = buffer.export().unwrap();
    let fd = udmabuf(&device, &memfd, 8192);
    let umem = register(&fd, &controls, 8192).unwrap();
    umem.enter().unwrap().write(4096, b"kernel").unwrap();
    let mut back = [0; 6];
    buffer.read(4096, &mut back).unwrap();
    assert_eq!(&back, b"kernel");
}

/// `UDMABUF_CREATE` (`include/uapi/linux/udmabuf.h`).
#[allow(unsafe_code, reason = "an ioctl of a test")]
fn udmabuf(device: &std::fs::File, memfd: &OwnedFd, size: u64) -> OwnedFd {
    use std::os::fd::FromRawFd;
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    let create = Create { memfd: memfd.as_raw_fd() as u32, flags: 1, offset: 0, size };
    let request = 1u64 << 30 | 24 << 16 | (b'u' as u64) << 8 | 0x42;
    // SAFETY: the structure is the one the request names; the new descriptor is owned at once.
    unsafe {
        let fd = libc::ioctl(device.as_raw_fd(), request, &create);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}
