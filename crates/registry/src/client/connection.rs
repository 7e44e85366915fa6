//! One connection to the registry: a request out, its reply back, and how a connection is found or
//! hosted.

use crate::Error;
use crate::client::host::{Host, Ready};
use crate::client::member::Role;
use crate::fds::{Fd, Table};
use crate::proto::{Reply, Request, VERSION};
use crate::system::names::{Hosting, Names};
use crate::system::pulse::Pulse;
use crate::system::record::{self, Record};
use engine_thread::has_memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long finding a host, or following on one, may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);
/// How long any call may take: so long is waited for a host that is seen at work.
pub(crate) const AT_WORK_LIMIT: Duration = Duration::from_secs(10);
/// How long a host that is not may take to answer before the next one is sought.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// Pause before looking again for a host that is just starting.
const STARTING: Duration = Duration::from_millis(1);
/// Pause before looking again for who follows on a host that does not answer, which has no event
/// either.
const FOLLOWING: Duration = Duration::from_millis(10);

/// Why an exchange gave no reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection ended: there may be another host.
    Gone,
    /// The host does not answer: another host may.
    Silent,
    Refused(Error),
}

/// How long an answer is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    /// From a host that is not seen at work.
    pub answer: Duration,
    /// When it ends in any case.
    pub by: Instant,
    /// This process ends or forks: who is at work is not waited for.
    pub hurry: &'a AtomicBool,
}

/// A wait for an answer.
struct Wait<'a> {
    patience: Patience<'a>,
    until: Instant,
    /// What was seen of the host last; it is looked at from the middle of the wait on.
    pulse: Option<Pulse>,
}

impl Wait<'_> {
    fn begin(patience: Patience<'_>) -> Wait<'_> {
        let half = Instant::now() + patience.answer / 2;
        Wait { patience, until: half.min(patience.by), pulse: None }
    }

    /// Whether to wait on, until `until` then.
    fn goes_on(&mut self, host: impl AsFd) -> bool {
        let now = Instant::now();
        if now < self.until {
            return true;
        }
        let more = match &self.pulse {
            None => self.patience.answer / 2,
            Some(_) if self.patience.hurry.load(Ordering::Acquire) => return false,
            Some(pulse) if pulse.beats() => self.patience.answer,
            Some(_) => return false,
        };
        self.pulse = Some(Pulse::of(host));
        self.until = self.patience.by.min(now + more);
        now < self.until
    }
}

/// A connection that was welcomed.
pub(crate) struct Connection {
    pub fd: Fd,
    pub generation: u64,
    seq: AtomicU32,
}

/// Polls descriptors, and a host's if given, until something is ready or the deadline. Returns what
/// of `watched` is ready and what of the host.
pub(crate) fn wait(
    watched: &[(BorrowedFd<'_>, PollFlags)],
    host: Option<&Host>,
    deadline: Option<Instant>,
) -> (Vec<bool>, Vec<Ready>) {
    let mut fds: Vec<PollFd<'_>> =
        watched.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    let mut owners = Vec::new();
    if let Some(host) = host {
        for (ready, fd, flags) in host.interest() {
            owners.push(ready);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        }
    }
    let deadline = [deadline, host.and_then(Host::deadline)].into_iter().flatten().min();
    let timeout = deadline.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() }
    });
    if poll(&mut fds, timeout.as_ref()).is_err() {
        return (vec![false; watched.len()], Vec::new());
    }
    let (mine, hosts) = fds.split_at(watched.len());
    let fired = |fd: &PollFd<'_>| !fd.revents().is_empty();
    let ready = hosts.iter().zip(owners).filter(|(fd, _)| fired(fd)).map(|(_, r)| r).collect();
    (mine.iter().map(fired).collect(), ready)
}

impl Connection {
    /// Sends a request and returns its reply. A host of this very thread is served meanwhile.
    pub(crate) fn exchange(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        patience: Patience<'_>,
        host: &mut Option<Host>,
    ) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        let mut answer = Wait::begin(patience);
        let seq = self.seq.fetch_add(1, Ordering::Relaxed);
        let bytes = request.encode(seq);
        let mut sent = false;
        loop {
            if !sent {
                match record::send(&self.fd, &bytes, fds) {
                    Ok(()) => sent = true,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {}
                    Err(e) => {
                        let what = "sending to the registry";
                        return Err(Failure::Refused(Error::system(what, e)));
                    }
                }
            }
            // Also when sending failed: a refusal may lie there, before the end.
            match record::receive(&self.fd) {
                Ok(Some(record)) => match reply(&record, seq)? {
                    Some(reply) => return Ok((reply, record.fds)),
                    None => continue,
                },
                Err(Errno::AGAIN | Errno::INTR) => {}
                Ok(None) | Err(_) => return Err(Failure::Gone),
            }
            if !answer.goes_on(&self.fd) {
                return Err(Failure::Silent);
            }
            let flags = if sent { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            let watched = [(self.fd.as_fd(), flags)];
            let (_, ready) = wait(&watched, host.as_ref(), Some(answer.until));
            if host.as_mut().is_some_and(|h| !h.serve(&ready)) {
                *host = None;
            }
        }
    }

    /// Ends the connection for all threads that use it.
    pub(crate) fn cut(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }
}

