//! Completion channels: where armed completion queues report.

use crate::base::ffi::{Errno, INVALID, Res, arg_mut, count, pointer, quiet, status};
use crate::base::fifo::{self, Fifo};
use crate::base::fork_state::PerLife;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use hca::{Place, Waited};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use verbs_sys::{ibv_comp_channel, ibv_context, ibv_cq};

/// A completion event: the address of the CQ it is about, a [`Cq`] that lives until the event is
/// taken or removed.
pub type CqEvents = Fifo<usize>;

/// A completion channel.
#[repr(C)]
pub struct Channel {
    c: UnsafeCell<ibv_comp_channel>,
    events: PerLife<Arc<CqEvents>>,
    /// Completion queues that report here.
    users: AtomicU32,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Channel {
    type C = ibv_comp_channel;
}

impl Channel {
    /// The context it belongs to.
    pub fn context(&self) -> *mut ibv_context {
        // SAFETY: the C struct is live; the program only reads it.
        unsafe { (*self.c.get()).context }
    }

    /// Its events; a forked child has its own.
    fn events(&self) -> Res<&Arc<CqEvents>> {
        self.events.get(|last| Ok(Arc::new(Fifo::instead_of(last.fd())?)))
    }

    /// A completion queue begins to report here.
    pub fn attach(&self) -> Res<Arc<Notifier>> {
        let events = self.events()?.clone();
        self.count_users(1);
        Ok(Arc::new(Notifier { events, cq: AtomicUsize::new(0) }))
    }

    /// A completion queue is gone: its events too. Nothing notifies of it any more: it has no
    /// users.
    pub fn detach(&self, cq: usize) {
        self.events.latest().remove(|&event| event == cq);
        self.count_users(-1);
    }

    fn count_users(&self, by: i32) {
        let now = self.users.fetch_add(by as u32, SeqCst).wrapping_add(by as u32);
        // SAFETY: the C struct is live; `refcnt` is for the program to look at only.
        unsafe { (*self.c.get()).refcnt = now as c_int };
    }
}

/// Puts the events of one CQ into its channel.
pub struct Notifier {
    events: Arc<CqEvents>,
    cq: AtomicUsize,
}

impl Notifier {
    /// Names the CQ, once its address is known.
    pub fn set(&self, cq: usize) {
        self.cq.store(cq, SeqCst);
    }
}

impl hca::CqNotify for Notifier {
    fn notify(&self) {
        let cq = self.cq.load(SeqCst);
        if cq != 0 {
            self.events.push(cq);
        }
    }
}

/// `ibv_create_comp_channel(3)`.
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) }?;
        let events = Arc::new(Fifo::new()?);
        let c = ibv_comp_channel { context: context.as_c(), fd: events.fd(), refcnt: 0 };
        let events = PerLife::new(events);
        Ok(give(Box::new(Channel { c: UnsafeCell::new(c), events, users: AtomicU32::new(0) })))
    })
}

/// `ibv_destroy_comp_channel(3)`: EBUSY while a CQ reports there.
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(c: *mut ibv_comp_channel) -> c_int {
    status(|| {
        // SAFETY: the program passes a live channel.
        let channel = unsafe { object::<Channel>(c) }?;
        // SAFETY: its context is open.
        unsafe { Context::of(channel.context()) }?;
        if channel.users.load(SeqCst) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Channel>(c) });
        Ok(())
    })
}

