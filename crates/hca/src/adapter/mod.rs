//! The adapter: what every object of a device stands on, and nothing that knows of objects.
//!
//! It has the device's identity, its port and its link, the keys, the shared directory, and the
//! appointments that turns of progress keep. Objects hold it; the device holds both.

mod attach;
pub(crate) mod batches;
pub(crate) mod caps;
pub mod directory;
pub(crate) mod event;
pub mod fuzzed;
pub mod identity;
pub(crate) mod management;
pub(crate) mod membership;
pub(crate) mod network;
pub(crate) mod paths;
pub(crate) mod port;
pub(crate) mod rings;
pub(crate) mod thread;
pub(crate) mod timers;
pub(crate) mod tracer;

use crate::adapter::batches::Batches;
use crate::adapter::caps::DeviceAttr;
use crate::adapter::directory::Directory;
use crate::adapter::directory::neighbour::Neighbour;
use crate::adapter::event::{AsyncEvent, EventSink};
use crate::adapter::network::Attached;
use crate::adapter::port::Port;
use crate::adapter::rings::Rings;
use crate::adapter::thread::Thread;
use crate::adapter::timers::Timers;
use link::{Backlog, Batch, Endpoint};
use registry::Client;
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;
use transport::keys::KeyTable;
use transport::{Error, PageFault, Result};
use umem::TranslationCache;

/// What the objects of one device share.
pub(crate) struct Adapter {
    pub(crate) attr: DeviceAttr,
    pub(crate) mtu_bytes: Option<u32>,
    pub(crate) registry: Arc<Client>,
    pub(crate) endpoint: Endpoint,
    /// Places in the group of sockets on all addresses that are kept, where the device receives on
    /// another.
    pub(crate) _steered: Vec<OwnedFd>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) slot: u16,
    pub(crate) keys: KeyTable,
    /// Only where its function's ATS is on.
    pub(crate) ats: Option<Arc<TranslationCache>>,
    pub(crate) port: Port,
    pub(crate) network: Attached,
    pub(crate) events: OnceLock<Arc<dyn EventSink>>,
    pub(crate) batches: Batches,
    /// Neighbours whose memory is reached, by slot; `None` where packets are wanted.
    pub(crate) neighbours: Option<Mutex<HashMap<u16, Weak<Neighbour>>>>,
    /// What packets to processes of this host pass through; `None` as before.
    pub(crate) rings: Option<Rings>,
    /// Receive sockets on this host that unreliable senders watch, by slot and address family.
    pub(crate) backlogs: Mutex<HashMap<(u16, bool), Weak<Backlog>>>,
    pub(crate) epoch: Instant,
    pub(crate) lost: AtomicBool,
    /// A bug of ours was met: nothing works any more.
    pub(crate) failed: AtomicBool,
    pub(crate) timers: Timers,
    pub(crate) thread: Thread,
}

impl Adapter {
    /// Leaves the registry and stops the progress thread, the first time.
    pub(crate) fn close(&self) {
        if !self.lost.swap(true, SeqCst) {
            self.thread.stop();
            self.directory.close();
            // The registry's client may outlive the device, and the slot's next owner publishes
            // under the same names.
            for v6 in [false, true] {
                self.registry.withdraw(&socket_id(self.slot, v6));
            }
            self.registry.withdraw(&control_id(self.slot));
            self.registry.leave(self.slot);
        }
    }

    /// From now on calls here fail, and nothing else happens.
    pub(crate) fn lose(&self) {
        self.lost.store(true, SeqCst);
    }

    /// Whether calls still reach the device.
    ///
    /// # Errors
    /// [`Error::Lost`] when it was closed, lost, or has failed.
    pub(crate) fn alive(&self) -> Result<()> {
        if self.lost.load(Relaxed) {
            return Err(Error::Lost("the device was closed or belongs to the parent process"));
        }
        if self.has_failed() {
            return Err(Error::Lost("the device failed by a bug of peerdma's"));
        }
        Ok(())
    }

    /// Whether a bug of ours has ended it.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Notes that it has. `false`: that was known.
    pub(crate) fn mark_failed(&self) -> bool {
        !self.failed.swap(true, SeqCst)
    }

    pub(crate) fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// Nanoseconds since the device was opened.
    pub(crate) fn now_ns(&self) -> u64 {
        self.ns_of(Instant::now())
    }

    /// Nanoseconds between when the device was opened and `at`.
    pub(crate) fn ns_of(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    pub(crate) fn page_fault(&self, qp: u32, fault: PageFault) -> bool {
        self.events.get().is_some_and(|sink| sink.page_fault(qp, fault))
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        if let Some(sink) = self.events.get() {
            let _whole = engine_thread::Uncancelled::begin();
            sink.event(event);
        }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn keys(&self) -> &KeyTable {
        &self.keys
    }

    /// Whether neighbours' memory is reached without packets, and theirs reach this device's.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.neighbours.is_some()
    }

    /// What packets to and from processes of this host pass through.
    pub(crate) fn rings(&self) -> Option<&Rings> {
        self.rings.as_ref()
    }

    /// What other processes see.
    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The same, to be kept.
    pub(crate) fn shared_directory(&self) -> Arc<Directory> {
        self.directory.clone()
    }

    /// Translations of memory that moves; only where ATS is on.
    pub(crate) fn translation_cache(&self) -> Option<&Arc<TranslationCache>> {
        self.ats.as_ref()
    }

    pub(crate) fn take_batch(&self) -> Batch {
        self.batches.take()
    }

    pub(crate) fn return_batch(&self, batch: Batch) {
        self.batches.give_back(batch);
    }

    /// Makes an appointment for a queue pair, and has the progress thread keep it.
    pub(crate) fn set_timer(&self, at: Instant, qpn: u32) {
        if self.timers.set(at, qpn) {
            self.thread.expect(self.ns_of(at));
        }
    }
}

/// Name under which a member of the registry publishes its receive socket.
pub(crate) fn socket_id(slot: u16, v6: bool) -> String {
    format!("socket-v{}-{slot}", if v6 { 6 } else { 4 })
}

/// Name under which a member of the registry publishes the descriptor that makes it look what it is
/// asked to do: whoever asks writes an 8-byte 1 to it.
pub fn control_id(slot: u16) -> String {
    format!("control-{slot}")
}
