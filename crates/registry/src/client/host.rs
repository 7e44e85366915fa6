//! The hosting side of the transport: accepts connections of this user's processes and carries
//! requests to the [`Server`] and replies back.
//!
//! Nothing here blocks: a connection whose reply does not fit its socket buffer is read no further
//! until it does, so a peer that stops reading holds up nobody and at most one reply; a peer that
//! breaks the protocol is dropped. What a host holds grows with the user's processes, so a process
//! whose memory runs out leaves hosting to another.

use crate::Error;
use crate::fds::{Fd, Table};
use crate::proto::{Reply, Request};
use crate::server::{Answer, ConnId, Server};
use crate::system::Linux;
use crate::system::names::Names;
use crate::system::record::{self, Record};
use crate::system::sys;
use engine_thread::has_memory;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections at a time; more are closed at once.
const MAX_CONNS: usize = 2048;
/// Requests of one connection in a turn, and connections taken.
const BATCH: usize = 16;
/// Connections of strangers that are closed in a turn: as many as wait at most. Who is not let in
/// tries again every millisecond ([`crate::client::connection`]), in which a crowd does not take
/// all these places again.
const STRANGERS: usize = crate::system::names::BACKLOG as usize;
/// How long the members of a host that ended have to come back before the steering changes without
/// them.
const RETURN_WITHIN: Duration = Duration::from_secs(1);
/// How often those that are awaited are looked at.
const REVIEW: Duration = Duration::from_millis(10);
/// How long after its start a host lets requests wait whose answer those may change who come back
/// from the host before: well within what a caller allows for the answer
/// ([`crate::client::connection::ANSWER_WITHIN`]).
const EARLY: Duration = Duration::from_millis(300);
/// How long a burst of requests may put off finding out an uncertain order.
const SETTLE_WITHIN: Duration = Duration::from_millis(20);
/// First and longest pause between experiments while sockets of unknown owners are in the group:
/// short at first, since a killed process closes its descriptors one by one, long for one that is
/// stopped.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));

struct Conn {
    fd: Fd,
    pending: Option<(Vec<u8>, Vec<Arc<Fd>>)>,
    /// A request that waits for those who come back from the host before.
    held: Option<Record>,
}

/// The wait for the members of the host before.
struct Return {
    /// When the steering changes without them.
    by: Instant,
    /// When to see next whether they still exist.
    review_at: Instant,
}

/// How often a host sees whether it has been deposed: only one that gave no answer for longer is.
const POSITION: Duration = Duration::from_millis(100);
/// First and longest pause after a turn in which only strangers connected.
const ALOOF: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// What a poll found ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ready {
    Listener,
    Conn(ConnId),
}

/// A registry hosted by this process.
pub(crate) struct Host {
    listener: Fd,
    generation: u64,
    names: Names,
    table: Arc<Table>,
    server: Server<Linux>,
    conns: BTreeMap<ConnId, Conn>,
    next_conn: ConnId,
    /// When a request made the order of the group uncertain, until it is settled.
    unsettled_since: Option<Instant>,
    retry_at: Option<Instant>,
    pause: Duration,
    /// When to see next whether members that went have ended, and the pause after that.
    missing: Option<(Instant, Duration)>,
    awaits: Option<Return>,
    /// Until when requests may be held.
    early_until: Instant,
    /// When it was last seen that no higher generation exists.
    reviewed_at: Instant,
    /// While only strangers connect: until when nobody is let in, and for how long after that.
    strangers: Option<(Instant, Duration)>,
    lacks_memory: bool,
}

impl Host {
    /// `ended` tells that no host before stands still.
    pub(crate) fn new(
        listener: Fd,
        generation: u64,
        ended: bool,
        names: Names,
        table: Arc<Table>,
        port: u16,
    ) -> Self {
        let mut server = Server::new(Linux::new(names.clone(), table.clone(), port));
        // The processes of a stopped host see no end of their connection; they are called here.
        server.follow(ended);
        let now = Instant::now();
        let awaits = server
            .is_awaiting()
            .then(|| Return { by: now + RETURN_WITHIN, review_at: now + REVIEW });
        Host {
            listener,
            generation,
            names,
            table,
            server,
            conns: BTreeMap::new(),
            next_conn: 0,
            unsettled_since: None,
            retry_at: None,
            pause: RETRY.0,
            missing: None,
            awaits,
            early_until: now + EARLY,
            reviewed_at: now,
            strangers: None,
            lacks_memory: false,
        }
    }

