//! Memory of a software GPU. The kernels over it are in the same type (`kernels.rs`, `hash.rs`).

use crate::Error;
use crate::card::{Card, Reservation, system};
use crate::lease;
use dmabuf::{Control, MEMFD_MODE, Placement, Storage, Use, exported_name};
use engine_thread::lock;
use mm::{Sink, page_size};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::rand::{GetRandomFlags, getrandom};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// How long a move or a revoke waits for others.
const LIMIT: Duration = Duration::from_secs(1);
/// How long an allocation that needs room waits for the users of a buffer that is in the way.
const EVICT_LIMIT: Duration = Duration::from_millis(100);
/// How long the GPU waits for a move to end, which is made of copying.
const ENTER_LIMIT: Duration = Duration::from_secs(5);

/// What a buffer consists of; a handle and the card's list of abandoned ones share it.
pub(crate) struct Body {
    storage: Arc<Storage>,
    published: OnceLock<()>,
    /// Its place in the GPU's memory, also while another process keeps the bytes in host memory.
    home: Mutex<Option<Reservation>>,
    card: Arc<Card>,
}

impl Body {
    /// Whether another process, or the program, holds a descriptor or a mapping. Where the kernel
    /// does not tell, yes.
    pub(crate) fn is_open_elsewhere(&self) -> bool {
        self.published.get().is_some() && !lease::is_sole_opener(self.storage.data().as_fd())
    }

    fn home(&self) -> MutexGuard<'_, Option<Reservation>> {
        lock(&self.home)
    }

    fn placement(&self) -> Placement {
        self.storage.control().state().placement()
    }

    /// Gives its place in the GPU's memory to others: the bytes go to host memory. Answers whether
    /// it had one.
    pub(crate) fn evict(&self) -> bool {
        // one that is busy with its own moves is left alone
        let Ok(mut home) = self.home.try_lock() else { return false };
        if home.is_none() {
            return false;
        }
        let moved = self.storage.move_to(Placement::Host, Some(false), EVICT_LIMIT);
        moved.is_ok() && home.take().is_some()
    }

    fn move_to(self: &Arc<Self>, to: Placement) -> Result<bool, Error> {
        if to == Placement::Host {
            let mut home = self.home();
            let moved = self.storage.move_to(to, Some(false), LIMIT)?;
            *home = None;
            return Ok(moved);
        }
        if self.home().is_none() {
            // without the lock: making room moves others, and might look at this one
            let place = self.card.reserve(self.storage.size())?;
            self.check_bar(&place)?;
            self.home().get_or_insert(place);
        }
        let mut home = self.home();
        let moved = self.storage.move_to(to, Some(home.is_some()), LIMIT);
        if moved.is_err()
            && self.placement() == Placement::Host
            && !self.storage.control().has_home()
        {
            *home = None;
        }
        Ok(moved?)
    }

    /// Peers reach what is behind the BAR only.
    fn check_bar(&self, place: &Reservation) -> Result<(), Error> {
        let (end, bar_bytes) = (place.range.end, self.card.config.bar_bytes);
        if self.published.get().is_some() && end > bar_bytes {
            return Err(Error::OutsideBar { end, bar_bytes });
        }
        Ok(())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.published.get().is_some() {
            self.storage.unshare();
            self.card.controls.withdraw(self.storage.control().id());
        }
    }
}

/// Memory of a software GPU.
pub struct Buffer {
    len: u64,
    body: Arc<Body>,
}

