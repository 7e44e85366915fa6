//! Contexts: an open device, the tables behind the header's inline functions, and what one context
//! may share with another by `ibv_import_device`.

use crate::base::ffi::{INVALID, Res, last_errno};
use crate::base::fifo::Fifo;
use crate::base::fork_state::PerLife;
use crate::engine::event_sink::Events;
use crate::engine::given::Memory;
use crate::engine::process::{self, Engine};
use crate::objects::facts::Facts;
use descriptors::Kept;
use engine_thread::lock;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::c_int;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use verbs_sys::*;

/// An object that a context owns, as the kernel would: whatever the program leaves behind ends with
/// the context.
#[allow(dead_code, reason = "some are only held, to end with their context")]
pub enum Owned {
    Pd(Arc<hca::Pd>),
    Mr(Arc<hca::Mr>, Arc<Mutex<Facts>>),
    Mw(Arc<hca::Mw>),
    Key(Arc<hca::IndirectKey>),
    Cq(Arc<hca::Cq>),
    Dm(Arc<Memory>),
    Srq(Arc<hca::Srq>),
    Xrcd(Arc<hca::Xrcd>),
    Qp(Arc<hca::Qp>),
    Wq(Arc<hca::Wq>),
    IndTable(Arc<hca::IndTable>),
    Flow(Arc<hca::Flow>),
}

/// What the kernel keeps behind a uverbs file: the objects, by handle. Contexts that import one
/// another share it.
pub struct Ucontext {
    /// Number of the device.
    device: usize,
    /// A unique inode, by which an import finds us.
    cmd_fd: Kept,
    next_handle: AtomicU32,
    /// A tree, whose nodes are small: one large piece of memory could be refused.
    objects: PerLife<Mutex<BTreeMap<u32, Owned>>>,
}

impl Ucontext {
    /// No objects yet, of the device of this number.
    pub fn new(device: usize) -> Res<Ucontext> {
        // SAFETY: the name is NUL-terminated.
        let fd = unsafe { libc::memfd_create(c"peerdma-context".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: `fd` was just created and belongs to nobody else.
        let cmd_fd = Kept::here(unsafe { OwnedFd::from_raw_fd(fd) });
        let objects = PerLife::new(Mutex::default());
        Ok(Ucontext { device, cmd_fd, next_handle: AtomicU32::new(1), objects })
    }

    /// The descriptor by whose inode an import finds it.
    pub fn cmd_fd(&self) -> c_int {
        self.cmd_fd.as_raw_fd()
    }

    /// The objects of this process by handle.
    pub fn objects(&self) -> MutexGuard<'_, BTreeMap<u32, Owned>> {
        let Ok(objects) = self.objects.get(|_| Ok::<_, Infallible>(Mutex::default()));
        lock(objects)
    }

    /// Files what a forked child has in the place of its parent's object.
    pub fn renew(&self, handle: u32, object: Owned) {
        self.objects().insert(handle, object);
    }

    /// Files an object under a new handle.
    pub fn own(&self, object: Owned) -> u32 {
        let handle = self.next_handle.fetch_add(1, Relaxed);
        self.objects().insert(handle, object);
        handle
    }

    /// Lets go of an object.
    pub fn disown(&self, handle: u32) {
        let object = self.objects().remove(&handle);
        // Its end may take locks of the device: not under ours.
        drop(object);
    }
}

impl Drop for Ucontext {
    fn drop(&mut self) {
        let mut objects = std::mem::take(&mut *self.objects());
        // Queue pairs first: they use all the others.
        for object in objects.values() {
            if let Owned::Qp(qp) = object {
                qp.close();
            }
        }
        objects.clear();
    }
}

/// What a context has of the engine.
struct Life {
    engine: Arc<Engine>,
    events: Arc<Events>,
}

impl Life {
    fn begin(device: usize, events: Events) -> Res<Life> {
        let engine = process::get(device)?;
        let events = Arc::new(events);
        engine.sink.add_context(events.clone());
        Ok(Life { engine, events })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.engine.sink.remove_context(&self.events);
    }
}

/// An open context.
#[repr(C)]
pub struct Context {
    c: UnsafeCell<verbs_context>,
    life: PerLife<Life>,
    ucontext: Arc<Ucontext>,
}

impl Context {
    /// A new context over objects; `tables` fills in its functions, given the device's number and
    /// the two descriptors.
    pub fn open(
        ucontext: Arc<Ucontext>,
        tables: fn(usize, c_int, c_int) -> verbs_context,
    ) -> Res<*mut ibv_context> {
        let life = Life::begin(ucontext.device, Fifo::new()?)?;
        let c = tables(ucontext.device, ucontext.cmd_fd.as_raw_fd(), life.events.fd());
        let life = PerLife::new(life);
        let context = Box::into_raw(Box::new(Context { c: UnsafeCell::new(c), life, ucontext }));
        // SAFETY: `context` is live and `context` lies inside its first field.
        Ok(unsafe { &raw mut (*(*context).c.get()).context })
    }

