//! Completion queues and the classic way to poll them.

use crate::base::acks::Acks;
use crate::base::baton::Baton;
use crate::base::ffi::{Errno, INVALID, Res, pointer, quick_count, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::allocator::{Allocation, Resource};
use crate::objects::channel::Channel;
use crate::objects::context::{Context, Owned};
use crate::objects::pd::Pd;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};
use verbs_sys::*;

/// A completion queue. Always in the extended form.
#[repr(C)]
pub struct Cq {
    c: UnsafeCell<ibv_cq_ex>,
    hca: Arc<hca::Cq>,
    made: Made,
    async_acks: Arc<Acks>,
    completion_acks: Acks,
    /// Held from `start_poll` to `end_poll`, unless the program promised to use one thread.
    pub(crate) polling: Option<Baton>,
    /// The completion that the `read_*` functions look at; written only by the holder of `polling`.
    pub(crate) current: Cell<Option<hca::Completion>>,
    /// The parent domain it was made with.
    domain: *const Pd,
    /// Its ring, if the program's allocator provides it.
    memory: Mutex<Option<Allocation>>,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Cq {
    type C = ibv_cq;
}

impl Cq {
    /// The pointer the program holds.
    pub fn as_c(&self) -> *mut ibv_cq {
        self.c.get().cast()
    }

    /// The same pointer in its extended form.
    pub fn as_c_ex(&self) -> *mut ibv_cq_ex {
        self.c.get()
    }

    /// The HCA's queue.
    pub fn hca(&self) -> &Arc<hca::Cq> {
        &self.hca
    }

    /// Whether it was created in the extended form.
    pub fn is_extended(&self) -> bool {
        // SAFETY: the C struct is live.
        unsafe { (*self.as_c_ex()).start_poll.is_some() }
    }

    /// Acknowledgements of `ibv_ack_async_event`.
    pub fn async_acks(&self) -> &Acks {
        &self.async_acks
    }

    /// Acknowledgements of `ibv_ack_cq_events`.
    pub fn completion_acks(&self) -> &Acks {
        &self.completion_acks
    }

    /// The context it belongs to; EIO when that was the parent process's.
    pub fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.as_c()).context) }
    }
}

/// What both ways to create a queue need.
pub struct Wanted {
    pub cqe: u32,
    /// The program's cookie.
    pub cq_context: *mut c_void,
    /// Where to report, or null.
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    /// One thread only, by the program's promise.
    pub single_threaded: bool,
    /// The parent domain to make it with, or null.
    pub domain: *const Pd,
    /// Completions carry the time.
    pub timed: bool,
}

/// Memory for a ring of `cqe` entries, if `domain` has an allocator.
///
/// # Safety
/// `domain` is null or live.
unsafe fn allocate(context: &Context, domain: *const Pd, cqe: u32) -> Res<Option<Allocation>> {
    context.device().check_cq(cqe)?;
    // SAFETY: the caller's promise.
    match unsafe { domain.as_ref() } {
        Some(domain) => Allocation::new(domain, Resource::Cq, hca::QueueMemory::bytes_of_cq(cqe)),
        None => Ok(None),
    }
}

/// Waits for nobody: only the thread that resizes or destroys a queue looks at its memory.
fn lock(memory: &Mutex<Option<Allocation>>) -> std::sync::MutexGuard<'_, Option<Allocation>> {
    engine_thread::lock(memory)
}