impl Buffer {
    pub(crate) fn new(card: &Arc<Card>, len: u64, placement: Placement) -> Result<Buffer, Error> {
        let size =
            len.checked_next_multiple_of(page_size()).filter(|&s| s > 0 && s <= i64::MAX as u64);
        let size = size.ok_or(Error::BadLength(len))?;
        // from here on the reservation goes back when it is dropped
        let place = match placement {
            Placement::Vram => Some(card.reserve(size)?),
            Placement::Host => None,
        };
        let control = Control::create(random_id()?, card.config.address, placement, size);
        let control = control.map_err(dmabuf::Error::Control)?;
        let (name, flags) =
            (exported_name(&control), MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let fd = rustix::fs::memfd_create(name, flags).map_err(system("memfd_create"))?;
        engine_thread::growing_files(|| rustix::fs::ftruncate(&fd, size))
            .map_err(system("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("sealing a memfd"))?;
        let mode = Mode::from_raw_mode(MEMFD_MODE);
        rustix::fs::fchmod(&fd, mode).map_err(system("marking a memfd"))?;
        // Opened anew: only so does the kernel count who has it open.
        let fd = reopen(&fd, true)?;
        let storage = Arc::new(Storage::of(fd, size, control)?);
        // mapped now, so that no later access fails for want of that
        storage.memory(Placement::Vram)?;
        let (published, home) = (OnceLock::new(), Mutex::new(place));
        let body = Arc::new(Body { storage, published, home, card: card.clone() });
        card.adopt(&body);
        Ok(Buffer { len, body })
    }

    /// Length in bytes as asked for.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is 0; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length in bytes of the exported descriptor: whole pages.
    pub fn size(&self) -> u64 {
        self.body.storage.size()
    }

    /// Its place in the GPU's memory; `None` for one in host memory.
    pub fn vram_range(&self) -> Option<Range<u64>> {
        self.body.home().as_ref().map(|place| place.range.clone())
    }

    /// Where the bytes are now.
    pub fn placement(&self) -> Placement {
        self.body.placement()
    }

    /// Moves the bytes, also while others use them: their next access finds them at the new place.
    /// What they leave is overwritten with [`dmabuf::POISON`]. Answers whether they moved: not if
    /// they were there.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] and [`Error::OutsideBar`] for a move into the GPU's memory.
    /// [`Error::DmaBuf`]: the buffer is pinned or revoked, or somebody was inside an access for a
    /// whole second.
    pub fn move_to(&self, to: Placement) -> Result<bool, Error> {
        self.body.move_to(to)
    }

    /// The control block that importers share.
    pub fn control(&self) -> &Control {
        self.body.storage.control()
    }

    /// Exports the buffer as a dma-buf descriptor, which other processes may get too. The first
    /// export makes the control block known.
    ///
    /// # Errors
    /// [`Error::OutsideBar`] if peers could not reach all of it; [`Error::System`].
    pub fn export(&self) -> Result<OwnedFd, Error> {
        self.export_for(true)
    }

    /// As [`Buffer::export`]; unless `writes`, the descriptor is one that can only be read.
    pub fn export_for(&self, writes: bool) -> Result<OwnedFd, Error> {
        let body = &self.body;
        let bar_bytes = body.card.config.bar_bytes;
        if let Some(Range { end, .. }) = self.vram_range()
            && end > bar_bytes
        {
            return Err(Error::OutsideBar { end, bar_bytes });
        }
        let control = self.control();
        if body.published.get().is_none() {
            body.card
                .controls
                .publish(control.id(), control.as_fd())
                .map_err(system("publishing a control block"))?;
            body.storage.share();
            body.published.get_or_init(|| ());
        }
        reopen(body.storage.data(), writes)
    }

    /// The bytes, for the program to map.
    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.body.storage
    }

    /// Copies from the GPU's memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Fault`]; [`Error::DmaBuf`] while somebody moves the buffer
    /// and does not end.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), Error> {
        let bytes = self.bytes(offset, dst.len() as u64)?;
        Ok(bytes.memory.source().read(dst)?)
    }

    /// Copies to the GPU's memory. Errors as for [`Buffer::read`].
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), Error> {
        let bytes = self.bytes(offset, src.len() as u64)?;
        Ok(bytes.memory.write(src)?)
    }

    /// Takes the buffer back from all importers for good: from the return on none of them touches
    /// it. The GPU uses it on.
    ///
    /// # Errors
    /// [`Error::DmaBuf`]: pinned by somebody who does not take part in that, then it is not
    /// revoked; or somebody was inside an access for a whole second and may still finish it, then
    /// no other begins one.
    pub fn revoke(&self) -> Result<(), Error> {
        Ok(self.body.storage.revoke(LIMIT)?)
    }

    /// A checked range, which stays where it is for the life of the answer.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> Result<Bytes<'_>, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfRange { offset, len, size: self.len });
        }
        let storage: &Storage = &self.body.storage;
        let (placement, inside) = match storage.enter_within(Use::Access, ENTER_LIMIT) {
            Ok(state) => (state.placement(), Some(storage)),
            // a revoked buffer moves no more, and remains the GPU's
            Err(dmabuf::Error::Revoked) => (self.placement(), None),
            Err(error) => return Err(error.into()),
        };
        // left again whatever comes
        let mut bytes = Bytes { memory: Sink::default(), inside };
        bytes.memory = storage.memory(placement)?.part(offset, len)?;
        Ok(bytes)
    }
}

/// A range of a buffer in use by the GPU.
pub(crate) struct Bytes<'a> {
    pub(crate) memory: Sink<'a>,
    inside: Option<&'a Storage>,
}

impl Drop for Bytes<'_> {
    fn drop(&mut self) {
        self.inside.inspect(|storage| storage.leave(Use::Access));
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.body.card.abandon(self.body.clone());
    }
}

/// The file behind a descriptor, opened once more.
fn reopen(fd: &impl AsRawFd, writes: bool) -> Result<OwnedFd, Error> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = if writes { OFlags::RDWR } else { OFlags::RDONLY } | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(system("opening a buffer's file"))
}

fn random_id() -> Result<u64, Error> {
    let mut id = [0; 8];
    getrandom(&mut id, GetRandomFlags::empty()).map_err(system("getrandom"))?;
    Ok(u64::from_le_bytes(id))
}
