//! Asynchronous events: from the HCA's values to the program's objects and their contexts'
//! `async_fd`.

use crate::base::ffi::{INVALID, Res, arg, arg_mut, count, quiet};
use crate::base::fifo::{self};
use crate::base::object::object;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::srq::Srq;
use crate::objects::wq::Wq;
use crate::queues::qp::Qp;
use std::ffi::c_int;
use verbs_sys::{ibv_async_event, ibv_context};

/// `ibv_get_async_event(3)`: waits unless `async_fd` was made non-blocking. A cancellation point.
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    loop {
        let fd = count(|| {
            // SAFETY: the program passes an open context.
            let context = unsafe { Context::of_even_failed(context) }?;
            // Before the wait: an event may not lose its unit to a call that fails.
            if event.is_null() { Err(INVALID) } else { Ok(context.events().fd()) }
        });
        if fd < 0 || !fifo::wait(fd) {
            return -1;
        }
        // SAFETY: the program's arguments.
        let taken = count(|| unsafe { take_event(context, event) });
        if taken != NONE_LEFT {
            return taken;
        }
    }
}

/// The event was removed between waiting and taking.
const NONE_LEFT: c_int = 1;

/// # Safety
/// The context is null or open, the struct null or free to fill.
unsafe fn take_event(context: *mut ibv_context, event: *mut ibv_async_event) -> Res<c_int> {
    // SAFETY: the caller's promise.
    let (context, event) = unsafe { (Context::of_even_failed(context)?, arg_mut(event)?) };
    let taken = context.events().take(|entry| {
        if let Some(acks) = &entry.acks {
            acks.delivered();
        }
        entry
    });
    let Some(entry) = taken else { return Ok(NONE_LEFT) };
    event.element = entry.element;
    event.event_type = entry.event as u32;
    Ok(0)
}

/// `ibv_ack_async_event(3)`.
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    quiet((), || {
        // SAFETY: the program passes an event that `ibv_get_async_event` filled.
        let event = unsafe { arg(event) }?;
        let element = event.element as usize;
        match event.event_type {
            0 => {
                // SAFETY: destroying the CQ waits for this acknowledgement, so it is alive.
                unsafe { object::<Cq>(element as *mut _) }?.async_acks().acknowledge(1);
            }
            1..=7 | 16 => {
                // SAFETY: destroying the QP waits for this acknowledgement, so it is alive.
                unsafe { object::<Qp>(element as *mut _) }?.acks().acknowledge(1);
            }
            14 | 15 => {
                // SAFETY: destroying the SRQ waits for this acknowledgement, so it is alive.
                unsafe { object::<Srq>(element as *mut _) }?.acks().acknowledge(1);
            }
            19 => {
                // SAFETY: destroying the WQ waits for this acknowledgement, so it is alive.
                unsafe { object::<Wq>(element as *mut _) }?.acks().acknowledge(1);
            }
            _ => {}
        }
        Ok(())
    });
}