/// The reply in a record; `None` if it answers an earlier request.
fn reply(record: &Record, seq: u32) -> Result<Option<Reply>, Failure> {
    let (of, reply) = Reply::decode(&record.bytes).map_err(Failure::Refused)?;
    let refused_unasked = of == 0 && matches!(reply, Reply::Failed(_));
    if of != seq && !refused_unasked {
        return Ok(None);
    }
    match reply {
        Reply::Failed(error) => Err(Failure::Refused(error)),
        _ if record.cut => {
            let what = "receiving a descriptor from the registry";
            Err(Failure::Refused(Error::system(what, Errno::MFILE)))
        }
        reply => Ok(Some(reply)),
    }
}

/// Where and as what to look for a registry.
#[derive(Clone)]
pub(crate) struct RegistryAddress {
    pub names: Names,
    pub table: Arc<Table>,
    pub role: Role,
    pub port: u16,
    /// Whether this process ends or forks just now.
    pub hurry: Arc<AtomicBool>,
}

impl RegistryAddress {
    /// Tells all members to look for their registry; their slots. Where the kernel lists no names,
    /// nobody is found.
    fn summon(&self) -> Vec<u16> {
        self.names.summon(|_| true).unwrap_or_default()
    }

    /// The patience for a host that may be at work.
    pub(crate) fn patience(&self, answer: Duration, by: Instant) -> Patience<'_> {
        Patience { answer, by, hurry: &self.hurry }
    }

    /// Connects to the registry that counts; a member hosts one, in `host`, where there is none or
    /// where its host does not answer. An observer calls the members then, that one of them does.
    ///
    /// It takes [`LIMIT`] at most, in which the time does not count that it waits for a host at
    /// work; and it ends at `by`.
    pub(crate) fn establish(
        &self,
        by: Instant,
        host: &mut Option<Host>,
    ) -> Result<Connection, Error> {
        let begun = Instant::now();
        let mut waited = Duration::ZERO;
        // There is time left then to follow on a host that never answers.
        let at_work_by = by.checked_sub(LIMIT).unwrap_or(by);
        // For an observer: the generation whose host does not answer.
        let mut deaf = None;
        while Instant::now() < by.min(begun + waited + LIMIT) {
            let deaf_until = begun + waited + ANSWER_WITHIN;
            // For an observer: members that lost their host have the next one by then, unless all
            // are stopped.
            let orphaned_until = deaf_until;
            if deaf.is_some() && self.names.highest() == deaf {
                wait(&[], None, Some(Instant::now() + FOLLOWING));
                continue;
            }
            let found = self.names.find().map_err(|e| Error::system("finding the registry", e))?;
            // The generation whose host stands still, if there is one.
            let stopped = match found {
                Some(found) if found.deaf && Instant::now() < deaf_until => {
                    wait(&[], None, Some(Instant::now() + STARTING));
                    continue;
                }
                Some(found) if found.deaf => Some(found.generation),
                Some(found) => {
                    let stopped = found.generation;
                    let link = Connection {
                        fd: found.fd,
                        generation: found.generation,
                        seq: AtomicU32::new(1),
                    };
                    let hello = Request::Hello { version: VERSION };
                    let (asked, patience) =
                        (Instant::now(), self.patience(ANSWER_WITHIN, at_work_by));
                    let outcome = link.exchange(&hello, &[], patience, host);
                    waited += match outcome {
                        Err(Failure::Silent) => asked.elapsed().saturating_sub(ANSWER_WITHIN),
                        _ => asked.elapsed(),
                    };
                    match outcome {
                        Ok(_) => return Ok(link),
                        Err(Failure::Refused(error)) => return Err(error),
                        Err(Failure::Gone) => continue,
                        Err(Failure::Silent) => Some(stopped),
                    }
                }
                None => None,
            };
            if self.role == Role::Observer {
                match stopped {
                    None => {
                        if Instant::now() >= orphaned_until || self.summon().is_empty() {
                            return Err(Error::NoRegistry);
                        }
                        wait(&[], None, Some(Instant::now() + FOLLOWING));
                    }
                    // The members find out that the host is stopped, and one of them follows on it.
                    Some(_) if deaf != stopped => {
                        deaf = stopped;
                        self.summon();
                    }
                    Some(_) => {}
                }
                continue;
            }
            if !has_memory() {
                if Instant::now() >= deaf_until {
                    return Err(Error::system("hosting the registry", Errno::NOMEM));
                }
                // Another process may be about to host it.
                wait(&[], None, Some(Instant::now() + FOLLOWING));
                continue;
            }
            let next = stopped.map_or(0, |stopped| stopped.saturating_add(1));
            match self.names.host(next).map_err(|e| Error::system("hosting the registry", e))? {
                Hosting::Ours { fd, generation } => {
                    let (names, table) = (self.names.clone(), self.table.clone());
                    let new = Host::new(fd, generation, stopped.is_none(), names, table, self.port);
                    *host = Some(new);
                }
                Hosting::Lost => {
                    // Its holder is between bind and listen, which has no event to wait for.
                    wait(&[], None, Some(Instant::now() + STARTING));
                }
            }
        }
        Err(Error::Timeout)
    }
}
