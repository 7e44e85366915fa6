//! XRC domains (IBA A14): which shared receive queues the peers of an XRC receive QP may name.
//!
//! A domain belongs to an inode, or to nobody but who opened it. Opens of one inode in this process are one domain, as the
//! kernel's are in the whole host; other processes have other HCAs.

use crate::device::Device;
use crate::srq::Srq;
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use transport::values::XrcdId;
use transport::{Error, Result};
use transport::{XrcQueues, XrcReceive};

/// Device and number of an inode.
pub type Inode = (u64, u64);

/// How an XRC domain is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcdInit {
    /// The file it belongs to; `None` for a domain of its own.
    pub inode: Option<Inode>,
    /// Make it if it is not there.
    pub create: bool,
    /// Fail if it is there.
    pub exclusive: bool,
}

/// One open of an XRC domain.
pub struct Xrcd {
    device: Weak<Device>,
    id: XrcdId,
    inode: Option<Inode>,
    users: AtomicU32,
    closed: AtomicBool,
}

impl std::fmt::Debug for Xrcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Xrcd {{ {} }}", self.id.0)
    }
}

impl Xrcd {
    /// Whether it is an object of `device`.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        std::ptr::eq(self.device.as_ptr(), device)
    }

    /// Identity of the domain.
    pub fn id(&self) -> XrcdId {
        self.id
    }

    /// Closes it; the last close ends the domain.
    ///
    /// # Errors
    /// [`Error::Busy`] while a queue pair or queue made from this open is there.
    pub fn close(&self) -> Result<()> {
        if self.users.load(Relaxed) > 0 {
            return Err(Error::Busy("objects still belong to the XRC domain"));
        }
        self.end();
        Ok(())
    }

    fn end(&self) {
        if !self.closed.swap(true, Relaxed)
            && let (Some(inode), Some(device)) = (self.inode, self.device.upgrade())
        {
            device.xrc().leave(inode);
        }
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Relaxed);
    }

    pub(crate) fn drop_user(&self) {
        self.users.fetch_sub(1, Relaxed);
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        self.end();
    }
}

/// The domains of inodes and the XRC queues of one device. Its locks are innermost.
pub(crate) struct Xrc {
    /// Domain and number of opens.
    domains: Mutex<HashMap<Inode, (XrcdId, u32)>>,
    queues: RwLock<HashMap<u32, Weak<Srq>>>,
    next_domain: AtomicU32,
    next_queue: AtomicU32,
}

impl Xrc {
    pub(crate) fn new() -> Xrc {
        // Queue numbers start at random, so that those of a dead process hit nothing.
        let start = RandomState::new().hash_one(0) as u32;
        Xrc {
            domains: Mutex::default(),
            queues: RwLock::default(),
            next_domain: AtomicU32::new(1),
            next_queue: AtomicU32::new(start),
        }
    }

    fn domains(&self) -> MutexGuard<'_, HashMap<Inode, (XrcdId, u32)>> {
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, device: &Arc<Device>, init: XrcdInit) -> Result<Arc<Xrcd>> {
        let fresh = || XrcdId(self.next_domain.fetch_add(1, Relaxed));
        let id = match init.inode {
            None => fresh(),
            Some(inode) => {
                let mut domains = self.domains();
                let known = domains.get_mut(&inode);
                match known {
                    Some(_) if init.exclusive => {
                        return Err(Error::Invalid("the file has an XRC domain already"));
                    }
                    Some((id, opens)) => {
                        *opens += 1;
                        *id
                    }
                    // ib_uverbs_open_xrcd
                    None if !init.create => {
                        let again = Errno::AGAIN.raw_os_error();
                        return Err(Error::System(again, "the file has no XRC domain"));
                    }
                    None => domains.entry(inode).or_insert((fresh(), 1)).0,
                }
            }
        };
        Ok(Arc::new(Xrcd {
            device: Arc::downgrade(device),
            id,
            inode: init.inode,
            users: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        }))
    }

    fn leave(&self, inode: Inode) {
        let mut domains = self.domains();
        if let Some((_, opens)) = domains.get_mut(&inode) {
            *opens -= 1;
            if *opens == 0 {
                domains.remove(&inode);
            }
        }
    }

    /// Files a queue under a new number of 24 bits.
    pub(crate) fn add_queue(&self, queue: &Weak<Srq>) -> u32 {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Queues are limited to fewer than there are numbers.
            let number = self.next_queue.fetch_add(1, Relaxed) & 0x00ff_ffff;
            if number != 0 && !queues.contains_key(&number) {
                queues.insert(number, queue.clone());
                return number;
            }
        }
    }

    pub(crate) fn remove_queue(&self, number: u32) {
        self.queues.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

impl XrcQueues for Xrc {
    fn queue(&self, number: u32) -> Option<Arc<dyn XrcReceive>> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.get(&number)?.upgrade()?;
        Some(queue)
    }
}
