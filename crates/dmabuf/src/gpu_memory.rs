//! A software GPU's buffer on the importing side: a memfd with a name, and its control block.

use crate::control::{Control, ControlBlocks, Placement};
use crate::exporter::{AttachRequest, Direction, Exporter, Extent, Mapped};
use crate::{Error, fd};
use descriptors::Kept;
use mm::Mapping;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// What the names of software GPUs' memfds begin with; 16 hexadecimal digits of the buffer's id follow.
pub const MEMFD_PREFIX: &str = "peerdma-vram:";

/// The memfd name of the buffer `id`.
pub fn memfd_name(id: u64) -> String {
    format!("{MEMFD_PREFIX}{id:016x}")
}

/// The id of a software GPU's buffer, if `fd` is one.
pub(crate) fn id_of(fd: BorrowedFd<'_>) -> Option<u64> {
    // only memfds have seals, so no file elsewhere can pass by its path
    rustix::fs::fcntl_get_seals(fd).ok()?;
    let name = fd::name(fd)?;
    let rest = name.strip_prefix("/memfd:")?.strip_prefix(MEMFD_PREFIX)?;
    let id = rest.strip_suffix(" (deleted)").unwrap_or(rest);
    (id.len() == 16).then(|| u64::from_str_radix(id, 16).ok()).flatten()
}

pub(crate) struct GpuMemory {
    fd: Arc<Kept>,
    size: u64,
    control: Control,
    mapping: std::sync::OnceLock<Mapping>,
}

impl GpuMemory {
    pub(crate) fn open(
        fd: Arc<Kept>,
        id: u64,
        controls: &dyn ControlBlocks,
    ) -> Result<GpuMemory, Error> {
        let control = controls.lookup(id).map_err(Error::Registry)?.ok_or_else(|| {
            Error::NotDmaBuf(format!(
                "software GPU buffer {id:016x} is unknown to the registry: its exporter is gone"
            ))
        })?;
        let control = Control::open(control, id)?;
        // a file that can shrink is still safe (accesses are guarded), but is none of ours
        if !rustix::fs::fcntl_get_seals(&*fd)
            .map_err(Error::NotMappable)?
            .contains(SealFlags::SHRINK)
        {
            return Err(Error::NotDmaBuf(
                "a memfd with a software GPU's name that is not sealed".into(),
            ));
        }
        let size = rustix::fs::fstat(&*fd).map_err(Error::NotMappable)?.st_size.max(0) as u64;
        Ok(GpuMemory { fd, size, control, mapping: std::sync::OnceLock::new() })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn route(&self, request: &AttachRequest<'_>) -> Result<Arc<pcie::Route>, Error> {
        if self.control.revoked() {
            return Err(Error::Revoked);
        }
        let target = match self.control.placement() {
            Some(Placement::Host) => pcie::Target::HOST,
            _ => pcie::Target::Function(self.control.gpu()),
        };
        Ok(request.platform.route(request.function, target)?)
    }
}

/// Maps a whole buffer once; importers of this process share the mapping.
pub(crate) fn map_once<'a>(
    slot: &'a std::sync::OnceLock<Mapping>,
    fd: &Kept,
    size: u64,
) -> Result<&'a Mapping, Error> {
    if let Some(mapping) = slot.get() {
        return Ok(mapping);
    }
    let errno =
        |e: std::io::Error| Error::NotMappable(Errno::from_io_error(&e).unwrap_or(Errno::NODEV));
    let mapping = Mapping::shared(fd.as_fd(), size).map_err(errno)?;
    Ok(slot.get_or_init(|| mapping))
}

impl Exporter for GpuMemory {
    fn name(&self) -> &str {
        "peerdma-gpu"
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<(), Error> {
        self.route(request).map(drop)
    }

    fn map(&self, request: &AttachRequest<'_>) -> Result<Mapped, Error> {
        let route = self.route(request)?;
        let mapping = map_once(&self.mapping, &self.fd, self.size)?;
        Ok(Mapped { extents: vec![Extent { addr: mapping.addr(), len: self.size }], route })
    }

    fn unmap(&self, _mapped: &Mapped) {
        // the mapping is shared by all importers of this process and goes with the buffer
    }

    #[inline]
    fn begin_cpu_access(&self, _direction: Direction) -> Result<(), Error> {
        if self.control.revoked() { Err(Error::Revoked) } else { Ok(()) }
    }
}