    /// What to poll for.
    pub(crate) fn interest(&self) -> impl Iterator<Item = (Ready, BorrowedFd<'_>, PollFlags)> {
        let conns = self.conns.iter().map(|(id, conn)| {
            let flags = match conn {
                Conn { held: Some(_), .. } => PollFlags::empty(),
                Conn { pending: Some(_), .. } => PollFlags::OUT,
                _ => PollFlags::IN,
            };
            (Ready::Conn(*id), conn.fd.as_fd(), flags)
        });
        let open = self.strangers.is_none_or(|(until, _)| Instant::now() >= until);
        let listener = (Ready::Listener, self.listener.as_fd(), PollFlags::IN);
        open.then_some(listener).into_iter().chain(conns)
    }

    /// When to call [`Host::serve`] although nothing is ready.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let review = self.awaits.as_ref().map(|awaits| awaits.review_at);
        let settle = review.or(self.unsettled_since).or(self.retry_at);
        let held = self.conns.values().any(|conn| conn.held.is_some()).then_some(self.early_until);
        let strangers = self.strangers.map(|(until, _)| until).filter(|at| *at > Instant::now());
        let missing = self.missing.map(|(at, _)| at);
        settle.into_iter().chain(held).chain(missing).chain(strangers).min()
    }

    /// Whether it ended for want of memory: then another process had better follow on it.
    pub(crate) fn lacks_memory(&self) -> bool {
        self.lacks_memory || self.server.lacks_memory()
    }

    /// Serves what is ready. False when this registry has been deposed, or cannot go on without
    /// memory, and is to be dropped.
    pub(crate) fn serve(&mut self, ready: &[Ready]) -> bool {
        let now = Instant::now();
        self.lacks_memory = !has_memory();
        if self.lacks_memory {
            return false;
        }
        if now >= self.reviewed_at + POSITION {
            self.reviewed_at = now;
            if self.names.is_deposed(self.generation) {
                return false;
            }
        }
        for item in ready {
            match item {
                Ready::Listener => self.accept(),
                // While a request is held, its connection is watched for its end only.
                Ready::Conn(id) if self.is_held(*id) => self.end(*id),
                Ready::Conn(id) => self.turn(*id),
            }
        }
        if self.lacks_memory() {
            return false;
        }
        self.review_missing(now);
        let awaits = self.still_awaits(now);
        self.answer_held();
        if awaits {
            return true;
        }
        if self.server.is_settled() {
            self.unsettled_since = None;
            self.retry_at = None;
            return true;
        }
        if self.server.is_stale() {
            self.unsettled_since.get_or_insert(now);
        } else {
            self.unsettled_since = None;
        }
        if let Some(since) = self.unsettled_since {
            if ready.is_empty() || now.duration_since(since) > SETTLE_WITHIN {
                self.pause = RETRY.0;
                self.settle(now);
            }
        } else if self.retry_at.is_none_or(|at| now >= at) {
            self.pause = (self.pause * 2).min(RETRY.1);
            self.settle(now);
        }
        true
    }

    /// Looks at times whether members that went have ended.
    fn review_missing(&mut self, now: Instant) {
        let (at, pause) = *self.missing.get_or_insert((now + RETRY.0, RETRY.0));
        if now >= at {
            self.server.review_missing();
            let pause = (pause * 2).min(RETRY.1);
            self.missing = Some((now + pause, pause));
        }
        if !self.server.has_missing() {
            self.missing = None;
        }
    }

    /// Looks after the members of the host before; true as long as the steering is to stay as it
    /// is.
    fn still_awaits(&mut self, now: Instant) -> bool {
        let Some(awaits) = &mut self.awaits else { return false };
        self.server.review_awaited();
        awaits.review_at = now + REVIEW;
        let still = self.server.is_awaiting() && now < awaits.by;
        if !still {
            self.awaits = None;
            self.server.stop_awaiting();
        }
        still
    }

    /// Answers what was held and need not wait any more.
    fn answer_held(&mut self) {
        let is_due = |conn: &Conn| {
            conn.held.as_ref().is_some_and(|held| !is_early(&self.server, self.early_until, held))
        };
        let due = self.conns.iter().filter(|(_, conn)| is_due(conn));
        let due: Vec<ConnId> = due.map(|(id, _)| *id).collect();
        for id in due {
            self.turn(id);
        }
    }

    fn settle(&mut self, now: Instant) {
        // A failure leaves the old program in place; the next change tries again.
        let _ = self.server.settle();
        self.unsettled_since = None;
        self.retry_at = (!self.server.is_settled()).then_some(now + self.pause);
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (mut own, mut strangers) = (0, 0);
        while own < BATCH && strangers < STRANGERS {
            let Ok(fd) = rustix::net::accept_with(&self.listener, flags) else { break };
            let fd = self.table.keep(fd);
            let peer = sys::peer(&fd).ok().filter(|(_, uid)| *uid == self.names.uid());
            let Some((pid, uid)) = peer else {
                strangers += 1;
                continue;
            };
            own += 1;
            if self.conns.len() >= MAX_CONNS {
                continue;
            }
            let id = self.next_conn;
            self.next_conn += 1;
            self.server.connected(id, pid, uid);
            self.conns.insert(id, Conn { fd, pending: None, held: None });
        }
        self.strangers = (strangers > 0 && own == 0).then(|| {
            let pause = self.strangers.map_or(ALOOF.0, |(_, pause)| (pause * 2).min(ALOOF.1));
            (Instant::now() + pause, pause)
        });
    }

    fn turn(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let mut keep = flush(conn);
        for _ in 0..BATCH {
            if !keep || conn.pending.is_some() || !has_memory() {
                break;
            }
            match conn.held.take().map_or_else(|| record::receive(&conn.fd), |held| Ok(Some(held)))
            {
                Ok(Some(record)) if is_early(&self.server, self.early_until, &record) => {
                    conn.held = Some(record);
                    break;
                }
                Ok(Some(record)) => {
                    keep = match answer(&mut self.server, &self.table, id, record) {
                        // It asks the next host.
                        Some(_) if self.server.lacks_memory() => false,
                        Some((bytes, fds)) => {
                            conn.pending = Some((bytes, fds));
                            flush(conn)
                        }
                        None => false,
                    };
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => keep = false,
            }
        }
        if !keep {
            self.end(id);
        }
    }

    fn end(&mut self, id: ConnId) {
        self.conns.remove(&id);
        self.server.closed(id);
    }

    fn is_held(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(|conn| conn.held.is_some())
    }
}

