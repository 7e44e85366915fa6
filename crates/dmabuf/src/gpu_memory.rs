//! A software GPU's buffer on the importing side: a memfd with a name, and its control block.

use crate::control::{Control, ControlBlocks, NAME as CONTROL_NAME, Placement};
use crate::exporter::{
    AttachRequest, BufferLocation, Direction, Exporter, Extent, Mapped, Pinning,
};
use crate::storage::Storage;
use crate::storage::own_exports::OwnExport;
use crate::turnstile::{TurnstileState, Use};
use crate::{Error, fd};
use descriptors::Kept;
use engine_thread::lock;
use mm::Sink;
use rustix::fs::SealFlags;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// What the names of software GPUs' memfds begin with; 16 hexadecimal digits of the buffer's id
/// follow, and in those of [`exported_name`] where its control block is.
pub const MEMFD_PREFIX: &str = "peerdma-vram:";

/// Permission bits of software GPUs' memfds, which nobody else gives a file: by them a mapping of
/// one is recognised quickly.
pub const MEMFD_MODE: u32 = 0o1753;

/// Bytes of a page of the GPU's own memory, as NVIDIA's have.
pub const VRAM_PAGE: u64 = 64 << 10;

/// How long a pin waits for a move to end, and accesses have to come again. Copying takes a second
/// for some gigabytes.
pub(crate) const MOVE_LIMIT: Duration = Duration::from_secs(5);

/// The buffers that this process has imported: importers of one share its slot among the users.
static IMPORTED: Mutex<Option<HashMap<u64, Weak<Storage>>>> = Mutex::new(None);

/// The memfd name of the buffer `id`.
pub fn memfd_name(id: u64) -> String {
    format!("{MEMFD_PREFIX}{id:016x}")
}

/// The memfd name of an exporter's buffer: it says, too, by which descriptor of which process the
/// control block is found, which spares importers a question to the registry.
pub fn exported_name(control: &Control) -> String {
    let (name, pid) = (memfd_name(control.id()), std::process::id());
    format!("{name}:{pid}:{}", control.as_fd().as_raw_fd())
}

/// The id of a software GPU's buffer, if `fd` is one.
pub fn id_of(fd: BorrowedFd<'_>) -> Option<u64> {
    // only memfds have seals, so no file elsewhere can pass by its path
    rustix::fs::fcntl_get_seals(fd).ok()?;
    let name = fd::name(fd)?;
    let id = *words_of(&name)?.first()?;
    (id.len() == 16).then(|| u64::from_str_radix(id, 16).ok()).flatten()
}

/// What the name of a software GPU's memfd says: the buffer's id, and what [`exported_name`] adds.
fn words_of(name: &str) -> Option<Vec<&str>> {
    let rest = name.strip_prefix("/memfd:")?.strip_prefix(MEMFD_PREFIX)?;
    Some(rest.strip_suffix(" (deleted)").unwrap_or(rest).split(':').collect())
}

/// The control block where the name of the memfd says that it is: in a process that this one may
/// look into. Whatever else is there is not taken for it, and not even opened.
fn named_control(fd: BorrowedFd<'_>, id: u64, size: u64) -> Option<Control> {
    let name = fd::name(fd)?;
    let words = words_of(&name)?;
    let number = |index: usize| words.get(index)?.parse().ok();
    let control = fd::memfd_of_process(number(1)?, number(2)?, CONTROL_NAME).ok()?;
    Control::open(control, id, size).ok()
}

pub(crate) struct GpuMemory {
    storage: Arc<Storage>,
    /// What keeps the file open in the exporter's eyes, where this process is the exporter.
    _held: Option<Arc<Kept>>,
}

impl Storage {
    /// The buffer `id` behind a descriptor; its control block comes from `controls`. Importers of a
    /// process share one.
    ///
    /// # Errors
    /// [`Error::NotDmaBuf`] where `fd` or the control block is none of a software GPU's, or its
    /// exporter is gone; [`Error::Registry`], [`Error::TooManyUsers`], [`Error::Control`].
    pub fn import(
        fd: &impl AsFd,
        id: u64,
        controls: &dyn ControlBlocks,
    ) -> Result<Arc<Storage>, Error> {
        if let Some(storage) = known(id) {
            return Ok(storage);
        }
        // a file that can shrink is still safe (accesses are guarded), but is none of ours
        if !rustix::fs::fcntl_get_seals(fd).map_err(Error::NotMappable)?.contains(SealFlags::SHRINK)
        {
            return Err(Error::NotDmaBuf(
                "a memfd with a software GPU's name that is not sealed".into(),
            ));
        }
        let size = rustix::fs::fstat(fd).map_err(Error::NotMappable)?.st_size.max(0) as u64;
        let control = match named_control(fd.as_fd(), id, size) {
            Some(control) => control,
            None => published_control(controls, id, size)?,
        };
        let data = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(Error::Control)?;
        let storage = Arc::new(Storage::of(data, size, control)?);
        let mut imported = lock(&IMPORTED);
        let imported = imported.get_or_insert_default();
        imported.retain(|_, storage| storage.strong_count() > 0);
        imported.insert(id, Arc::downgrade(&storage));
        Ok(storage)
    }
}