/// `ibv_get_cq_event(3)`: waits unless the channel's descriptor was made non-blocking. A
/// cancellation point.
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let mut may_stand_in = true;
    let mut vain = 0;
    loop {
        let mut next = Next::Taken;
        let begun = count(|| {
            // SAFETY: the program's arguments.
            next = unsafe { begin(channel, cq, cq_context, may_stand_in) }?;
            Ok(0)
        });
        let (read, has_unit) = match next {
            _ if begun < 0 => return -1,
            Next::Taken => return 0,
            Next::Turn => (true, false),
            Next::Bell(fd) => (fifo::wait(fd), false),
            Next::Event(fd) => (fifo::wait(fd), true),
        };
        let ended = count(|| {
            hca::stop_waiting_here();
            // SAFETY: as above.
            let channel = unsafe { object::<Channel>(channel) }?;
            // SAFETY: the channel's context is open.
            let context = unsafe { Context::of_even_failed(channel.context()) }?;
            let events = channel.events()?;
            let event = match has_unit {
                true => read.then(|| events.take(delivered)).flatten(),
                false => {
                    let mut came = Waited::InVain;
                    let turn = || came = context.device().waited();
                    let event = events.take_after(turn, delivered);
                    vain += 1;
                    may_stand_in = came == Waited::InVain && vain < MOST_IN_VAIN;
                    event
                }
            };
            // SAFETY: the program's places.
            unsafe { hand_over(event, cq, cq_context) }
        });
        match ended {
            0 => return 0,
            NONE_TAKEN if read => {}
            _ => return -1,
        }
    }
}

/// Rings that bring a waiting thread nothing, after which it leaves them to the progress thread:
/// another thread polls. So it does after a turn that brings it no event of its own: a signal that
/// comes in a turn does not end the wait, as one does that comes in the read.
const MOST_IN_VAIN: u32 = 4;

/// The event was removed between waiting and taking, or somebody rang.
const NONE_TAKEN: c_int = 1;

/// How `ibv_get_cq_event(3)` goes on.
#[derive(Clone, Copy)]
enum Next {
    /// It is done.
    Taken,
    /// A read of the channel's descriptor takes the unit of an event.
    Event(RawFd),
    /// A turn of the device's takes what came, after which the channel is looked at again.
    Turn,
    /// The same after a read of the device's bell.
    Bell(RawFd),
}

/// # Safety
/// The channel is null or live, its context open, the places null or free to fill.
unsafe fn begin(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
    may_stand_in: bool,
) -> Res<Next> {
    // SAFETY: the caller's promise.
    let channel = unsafe { object::<Channel>(channel) }?;
    // A forked child hears nothing of its parent's queues.
    let events = channel.events.present()?;
    // SAFETY: as above.
    let context = unsafe { Context::of_even_failed(channel.context()) }?;
    // Before the wait: an event may not lose its unit to a call that fails.
    if cq.is_null() || cq_context.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as above.
    let take = || unsafe { hand_over(events.take_at_once(delivered), cq, cq_context) };
    if take()? != NONE_TAKEN {
        return Ok(Next::Taken);
    }
    if !fifo::waits(events.fd()) {
        return Ok(Next::Event(events.fd()));
    }
    Ok(match context.device().wait_for_event(may_stand_in) {
        Place::Own => Next::Event(events.fd()),
        // From now on an event rings.
        Place::Bell(bell) if events.is_empty() => Next::Bell(bell.as_raw_fd()),
        Place::Bell(_) | Place::Turn => Next::Turn,
    })
}

/// Notes that the CQ of an event, still queued until now, has one to be acknowledged.
fn delivered(event: usize) -> Res<*mut ibv_cq> {
    // SAFETY: an event still queued names a live CQ: destroying one removes its events first.
    let cq: &Cq = unsafe { object::<Cq>(event as *mut ibv_cq) }?;
    cq.completion_acks().delivered();
    Ok(cq.as_c())
}

/// Tells the program of an event, if there was one.
///
/// # Safety
/// The places are null or free to fill.
unsafe fn hand_over(
    event: Option<Res<*mut ibv_cq>>,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Res<c_int> {
    let Some(event) = event.transpose()? else { return Ok(NONE_TAKEN) };
    // SAFETY: the caller's promise; the CQ is live until the program acknowledges this event.
    unsafe {
        *arg_mut(cq)? = event;
        *arg_mut(cq_context)? = (*event).cq_context;
    }
    Ok(0)
}

/// `ibv_ack_cq_events(3)`.
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    quiet((), || {
        // SAFETY: the program passes a live CQ.
        let cq = unsafe { object::<Cq>(cq) }.map_err(|_| INVALID)?;
        cq.completion_acks().acknowledge(events);
        Ok(())
    });
}
