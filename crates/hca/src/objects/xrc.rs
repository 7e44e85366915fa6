//! XRC domains (IBA A14): which shared receive queues the peers of an XRC receive QP may name.
//!
//! A domain belongs to an inode, or to nobody but who opened it. Opens of one inode in this process
//! are one domain, as the kernel's are in the whole host; other processes have other HCAs. So that
//! their queues are not taken for this one's, a queue's number says whose it is, as a queue pair's
//! does.

use engine_thread::{lock, read, write};
use registry::QPN_INDEX_BITS;
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
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
    xrc: Arc<Xrc>,
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
    /// Whether it is a domain of `xrc`.
    pub(crate) fn is_of(&self, xrc: &Arc<Xrc>) -> bool {
        Arc::ptr_eq(&self.xrc, xrc)
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
            && let Some(inode) = self.inode
        {
            self.xrc.leave(inode);
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
    /// The queues by their numbers; `None` where a number is only set aside.
    queues: RwLock<HashMap<u32, Option<Weak<dyn XrcReceive>>>>,
    next_domain: AtomicU32,
    next_queue: AtomicU32,
    /// The upper bits of the queues' numbers.
    slot: u16,
}

/// Queues that the numbers of one slot tell apart: 0 is none of them.
const MAX_QUEUES: usize = (1 << QPN_INDEX_BITS) - 1;

impl Xrc {
    pub(crate) fn new(slot: u16) -> Xrc {
        // Queue numbers start at random, so that those of a dead process hit nothing.
        let start = RandomState::new().hash_one(0) as u32;
        Xrc {
            domains: Mutex::default(),
            queues: RwLock::default(),
            next_domain: AtomicU32::new(1),
            next_queue: AtomicU32::new(start),
            slot,
        }
    }

    fn domains(&self) -> MutexGuard<'_, HashMap<Inode, (XrcdId, u32)>> {
        lock(&self.domains)
    }

    pub(crate) fn open(self: &Arc<Xrc>, init: XrcdInit) -> Result<Arc<Xrcd>> {
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
            xrc: self.clone(),
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

    /// Sets a new number of 24 bits aside for a queue.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when none is left.
    pub(crate) fn take_number(&self) -> Result<u32> {
        let mut queues = write(&self.queues);
        if queues.len() >= MAX_QUEUES {
            return Err(Error::NoMemory("no number is left for an XRC shared receive queue"));
        }
        loop {
            let index = self.next_queue.fetch_add(1, Relaxed) & MAX_QUEUES as u32;
            let number = u32::from(self.slot) << QPN_INDEX_BITS | index;
            if index != 0 && !queues.contains_key(&number) {
                queues.insert(number, None);
                return Ok(number);
            }
        }
    }

    /// Files a queue under the number that was set aside for it.
    pub(crate) fn add_queue(&self, number: u32, queue: Weak<dyn XrcReceive>) {
        let mut queues = write(&self.queues);
        queues.insert(number, Some(queue));
    }

    pub(crate) fn remove_queue(&self, number: u32) {
        write(&self.queues).remove(&number);
    }
}

impl XrcQueues for Xrc {
    fn queue(&self, number: u32) -> Option<Arc<dyn XrcReceive>> {
        let queues = read(&self.queues);
        queues.get(&number)?.as_ref()?.upgrade()
    }
}
