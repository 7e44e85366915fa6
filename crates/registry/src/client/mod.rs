//! The client: calls of this process on the registry, wherever it is hosted.

pub(crate) mod connection;
mod fork_pause;
mod host;
mod line;
mod member;
mod worker;

use crate::Error;
use crate::fds::Table;
use crate::proto::{Identity, MAX_ID, MAX_NAME, PAGE, Reply, Request};
use crate::system::names::Names;
use connection::{ANSWER_WITHIN, AT_WORK_LIMIT, Failure, LIMIT, RegistryAddress};
use engine_thread::{Thread, lock};
use fork_pause::ForkPause;
use host::Host;
use line::{Joined, Kept, Line, Shared};
use rustix::event::{EventfdFlags, eventfd};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

pub use member::{Grant, Member, Options, Role};

/// A process's access to its user's registry in this network namespace.
///
/// All calls block for some two seconds at most, and for ten where the process that hosts the
/// registry is at work but does not come to answer ([`Error::Timeout`]); those that take something
/// back, of which nobody waits for the answer, for two. When that process ends, the calls wait for
/// its successor. Dropping the client ends all its memberships.
pub struct Client {
    shared: ManuallyDrop<Arc<Shared>>,
    worker: Mutex<Option<Thread>>,
}

fn bounded(text: &str, max: usize, what: &'static str) -> Result<(), Error> {
    if text.len() > max { Err(Error::TooLong(what)) } else { Ok(()) }
}

fn unexpected<T>(reply: &Reply) -> Result<T, Error> {
    Err(Error::Protocol(format!("unexpected reply {reply:?}")))
}

fn one(fds: Vec<OwnedFd>) -> Result<OwnedFd, Error> {
    let missing = || Error::Protocol("a reply without its descriptor".into());
    fds.into_iter().next().map(descriptors::raise).ok_or_else(missing)
}

fn start_worker(shared: Arc<Shared>, host: Option<Host>) -> Result<Thread, Error> {
    worker::spawn(shared, host).map_err(|e| Error::System {
        what: "starting the registry's thread".into(),
        errno: e.raw_os_error().unwrap_or(libc::EAGAIN),
    })
}

impl Client {
    /// Connects to the registry at its usual place; see [`Client::connect_at`].
    pub fn connect(role: Role) -> Result<Arc<Client>, Error> {
        Client::connect_at(role, &Options::default())
    }