/// The control block that the exporter has published.
fn published_control(controls: &dyn ControlBlocks, id: u64, size: u64) -> Result<Control, Error> {
    let control = controls.lookup(id).map_err(Error::Registry)?.ok_or_else(|| {
        Error::NotDmaBuf(format!(
            "software GPU buffer {id:016x} is unknown to the registry: its exporter is gone"
        ))
    })?;
    Control::open(control, id, size)
}

fn known(id: u64) -> Option<Arc<Storage>> {
    let imported = lock(&IMPORTED);
    imported.as_ref()?.get(&id)?.upgrade().filter(|storage| storage.is_own())
}

impl GpuMemory {
    pub(crate) fn open(
        fd: &impl AsFd,
        id: u64,
        controls: &dyn ControlBlocks,
    ) -> Result<GpuMemory, Error> {
        Ok(GpuMemory::of(Storage::import(fd, id, controls)?))
    }

    pub(crate) fn own(OwnExport { storage, held }: OwnExport) -> GpuMemory {
        GpuMemory { storage, _held: Some(held) }
    }

    pub(crate) fn of(storage: Arc<Storage>) -> GpuMemory {
        GpuMemory { storage, _held: None }
    }

    pub(crate) fn size(&self) -> u64 {
        self.storage.size()
    }

    fn route(
        &self,
        request: &AttachRequest<'_>,
        placement: Placement,
    ) -> Result<Arc<pcie::Route>, Error> {
        let target = match placement {
            Placement::Host => pcie::Target::HOST,
            Placement::Vram => pcie::Target::Function(self.storage.control().gpu()),
        };
        Ok(request.platform.route(request.function, target)?)
    }
}

/// A placement's index among the places.
fn index(placement: Placement) -> usize {
    match placement {
        Placement::Vram => 0,
        Placement::Host => 1,
    }
}

/// And back.
fn placement_of(place: usize) -> Placement {
    if place == 0 { Placement::Vram } else { Placement::Host }
}

fn place(state: TurnstileState) -> BufferLocation {
    BufferLocation { index: index(state.placement()), generation: state.generation() }
}

fn pin(revocable: bool) -> Use {
    if revocable { Use::RevocablePin } else { Use::Pin }
}

impl Pinning for GpuMemory {
    fn pin(&self, revocable: bool) -> Result<(), Error> {
        self.storage.enter_within(pin(revocable), MOVE_LIMIT).map(drop)
    }

    fn unpin(&self, revocable: bool) {
        self.storage.leave(pin(revocable));
    }
}

impl Exporter for GpuMemory {
    fn name(&self) -> &str {
        "peerdma-gpu"
    }

    fn attach(&self, request: &AttachRequest<'_>) -> Result<(), Error> {
        let state = self.storage.control().state();
        if state.is_revoked() {
            return Err(Error::Revoked);
        }
        self.route(request, state.placement()).map(drop)
    }

    fn place(&self) -> BufferLocation {
        place(self.storage.control().state())
    }

    fn map(&self, request: &AttachRequest<'_>, place: usize) -> Result<Mapped, Error> {
        let placement = placement_of(place);
        let route = self.route(request, placement)?;
        let memory = self.storage.memory(placement)?;
        // SAFETY: the mapping goes with the storage, which lives as long as this exporter;
        // importers keep that.
        let memory = unsafe { Sink::vouched(memory.addr(), memory.len()) };
        let block = match placement {
            Placement::Vram => VRAM_PAGE.max(mm::page_size()),
            Placement::Host => mm::page_size(),
        };
        Ok(Mapped { extents: vec![Extent { memory }], block, route })
    }

    fn bring_in(&self, mapped: &Mapped, place: usize, range: Range<u64>) {
        if let Some(known) = self.storage.brought_in.get(place) {
            let has_holes = || self.storage.has_holes(placement_of(place));
            known.ensure(range.clone(), has_holes, || mapped.bring_in(&range));
        }
    }

    fn unmap(&self, _mapped: &Mapped) {
        // the mapping is shared by all importers of this process and goes with the buffer
    }

    fn pinning(&self) -> Option<&dyn Pinning> {
        Some(self)
    }

    fn control(&self) -> Option<BorrowedFd<'_>> {
        Some(self.storage.control().as_fd())
    }

    #[inline]
    fn begin_cpu_access(&self, _direction: Direction) -> Result<BufferLocation, Error> {
        self.storage.enter(Use::Access).map(place)
    }

    #[inline]
    fn end_cpu_access(&self, _direction: Direction) {
        self.storage.leave(Use::Access);
    }

    fn settle_move(&self) -> Result<(), Error> {
        self.storage.settle()
    }
}