/// Creates a queue.
///
/// # Safety
/// `wanted.channel` and `wanted.domain` are null or live.
pub unsafe fn create(context: &Context, wanted: &Wanted) -> Res<Box<Cq>> {
    // SAFETY: the context's C struct is live.
    let vectors = unsafe { (*context.as_c()).num_comp_vectors };
    if wanted.comp_vector >= vectors as u32 {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let channel = unsafe { wanted.channel.cast::<Channel>().as_ref() };
    if channel.is_some_and(|channel| channel.context() != context.as_c()) {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let memory = unsafe { allocate(context, wanted.domain, wanted.cqe) }?;
    let notifier = channel.map(Channel::attach).transpose()?;
    let notify = notifier.clone().map(|notifier| notifier as Arc<dyn hca::CqNotify>);
    let place = memory.as_ref().map(Allocation::memory);
    let hca = context.device().create_cq_in(wanted.cqe, notify, place, wanted.timed).inspect_err(
        |_| {
            if let Some(channel) = channel {
                channel.detach(0);
            }
        },
    )?;
    let handle = context.ucontext().own(Owned::Cq(hca.clone()));
    // SAFETY: all-zero is a valid value: every member is an integer, a nullable pointer, an
    // `Option` of a function or a pthread object that is never used.
    let mut c: ibv_cq_ex = unsafe { std::mem::zeroed() };
    c.base.context = context.as_c();
    c.base.channel = wanted.channel;
    c.base.cq_context = wanted.cq_context;
    c.base.handle = handle;
    c.base.cqe = hca.capacity() as c_int;
    let async_acks = Arc::new(Acks::default());
    let cq = Box::new(Cq {
        made: Made::now(),
        c: UnsafeCell::new(c),
        hca,
        async_acks: async_acks.clone(),
        completion_acks: Acks::default(),
        polling: (!wanted.single_threaded).then(Baton::default),
        current: Cell::new(None),
        domain: wanted.domain,
        memory: Mutex::new(memory),
    });
    let address = cq.as_c() as usize;
    let sink = &context.engine().sink;
    sink.add_object(&cq.hca, context.events().clone(), address as u64, async_acks);
    if let Some(notifier) = notifier {
        notifier.set(address);
    }
    Ok(cq)
}

/// `ibv_create_cq(3)`.
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) }?;
        let cqe = u32::try_from(cqe).map_err(|_| INVALID)?;
        let comp_vector = u32::try_from(comp_vector).map_err(|_| INVALID)?;
        let (domain, single_threaded, timed) = (std::ptr::null(), false, false);
        let wanted =
            Wanted { cqe, cq_context, channel, comp_vector, single_threaded, domain, timed };
        // SAFETY: the program passes null or a live channel.
        Ok(give(unsafe { create(context, &wanted) }?))
    })
}

/// `ibv_resize_cq(3)`.
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    status(|| {
        // SAFETY: the program passes a live CQ.
        let cq = unsafe { object::<Cq>(cq) }?;
        let cqe = u32::try_from(cqe).map_err(|_| INVALID)?;
        // SAFETY: the parent domain lives as long as what was made with it.
        let memory = unsafe { allocate(cq.context()?, cq.domain, cqe) }?;
        cq.hca.resize(cqe, memory.as_ref().map(Allocation::memory))?;
        let before = std::mem::replace(&mut *lock(&cq.memory), memory);
        drop(before);
        // SAFETY: the C struct is live; programs read this member only.
        unsafe { (*cq.as_c()).cqe = cq.hca.capacity() as c_int };
        Ok(())
    })
}

/// `ibv_destroy_cq(3)`: EBUSY while a QP uses it; then waits for outstanding acknowledgements.
pub(crate) unsafe extern "C" fn ibv_destroy_cq(c: *mut ibv_cq) -> c_int {
    status(|| {
        // SAFETY: the program passes a live CQ.
        let cq = unsafe { object::<Cq>(c) }?;
        let context = cq.context()?;
        cq.hca.destroy()?;
        // SAFETY: the C struct is live, its channel null or live.
        let channel = unsafe { (*cq.as_c()).channel.cast::<Channel>().as_ref() };
        if let Some(channel) = channel {
            channel.detach(cq.as_c() as usize);
        }
        cq.completion_acks.wait();
        context.engine().sink.remove_object(&cq.hca, c as u64);
        // SAFETY: the C struct is live.
        context.ucontext().disown(unsafe { (*cq.as_c()).handle });
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Cq>(c) });
        Ok(())
    })
}

/// `ibv_poll_cq(3)`.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    quick_count(|| {
        // SAFETY: the program passes a live CQ.
        let cq = unsafe { object::<Cq>(cq) }?;
        let Ok(max) = usize::try_from(entries) else { return Err(INVALID) };
        if wc.is_null() && max > 0 {
            return Err(INVALID);
        }
        let mut next = wc;
        let polled = cq.hca.poll(max, &mut |completion| {
            // SAFETY: the program provides `entries` places, and the HCA hands out no more.
            unsafe {
                next.write(to_c(completion));
                next = next.add(1);
            }
        })?;
        c_int::try_from(polled).map_err(|_| Errno(libc::EIO))
    })
}

/// Immediate data goes back to network order; an invalidated key stays a number.
pub fn imm_or_rkey(completion: &hca::Completion) -> u32 {
    if completion.flags.contains(hca::WcFlags::WITH_INV) {
        completion.imm_or_key
    } else {
        completion.imm_or_key.to_be()
    }
}

fn to_c(completion: &hca::Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as u32,
        opcode: completion.opcode as u32,
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        imm_or_rkey: imm_or_rkey(completion),
        qp_num: completion.qp_num,
        src_qp: completion.src_qp,
        wc_flags: completion.flags.bits(),
        pkey_index: 0,
        slid: 0,
        sl: completion.sl,
        dlid_path_bits: 0,
    }
}

/// `ibv_req_notify_cq(3)`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status(|| {
        // SAFETY: the program passes a live CQ.
        let cq = unsafe { object::<Cq>(cq) }?;
        cq.context()?;
        cq.hca.arm(solicited_only != 0);
        Ok(())
    })
}