    /// Connects to the registry, which a [`Role::Member`] hosts itself if nobody does.
    pub fn connect_at(role: Role, options: &Options) -> Result<Arc<Client>, Error> {
        let suffix = options.name_suffix.as_deref();
        bounded(suffix.unwrap_or(""), MAX_NAME, "name suffix")?;
        let table = Table::new();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::system("creating an eventfd", e))?;
        let names = Names::new(suffix, table.clone());
        let (port, hurry) = (options.port, Arc::default());
        let place = RegistryAddress { names, table: table.clone(), role, port, hurry };
        let line = Line { connection: None, busy: false, error: None, kept: Kept::default() };
        let shared = Arc::new(Shared {
            place,
            line: Mutex::new(line),
            changed: Condvar::new(),
            wake: table.keep(wake),
            stop: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            fork_pause: ForkPause::default(),
            stood: AtomicBool::new(true),
        });
        let worker = match role {
            Role::Observer => None,
            Role::Member => Some(start_worker(shared.clone(), None)?),
        };
        let (shared, worker) = (ManuallyDrop::new(shared), Mutex::new(worker));
        let client = Client { shared, worker };
        client.shared.take(Instant::now() + AT_WORK_LIMIT)?;
        client.shared.release(client.shared.lock());
        Ok(Arc::new(client))
    }

    fn is_abandoned(&self) -> bool {
        self.shared.abandoned.load(Ordering::Acquire)
    }

    /// Makes a call; `apply` sees the reply while the line is still held.
    fn call<T>(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        apply: impl FnOnce(&mut Kept, Reply, Vec<OwnedFd>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.call_by(Instant::now() + AT_WORK_LIMIT, request, fds, apply)
    }

    fn call_by<T>(
        &self,
        deadline: Instant,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        apply: impl FnOnce(&mut Kept, Reply, Vec<OwnedFd>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.is_abandoned() {
            return Err(Error::Abandoned);
        }
        loop {
            let link = self.shared.take(deadline)?;
            let patience = self.shared.place.patience(ANSWER_WITHIN, deadline);
            let outcome = link.exchange(request, fds, patience, &mut None);
            let mut line = self.shared.lock();
            match outcome {
                Ok((reply, fds)) => {
                    let result = apply(&mut line.kept, reply, fds);
                    self.shared.release(line);
                    return result;
                }
                Err(Failure::Refused(error)) => {
                    self.shared.release(line);
                    return Err(error);
                }
                Err(Failure::Gone | Failure::Silent) => {
                    link.cut();
                    line.connection = None;
                    self.shared.release(line);
                    self.shared.nudge();
                }
            }
        }
    }

    /// Becomes a member: gets a slot and the sockets that datagrams for it arrive at.
    ///
    /// `directory` is the memory file that [`Client::directory`] gives to others. Errors:
    /// [`Error::PortTaken`], [`Error::Full`], [`Error::TooLong`].
    pub fn join(&self, who: &Identity, directory: BorrowedFd<'_>) -> Result<Grant, Error> {
        bounded(&who.device, MAX_NAME, "device name")?;
        bounded(&who.comm, MAX_NAME, "command name")?;
        let table = &self.shared.place.table;
        let own = |e| Error::system("duplicating a descriptor", e);
        let kept_directory = table.duplicate(directory).map_err(own)?;
        let request = Request::Join { who: who.clone() };
        let grant = self.call(&request, &[directory], |kept, reply, fds| {
            let Reply::Joined { slot, joined_at, v4, v6 } = reply else {
                return unexpected(&reply);
            };
            let mut fds = fds.into_iter().map(descriptors::raise);
            let v4 = if v4 { fds.next() } else { None };
            let v6 = if v6 { fds.next() } else { None };
            let deed = fds.next().ok_or_else(|| Error::Protocol("a grant without deed".into()))?;
            if let Some(vault) = fds.next() {
                kept.vault = Some(Arc::new(table.keep(vault)));
            }
            let copy = |fd: &Option<OwnedFd>| {
                fd.as_ref().map(|fd| table.duplicate(fd.as_fd())).transpose().map_err(own)
            };
            let joined = Joined {
                who: who.clone(),
                joined_at,
                directory: kept_directory,
                v4: copy(&v4)?,
                v6: copy(&v6)?,
                deed: table.keep(deed),
            };
            kept.members.insert(slot, Arc::new(joined));
            Ok(Grant { slot, v4, v6 })
        })?;
        self.shared.nudge();
        Ok(grant)
    }

    /// Ends a membership: its sockets receive nothing more. Nothing is reported, since the end of
    /// the connection does the same.
    pub fn leave(&self, slot: u16) {
        if self.is_abandoned() {
            return;
        }
        let known = {
            let mut line = self.shared.lock();
            line.kept.claims.retain(|_, holder| *holder != slot);
            line.kept.members.remove(&slot)
        };
        if known.is_some() {
            let by = Instant::now() + LIMIT;
            let _ = self.call_by(by, &Request::Leave { slot }, &[], |_, _, _| Ok(()));
            self.shared.nudge();
        }
    }

    /// All members, by slot.
    pub fn members(&self) -> Result<Vec<Member>, Error> {
        let mut members: Vec<Member> = Vec::new();
        let by = Instant::now() + AT_WORK_LIMIT;
        loop {
            let after = members.last().map_or(0, |m| m.slot);
            let request = Request::Members { after };
            let rows = self.call_by(by, &request, &[], |_, reply, _| match reply {
                Reply::Members(rows) if rows.iter().all(|r| r.slot > after) => Ok(rows),
                reply => unexpected(&reply),
            })?;
            let full = rows.len() == PAGE;
            members.extend(rows.into_iter().map(Member::from));
            if !full {
                return Ok(members);
            }
        }
    }

    fn found(&self, request: &Request) -> Result<OwnedFd, Error> {
        self.call(request, &[], |_, reply, fds| match reply {
            Reply::Found => one(fds),
            reply => unexpected(&reply),
        })
    }

    /// The directory of the member of a slot. Errors: [`Error::Unknown`].
    pub fn directory(&self, slot: u16) -> Result<OwnedFd, Error> {
        self.found(&Request::Directory { slot })
    }

    /// Offers a descriptor to the user's other processes until it is withdrawn or this client ends;
    /// an own one under the same id is replaced. Errors: [`Error::Taken`], [`Error::TooLong`] (128
    /// bytes), [`Error::Full`].
    pub fn publish(&self, id: &str, fd: BorrowedFd<'_>) -> Result<(), Error> {
        bounded(id, MAX_ID, "id")?;
        let copy = self.shared.place.table.duplicate(fd);
        let copy = copy.map_err(|e| Error::system("duplicating a descriptor", e))?;
        self.call(&Request::Publish { id: id.to_owned() }, &[fd], |kept, _, _| {
            kept.published.insert(id.to_owned(), Arc::new(copy));
            Ok(())
        })
    }

    /// The descriptor somebody published. Errors: [`Error::Unknown`].
    pub fn lookup(&self, id: &str) -> Result<OwnedFd, Error> {
        bounded(id, MAX_ID, "id")?;
        self.found(&Request::Lookup { id: id.to_owned() })
    }

    /// Takes an own publication back.
    pub fn withdraw(&self, id: &str) {
        if self.is_abandoned() {
            return;
        }
        if self.shared.lock().kept.published.remove(id).is_some() {
            let (by, request) = (Instant::now() + LIMIT, Request::Withdraw { id: id.to_owned() });
            let _ = self.call_by(by, &request, &[], |_, _, _| Ok(()));
        }
    }

    /// Claims a number of a kind (for instance a CM service id) for the member of an own slot,
    /// exclusively among the user's processes. Errors: [`Error::Taken`], [`Error::Unknown`] (not an
    /// own slot).
    pub fn claim(&self, slot: u16, kind: u32, key: u64) -> Result<(), Error> {
        self.call(&Request::Claim { kind, key, slot }, &[], |kept, _, _| {
            kept.claims.insert((kind, key), slot);
            Ok(())
        })
    }

    /// Gives an own claim back. Answers whether it was this process's until now: another may have
    /// taken over one of the kind [`CLAIM_JOINING`](crate::CLAIM_JOINING), and where the registry
    /// does not answer nobody knows.
    pub fn release(&self, kind: u32, key: u64) -> bool {
        self.release_by(Instant::now() + LIMIT, kind, key)
    }

    /// The same, until `deadline` at most: for a process that ends, whose claims the registry takes
    /// back in any case.
    pub fn release_by(&self, deadline: Instant, kind: u32, key: u64) -> bool {
        if self.is_abandoned() {
            return false;
        }
        let known = self.shared.lock().kept.claims.remove(&(kind, key)).is_some();
        let request = Request::Release { kind, key };
        known && self.call_by(deadline, &request, &[], |_, _, _| Ok(())).is_ok()
    }

    /// The slot of the member that claimed a number. Errors: [`Error::Unknown`].
    pub fn owner(&self, kind: u32, key: u64) -> Result<u16, Error> {
        self.call(&Request::Owner { kind, key }, &[], |_, reply, _| match reply {
            Reply::Owner { slot } => Ok(slot),
            reply => unexpected(&reply),
        })
    }

    /// Before a fork whose child carries this client on ([`Client::adopt`]): lets a call under way
    /// end and the thread stand still, until `deadline` at most. Answers whether they did; where
    /// not, the child cannot carry it on. [`Client::resume`] follows in the parent if it goes on
    /// after all.
    pub fn pause(&self, deadline: Instant) -> bool {
        if self.is_abandoned() || lock(&self.worker).is_none() {
            return true;
        }
        self.shared.place.hurry.store(true, Ordering::Release);
        self.shared.fork_pause.ask();
        self.shared.nudge();
        let stood = self.shared.fork_pause.wait(deadline) && self.shared.is_idle(deadline);
        self.shared.place.hurry.store(false, Ordering::Release);
        self.shared.stood.store(stood, Ordering::Release);
        stood
    }

    /// In the parent after [`Client::pause`], when there is no child that carries the client on.
    pub fn resume(&self) {
        self.shared.fork_pause.end();
    }

    /// In a child that carries its parent's client on, while the parent ends: the memberships are
    /// this process's from now on, and it hosts the registry if the parent did.
    ///
    /// # Errors
    /// When no thread can be had. [`Error::Timeout`] when the parent's did not stand at the fork:
    /// it may have held any lock, so the client is abandoned.
    pub fn adopt(&self) -> Result<(), Error> {
        if !self.shared.stood.load(Ordering::Acquire) {
            self.abandon();
            return Err(Error::Timeout);
        }
        let host = self.shared.fork_pause.inherit();
        let mut line = self.shared.lock();
        // The old connection tells the parent's process id.
        if let Some(link) = line.connection.take() {
            link.cut();
        }
        self.shared.release(line);
        let worker = start_worker(Arc::clone(&self.shared), host)?;
        // The thread that the old handle names is not in this process.
        std::mem::forget(lock(&self.worker).replace(worker));
        Ok(())
    }

    /// For a forked child: closes every descriptor of this client without telling anyone. It takes
    /// no lock and does not block; afterwards all calls fail with [`Error::Abandoned`], and the
    /// parent's client goes on untouched. The [`Grant`]'s sockets are the caller's to close.
    pub fn abandon(&self) {
        self.shared.abandoned.store(true, Ordering::Release);
        self.shared.place.table.abandon();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.is_abandoned() {
            // The thread exists in the parent only, and it may hold any lock; leave all as it is.
            std::mem::forget(self.worker.get_mut().map(Option::take));
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.place.hurry.store(true, Ordering::Release);
        if let Some(link) = self.shared.lock().connection.take() {
            link.cut();
        }
        self.shared.nudge();
        let worker = lock(&self.worker).take();
        if let Some(worker) = worker {
            worker.join();
        }
        // SAFETY: this is the drop of the only owner of the field.
        unsafe { ManuallyDrop::drop(&mut self.shared) };
    }
}
