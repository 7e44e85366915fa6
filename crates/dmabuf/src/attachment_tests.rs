use super::*;
use crate::{
    Control, Extent, LocalControls, Pinning, Placement, Storage, exported_name, memfd_name,
};
use pcie::Platform;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

fn memfd(name: &str, size: u64, seals: SealFlags) -> OwnedFd {
    let fd =
        rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// A buffer of `gpu` as an exporter makes it.
fn exported(controls: &LocalControls, gpu: &str, id: u64) -> (OwnedFd, Storage) {
    let address = Platform::default().named(gpu).unwrap().address;
    let data = memfd(&memfd_name(id), 8192, SealFlags::SHRINK | SealFlags::GROW);
    let own = data.try_clone().unwrap();
    let storage = Storage::create(own, 8192, id, address, Placement::Vram).unwrap();
    controls.publish(id, storage.control().as_fd()).unwrap();
    (data, storage)
}

fn attach(platform: &Platform, dmabuf: &Arc<DmaBuf>) -> Result<Attachment, Error> {
    let function = platform.named("peerdma0").unwrap();
    dmabuf.attach(&AttachRequest { function, platform }, Hold::PinnedRevocable)
}

#[test]
fn only_dma_bufs_are_taken() {
    let controls = LocalControls::default();
    let errno = |fd: RawFd| DmaBuf::get(fd, &controls).unwrap_err().errno();
    assert_eq!(errno(-1), libc::EBADF);
    assert_eq!(errno(i32::MAX), libc::EBADF);
    let (pipe, _w) = std::io::pipe().unwrap();
    assert_eq!(errno(pipe.as_raw_fd()), libc::EINVAL);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let error = DmaBuf::get(file.as_raw_fd(), &controls).unwrap_err();
    assert!(error.to_string().contains('/'), "names the file: {error}");
    let plain = memfd("something", 4096, SealFlags::empty());
    assert_eq!(errno(plain.as_raw_fd()), libc::EINVAL);
    // the name alone is not enough
    let unknown = memfd(&memfd_name(77), 4096, SealFlags::SHRINK);
    assert!(
        DmaBuf::get(unknown.as_raw_fd(), &controls)
            .unwrap_err()
            .to_string()
            .contains("exporter is gone")
    );
    let (_sealed, control) = exported(&controls, "gpu0", 78);
    let loose = memfd(&memfd_name(78), 4096, SealFlags::empty());
    assert!(
        DmaBuf::get(loose.as_raw_fd(), &controls).unwrap_err().to_string().contains("not sealed")
    );
    drop(control);
}

#[test]
fn a_control_block_is_found_by_its_descriptor() {
    let controls = LocalControls::default();
    let gpu = Platform::default().named("gpu0").unwrap().address;
    let named = |name: &str| memfd(name, 8192, SealFlags::SHRINK | SealFlags::GROW);
    let block = |id| Control::create(id, gpu, Placement::Vram, 8192).unwrap();
    let get = |name: &str| DmaBuf::get(named(name).as_raw_fd(), &controls).map(|buf| buf.size());
    // No registry knows it.
    let control = block(79);
    let name = exported_name(&control);
    assert_eq!(get(&name).unwrap(), 8192);
    // What is no control block, or another's, is not taken for it.
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let (pid, fd) = (std::process::id(), control.as_fd().as_raw_fd());
    for words in [
        format!("{pid}:{}", file.as_raw_fd()),
        format!("{pid}:{fd}"),
        format!("{pid}:1048575"),
        format!("{pid}:-1"),
        format!("0:{fd}"),
        pid.to_string(),
        "::".to_owned(),
    ] {
        let name = format!("{}:{words}", memfd_name(80));
        let error = get(&name).unwrap_err().to_string();
        assert!(error.contains("exporter is gone"), "{name}: {error}");
    }
    // Then the registry says where it is.
    let control = block(83);
    controls.publish(83, control.as_fd()).unwrap();
    assert_eq!(get(&memfd_name(83)).unwrap(), 8192);
}

#[test]
fn gpu_memory_is_mapped_with_its_route() {
    mm::guard::install();
    let (controls, platform) = (LocalControls::default(), Platform::default());
    for (gpu, id, map_type) in
        [("gpu0", 1, pcie::MapType::BusAddr), ("gpu1", 2, pcie::MapType::ThruHostBridge)]
    {
        let (fd, _control) = exported(&controls, gpu, id);
        let dmabuf = DmaBuf::get(fd.as_raw_fd(), &controls).unwrap();
        assert_eq!(
            (dmabuf.size(), dmabuf.exporter_name(), dmabuf.is_dynamic()),
            (8192, "peerdma-gpu", true)
        );
        rustix::io::pwrite(&fd, b"hello", 4096).unwrap();
        drop(fd);
        let attachment = attach(&platform, &dmabuf).unwrap();
        let mapped = attachment.mapped_at(attachment.enter().unwrap()).unwrap();
        assert_eq!(mapped.route.map_type(), map_type);
        let [Extent { memory }] = mapped.extents[..] else { panic!("{:?}", mapped.extents) };
        assert_eq!(memory.len(), 8192);
        let mut bytes = [0; 5];
        memory.part(4096, 5).unwrap().source().read(&mut bytes).unwrap();
        attachment.leave();
        assert_eq!(&bytes, b"hello");
    }
}

#[test]
fn unreachable_memory_is_ebusy_at_attach() {
    let controls = LocalControls::default();
    let (fd, _control) = exported(&controls, "gpu1", 3);
    let dmabuf = DmaBuf::get(fd.as_raw_fd(), &controls).unwrap();
    let text =
        include_str!("../../pcie/src/platforms/default.toml").replace("8086:09a2", "8086:2f00");
    let error = attach(&Platform::from_toml(&text).unwrap(), &dmabuf).unwrap_err();
    assert_eq!(error.errno(), libc::EBUSY);
    assert!(error.to_string().contains("routes only within itself"), "{error}");
}

#[test]
fn a_revoked_buffer_is_neither_entered_nor_attached() {
    let (controls, platform) = (LocalControls::default(), Platform::default());
    let (fd, control) = exported(&controls, "gpu0", 4);
    let dmabuf = DmaBuf::get(fd.as_raw_fd(), &controls).unwrap();
    let attachment = attach(&platform, &dmabuf).unwrap();
    attachment.enter().unwrap();
    attachment.leave();
    control.revoke(Duration::ZERO).unwrap();
    assert_eq!(attachment.enter(), Err(Error::Revoked));
    assert_eq!(attach(&platform, &dmabuf).unwrap_err().errno(), libc::ENODEV);
}

#[test]
fn a_buffer_that_cannot_be_mapped_gives_mmaps_errno() {
    let (controls, platform) = (LocalControls::default(), Platform::default());
    let (fd, _control) = exported(&controls, "gpu0", 5);
    let read_only = rustix::fs::open(path_of(&fd), OFlags::RDONLY, Mode::empty()).unwrap();
    let dmabuf = DmaBuf::get(read_only.as_raw_fd(), &controls).unwrap();
    assert_eq!(attach(&platform, &dmabuf).unwrap_err().errno(), libc::EACCES);
}

#[test]
fn who_imports_its_own_export_shares_it_with_the_exporter() {
    let (nobody, platform) = (LocalControls::default(), Platform::default());
    let (fd, storage) = exported(&LocalControls::default(), "gpu0", 6);
    let storage = Arc::new(storage);
    let get = |fd: &OwnedFd| DmaBuf::get(fd.as_raw_fd(), &nobody);
    let gone = |got: Result<Arc<DmaBuf>, Error>| {
        assert!(got.unwrap_err().to_string().contains("exporter is gone"));
    };
    gone(get(&fd));
    storage.share();
    let attachments = [(); 2].map(|()| attach(&platform, &get(&fd).unwrap()).unwrap());
    let exporters = storage.memory(Placement::Vram).unwrap().addr();
    for attachment in &attachments {
        let mapped = attachment.mapped_at(0).unwrap();
        assert_eq!(mapped.extents[0].memory.addr(), exporters, "the exporter's own mapping");
    }
    assert_eq!(storage.users(), [], "no slot beside the exporter's");
    let moved = storage.move_to(Placement::Host, None, Duration::ZERO);
    assert!(matches!(moved, Err(Error::Pinned(_))), "{moved:?}");
    drop(attachments);
    assert_eq!(storage.move_to(Placement::Host, None, Duration::ZERO), Ok(true));
    // one that can only be read is not the exporter's, which can be written
    gone(get(&rustix::fs::open(path_of(&fd), OFlags::RDONLY, Mode::empty()).unwrap()));
    storage.unshare();
    gone(get(&fd));
}

fn path_of(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Counts the calls that an importer causes.
#[derive(Default)]
struct Counting {
    pins: AtomicU32,
    unpins: AtomicU32,
    detached: AtomicU32,
    fail_map: bool,
}

struct Handle(Arc<Counting>);

impl Pinning for Counting {
    fn pin(&self, _revocable: bool) -> Result<(), Error> {
        self.pins.fetch_add(1, SeqCst);
        Ok(())
    }
    fn unpin(&self, _revocable: bool) {
        self.unpins.fetch_add(1, SeqCst);
    }
}

impl Exporter for Handle {
    fn name(&self) -> &str {
        "counting"
    }
    fn detach(&self) {
        self.0.detached.fetch_add(1, SeqCst);
    }
    fn map(&self, request: &AttachRequest<'_>, _place: usize) -> Result<Mapped, Error> {
        if self.0.fail_map {
            return Err(Error::Revoked);
        }
        let route = request.platform.route(request.function, pcie::Target::HOST)?;
        Ok(Mapped { extents: Vec::new(), block: mm::page_size(), route })
    }
    fn unmap(&self, _: &Mapped) {}
    fn pinning(&self) -> Option<&dyn Pinning> {
        Some(&*self.0)
    }
}

#[test]
fn static_importers_pin_and_dynamic_ones_are_told() {
    let platform = Platform::default();
    let counting = Arc::new(Counting::default());
    let counts = || [&counting.pins, &counting.unpins, &counting.detached].map(|c| c.load(SeqCst));
    let dmabuf = DmaBuf::new(0, Box::new(Handle(counting.clone())));
    let fixed = attach(&platform, &dmabuf).unwrap();
    assert_eq!(counts(), [1, 0, 0]);
    fixed.detach();
    assert_eq!(counts(), [1, 1, 1]);
    drop(fixed);
    assert_eq!(counts(), [1, 1, 1]);

    let request =
        AttachRequest { function: platform.named("peerdma0").unwrap(), platform: &platform };
    let moving = dmabuf.attach(&request, Hold::Dynamic).unwrap();
    assert_eq!(counts(), [1, 1, 1], "a dynamic importer does not pin");
    moving.enter().unwrap();
    moving.leave();
    dmabuf.invalidate_mappings();
    assert_eq!(moving.enter(), Err(Error::NotMapped));
    assert_eq!((moving.fault(|| ()), moving.faults()), (Ok(Some(0)), 1));
    moving.enter().unwrap();
    moving.leave();
    drop(moving);
    dmabuf.invalidate_mappings();
    assert_eq!(counts(), [1, 1, 2]);

    let failing = Arc::new(Counting { fail_map: true, ..Counting::default() });
    let dmabuf = DmaBuf::new(0, Box::new(Handle(failing.clone())));
    assert!(attach(&platform, &dmabuf).is_err());
    assert_eq!(
        [&failing.pins, &failing.unpins, &failing.detached].map(|c| c.load(SeqCst)),
        [1, 1, 1]
    );
}