fn is_early(server: &Server<Linux>, until: Instant, record: &Record) -> bool {
    Instant::now() < until
        && Request::decode(&record.bytes).is_ok_and(|(_, request)| server.is_early(&request))
}

fn answer(
    server: &mut Server<Linux>,
    table: &Arc<Table>,
    id: ConnId,
    record: Record,
) -> Option<(Vec<u8>, Vec<Arc<Fd>>)> {
    let (seq, request) = Request::decode(&record.bytes).ok()?;
    let (reply, fds): Answer<Arc<Fd>> = if record.cut {
        let what = "handing a descriptor to the process that hosts the registry".to_owned();
        (Reply::Failed(Error::System { what, errno: libc::EMFILE }), Vec::new())
    } else {
        let fds = record.fds.into_iter().map(|fd| Arc::new(table.keep(fd))).collect();
        server.handle(id, request, fds)
    };
    Some((reply.encode(seq), fds))
}

/// Sends the pending reply if it fits; false when the connection is broken.
fn flush(conn: &mut Conn) -> bool {
    let Some((bytes, fds)) = &conn.pending else { return true };
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
    match record::send(&conn.fd, bytes, &borrowed) {
        Ok(()) => {
            conn.pending = None;
            true
        }
        Err(Errno::AGAIN | Errno::INTR) => true,
        Err(_) => false,
    }
}
