//! Completion queues, polled or waited for through a channel.

use crate::completion::Completion;
use crate::context::{Context, OpenDevice};
use crate::error::{Error, Result, check};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use verbs_sys::{ibv_comp_channel, ibv_cq, ibv_wc};

/// Completions taken in one call of [`Cq::poll`].
const BATCH: usize = 32;

/// A channel on which queues announce completions. Its descriptor becomes readable; clones share
/// it.
#[derive(Clone)]
pub struct CompChannel {
    inner: Arc<Channel>,
}

struct Channel {
    context: Context,
    raw: NonNull<ibv_comp_channel>,
}

// SAFETY: see OpenDevice in context.rs; the struct behind `raw` is not changed after creation by
// anyone but the library.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the last owner; queues on the channel held a reference and are destroyed.
        unsafe { (self.context.inner.functions().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

impl Context {
    /// A completion queue for at least `entries` completions; with a channel it can be waited for.
    pub fn create_cq(&self, entries: u32, channel: Option<&CompChannel>) -> Result<Cq> {
        Cq::create(self, entries, channel)
    }

    /// A channel on which completion queues of this device announce completions.
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        CompChannel::create(self)
    }
}

impl CompChannel {
    fn create(context: &Context) -> Result<CompChannel> {
        // SAFETY: the context is open.
        let raw = unsafe {
            (context.inner.functions().ibv_create_comp_channel)(context.inner.raw.as_ptr())
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        let channel = CompChannel { inner: Arc::new(Channel { context: context.clone(), raw }) };
        // Reads must not block: another thread may take the event between poll and read.
        let fd = channel.as_fd().as_raw_fd();
        // SAFETY: `fd` is open; the flags are plain integers (ibv_get_cq_event(3) documents this
        // use).
        let set = unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
        };
        if set { Ok(channel) } else { Err(Error::last("fcntl")) }
    }

    /// Waits for an announcement and answers with the [`Cq::id`] of its queue; `None` after
    /// `timeout`. The queue must be armed again before it announces anew.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(id) = self.take_event()? {
                return Ok(Some(id));
            }
            if !wait_readable(self.as_fd(), deadline)? {
                return Ok(None);
            }
        }
    }

    fn take_event(&self) -> Result<Option<u64>> {
        let functions = self.inner.context.inner.functions();
        let (mut cq, mut id) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive and both pointers are valid for the call.
        let value =
            unsafe { (functions.ibv_get_cq_event)(self.inner.raw.as_ptr(), &mut cq, &mut id) };
        if value != 0 {
            let error = std::io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(Error::Call { call: "ibv_get_cq_event", source: error }),
            };
        }
        // SAFETY: the queue of an event that is not acknowledged yet exists: destroying it waits
        // for this call.
        unsafe { (functions.ibv_ack_cq_events)(cq, 1) };
        Ok(Some(id as u64))
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the channel's and stays open while it lives.
        unsafe { BorrowedFd::borrow_raw((*self.inner.raw.as_ptr()).fd) }
    }
}

impl std::fmt::Debug for CompChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompChannel").field("fd", &self.as_fd().as_raw_fd()).finish()
    }
}

/// A completion queue. Clones share it. It must hold all completions outstanding at once, or the
/// queue pairs on it fail.
#[derive(Clone)]
pub struct Cq {
    pub(crate) inner: Arc<Queue>,
}

pub(crate) struct Queue {
    device: Arc<OpenDevice>,
    pub(crate) raw: NonNull<ibv_cq>,
    channel: Option<CompChannel>,
    id: u64,
}

// SAFETY: see OpenDevice in context.rs; polling from several threads is allowed.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the last owner; queue pairs on it held references and are destroyed. The field
        // `channel` goes later.
        unsafe { (self.device.functions().ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

impl Cq {
    fn create(context: &Context, entries: u32, channel: Option<&CompChannel>) -> Result<Cq> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let entries =
            libc::c_int::try_from(entries).map_err(|_| Error::Argument("too many entries"))?;
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.inner.context.inner, &context.inner))
        {
            return Err(Error::Argument("the channel belongs to another device"));
        }
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let raw_channel =
            channel.map_or(std::ptr::null_mut(), |channel| channel.inner.raw.as_ptr());
        // SAFETY: context and channel are alive; the queue's own context is a number that is never
        // followed.
        let raw = unsafe {
            (context.inner.functions().ibv_create_cq)(
                context.inner.raw.as_ptr(),
                entries,
                std::ptr::without_provenance_mut(id as usize),
                raw_channel,
                0,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_cq"))?;
        Ok(Cq {
            inner: Arc::new(Queue {
                device: context.inner.clone(),
                raw,
                channel: channel.cloned(),
                id,
            }),
        })
    }

    /// Identity of the queue in the process, as [`CompChannel::wait`] reports it.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Appends the completions there are, up to 32, to `out` and returns their number.
    pub fn poll(&self, out: &mut Vec<Completion>) -> Result<usize> {
        let Some(poll) = self.inner.device.ops().poll_cq else {
            return Err(Error::NotSupported("the device has no poll_cq"));
        };
        let mut completions = [ibv_wc::default(); BATCH];
        // SAFETY: the queue is alive and the array holds BATCH entries.
        let count = unsafe {
            poll(self.inner.raw.as_ptr(), BATCH as libc::c_int, completions.as_mut_ptr())
        };
        let count = usize::try_from(count).map_err(|_| Error::last("ibv_poll_cq"))?.min(BATCH);
        out.extend(completions[..count].iter().map(Completion::from_raw));
        Ok(count)
    }

    /// Asks for one announcement on the channel at the next completion, or with `solicited_only` at
    /// the next one that the sender solicited or that failed. Poll once after arming: what came
    /// before is not announced.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        if self.inner.channel.is_none() {
            return Err(Error::Argument("the completion queue has no channel"));
        }
        let Some(arm) = self.inner.device.ops().req_notify_cq else {
            return Err(Error::NotSupported("the device has no req_notify_cq"));
        };
        // SAFETY: the queue is alive.
        check("ibv_req_notify_cq", unsafe { arm(self.inner.raw.as_ptr(), solicited_only.into()) })
    }

    /// Waits until there are completions and takes them; empty after `timeout`. Sleeps where the
    /// queue has a channel that it does not share, else polls and yields the processor.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Vec<Completion>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut out = Vec::new();
        loop {
            if self.poll(&mut out)? > 0 {
                return Ok(out);
            }
            let remaining =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if remaining == Some(Duration::ZERO) {
                return Ok(out);
            }
            match &self.inner.channel {
                Some(channel) => {
                    self.arm(false)?;
                    if self.poll(&mut out)? > 0 {
                        return Ok(out);
                    }
                    channel.wait(remaining)?;
                }
                None => std::thread::yield_now(),
            }
        }
    }
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("id", &self.inner.id).finish()
    }
}

/// Whether `fd` became readable before the deadline.
fn wait_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool> {
    loop {
        let millis =
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => -1,
                // Rounded up, so that a poll does not return just before the deadline and spin.
                Some(left) => libc::c_int::try_from(left.as_nanos().div_ceil(1_000_000))
                    .unwrap_or(libc::c_int::MAX),
            };
        let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        match unsafe { libc::poll(&mut entry, 1, millis) } {
            0 => return Ok(false),
            1.. => return Ok(true),
            _ => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(Error::Call { call: "poll", source: error });
                }
            }
        }
    }
}