    /// The context behind the program's pointer. In a forked child it begins a life of its own,
    /// with an engine and asynchronous events of its own.
    ///
    /// # Safety
    /// `context` is null or an open context of ours.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> Res<&'a Context> {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::in_this_life(context) }?;
        context.device().alive()?;
        Ok(context)
    }

    /// The same, for events of the device: also where a bug of ours has ended it, which is its last
    /// event.
    ///
    /// # Safety
    /// As for [`Context::of`].
    pub unsafe fn of_even_failed<'a>(context: *mut ibv_context) -> Res<&'a Context> {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::in_this_life(context) }?;
        if !context.device().has_failed() {
            context.device().alive()?;
        }
        Ok(context)
    }

    /// The same, whether its device lives or not.
    ///
    /// # Safety
    /// As for [`Context::of`].
    unsafe fn in_this_life<'a>(context: *mut ibv_context) -> Res<&'a Context> {
        if context.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the caller's promise.
        let context = unsafe { &*Context::whole(context) };
        let renew =
            |last: &Life| Life::begin(context.ucontext.device, Fifo::instead_of(last.events.fd())?);
        context.life.get(renew)?;
        Ok(context)
    }

    /// What the program's pointer is the middle of.
    ///
    /// # Safety
    /// `context` is an open context of ours.
    pub unsafe fn whole(context: *mut ibv_context) -> *mut Context {
        // SAFETY: the program's pointer is to the member `context` of the `verbs_context` that
        // begins a `Context`.
        unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() }
    }

    /// The pointer that the program holds.
    pub fn as_c(&self) -> *mut ibv_context {
        // SAFETY: `c` is live; only the address of a member is taken.
        unsafe { &raw mut (*self.c.get()).context }
    }

    /// The device that the context is open on, after a fork the child's own.
    pub fn device(&self) -> &Arc<hca::Device> {
        &self.life.latest().engine.device
    }

    /// The process's engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.life.latest().engine
    }

    /// Whether the context's engine runs in this process, or failed here.
    pub fn ends_here(&self) -> bool {
        let ends = |device: &hca::Device| device.alive().is_ok() || device.has_failed();
        self.life.present().is_ok_and(|life| ends(&life.engine.device))
    }

    /// What the kernel would hold of it: its objects by handle, for importers too.
    pub fn ucontext(&self) -> &Arc<Ucontext> {
        &self.ucontext
    }

    pub fn events(&self) -> &Arc<Events> {
        &self.life.latest().events
    }
}

/// Device and inode number of an open descriptor.
pub fn inode(fd: c_int) -> Res<(u64, u64)> {
    if fd < 0 {
        return Err(INVALID);
    }
    // SAFETY: a descriptor that is not open makes the call below fail; nothing is closed through
    // the borrow.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(borrowed).map_err(|_| INVALID)?;
    Ok((stat.st_dev, stat.st_ino))
}
