//! The client's thread: watches the connection, follows the registry when its host goes, and hosts
//! it when nobody else does.
//!
//! It sleeps in `poll`, has all signals blocked that the program may handle, and a small stack.
//! Calls run in their callers' threads; while the thread reconnects it holds the line busy and they
//! wait.

use crate::Error;
use crate::client::connection::{
    ANSWER_WITHIN, AT_WORK_LIMIT, Connection, Failure, Patience, wait,
};
use crate::client::host::Host;
use crate::client::line::{Kept, Line, Shared};
use crate::proto::{Request, VERSION};
use crate::server::CLAIM_JOINING;
use crate::system::pulse;
use engine_thread::Thread;
use rustix::event::PollFlags;
use rustix::net::RecvFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

const STACK: usize = 256 * 1024;
/// How long the host may take to answer a member that was called because it does not answer
/// somebody else.
const STILL_THERE_WITHIN: Duration = Duration::from_millis(250);
/// Calls at a deed that are taken in one turn.
const CALLS_A_TURN: usize = 32;
/// First and longest pause after a call at a deed. Anybody may call, and to answer costs more than
/// to call.
const CALLED: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// Pause after a failed attempt to reconnect.
const RETRY: Duration = Duration::from_millis(200);

/// Starts the thread, which goes on with `host`.
pub(crate) fn spawn(shared: Arc<Shared>, host: Option<Host>) -> std::io::Result<Thread> {
    engine_thread::spawn(pulse::HOST, STACK, move || run(&shared, host))
}

/// How long calls are left waiting: twice as long each time the next one came at once.
#[derive(Default)]
struct Calls(Option<(Instant, Duration)>);

impl Calls {
    /// Until when nobody listens for calls.
    fn deaf_until(&self) -> Option<Instant> {
        self.0.map(|(until, _)| until).filter(|until| *until > Instant::now())
    }

    /// A call was heeded.
    fn came(&mut self) {
        let now = Instant::now();
        let pause = match self.0 {
            Some((until, pause)) if now < until + pause => (pause * 2).min(CALLED.1),
            _ => CALLED.0,
        };
        self.0 = Some((now + pause, pause));
    }
}

fn run(shared: &Shared, mut host: Option<Host>) {
    let mut retry_at: Option<Instant> = None;
    let mut calls = Calls::default();
    loop {
        shared.fork_pause.stand_if_asked(&mut host);
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        let (link, deeds) = shared.watched();
        if link.is_none() && retry_at.is_none_or(|at| Instant::now() >= at) {
            retry_at = reconnect(shared, &mut host).err().map(|_| Instant::now() + RETRY);
            continue;
        }
        let mut watched: Vec<(BorrowedFd<'_>, PollFlags)> =
            vec![(shared.wake.as_fd(), PollFlags::IN)];
        if let Some(link) = &link {
            watched.push((link.fd.as_fd(), PollFlags::RDHUP));
        }
        let deaf_until = calls.deaf_until();
        if deaf_until.is_none() {
            watched.extend(deeds.iter().map(|deed| (deed.as_fd(), PollFlags::IN)));
        }
        let retry = if link.is_none() { retry_at } else { None };
        let until = retry.into_iter().chain(deaf_until).min();
        let (fired, ready) = wait(&watched, host.as_ref(), until);

        if fired[0] {
            let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
        }
        let has_link = usize::from(link.is_some());
        let mut lost = has_link == 1 && fired[1];
        let mut called = false;
        for (deed, _) in deeds.iter().zip(&fired[1 + has_link..]).filter(|(_, fired)| **fired) {
            // Anybody may send there, and without end.
            for _ in 0..CALLS_A_TURN {
                if rustix::net::recv(deed, &mut [0_u8; 16][..], RecvFlags::DONTWAIT).is_err() {
                    break;
                }
            }
            called = true;
        }
        if called {
            calls.came();
        }
        if called && let Some(link) = &link {
            lost |= shared.place.names.is_deposed(link.generation)
                || !shared.is_answered(link, &mut host);
        }
        // Who resigned for want of memory leaves it to others to host for a while.
        let mut pause = None;
        if host.as_mut().is_some_and(|h| !h.serve(&ready)) {
            pause = host.take().filter(Host::lacks_memory).map(|_| Instant::now() + RETRY);
            lost = true;
        }
        if lost {
            shared.drop_link(link.as_ref());
            retry_at = pause;
        }
    }
}

/// Connects and brings along everything this process had.
fn reconnect(shared: &Shared, host: &mut Option<Host>) -> Result<(), Error> {
    let mut line = shared.seize();
    let kept = line.kept.clone();
    drop(line);
    let by = Instant::now() + AT_WORK_LIMIT;
    let mut result = Err(Error::Timeout);
    let mut vault = None;
    while Instant::now() < by {
        let patience = shared.place.patience(ANSWER_WITHIN, by);
        result = match shared.place.establish(by, host) {
            Ok(link) => match kept.bring(&link, patience, host) {
                Ok(new) => {
                    vault = new.map(|fd| Arc::new(shared.place.table.keep(fd)));
                    Ok(link)
                }
                Err(Failure::Gone | Failure::Silent) => continue,
                Err(Failure::Refused(error)) => Err(error),
            },
            Err(error) => Err(error),
        };
        break;
    }
    line = shared.lock();
    let outcome = result.as_ref().map(drop).map_err(Clone::clone);
    match result {
        Ok(link) => {
            line.connection = Some(Arc::new(link));
            line.error = None;
            line.kept.vault = vault.or(line.kept.vault.take());
        }
        Err(error) => line.error = Some(error),
    }
    shared.release(line);
    outcome
}

impl Kept {
    /// Registers everything again with a new host, and returns that one's vault.
    fn bring(
        &self,
        link: &Connection,
        patience: Patience<'_>,
        host: &mut Option<Host>,
    ) -> Result<Option<OwnedFd>, Failure> {
        let mut vault = None;
        let mut ask = |request: Request, fds: &[BorrowedFd<'_>]| {
            match link.exchange(&request, fds, patience, host) {
                Ok((_, fds)) => Ok(fds.into_iter().next()),
                // Somebody was faster with this name; the rest can still be had.
                Err(Failure::Refused(Error::Taken | Error::Unknown)) => Ok(None),
                Err(failure) => Err(failure),
            }
        };
        for (slot, member) in &self.members {
            let fds = [
                Some(&member.directory),
                member.v4.as_ref(),
                member.v6.as_ref(),
                self.vault.as_deref(),
            ];
            let fds: Vec<BorrowedFd<'_>> = fds.into_iter().flatten().map(|f| f.as_fd()).collect();
            let request = Request::Rejoin {
                slot: *slot,
                joined_at: member.joined_at,
                v4: member.v4.is_some(),
                v6: member.v6.is_some(),
                who: member.who.clone(),
            };
            vault = ask(request, &fds)?.or(vault);
        }
        for (id, fd) in &self.published {
            ask(Request::Publish { id: id.clone() }, &[fd.as_fd()])?;
        }
        // Who joins a group has to begin again: others may have joined since the host before ended.
        let lasting = self.claims.iter().filter(|((kind, _), _)| *kind != CLAIM_JOINING);
        for ((kind, key), slot) in lasting {
            ask(Request::Claim { kind: *kind, key: *key, slot: *slot }, &[])?;
        }
        Ok(vault)
    }
}

impl Shared {
    /// Takes the line for the worker: no link, nobody calling.
    fn seize(&self) -> MutexGuard<'_, Line> {
        let mut line = self.lock();
        if let Some(link) = line.connection.take() {
            link.cut();
        }
        while line.busy {
            line = engine_thread::wait(&self.changed, line);
        }
        line.busy = true;
        line
    }

    /// Whether the registry's host still answers. A call under way finds out by itself.
    fn is_answered(&self, link: &Arc<Connection>, host: &mut Option<Host>) -> bool {
        let mut line = self.lock();
        if line.busy {
            return true;
        }
        line.busy = true;
        drop(line);
        let hello = Request::Hello { version: VERSION };
        // Calls wait meanwhile, and find out for themselves whether it is at work.
        let by = Instant::now() + ANSWER_WITHIN;
        let patience = self.place.patience(STILL_THERE_WITHIN, by);
        let outcome = link.exchange(&hello, &[], patience, host);
        self.release(self.lock());
        !matches!(outcome, Err(Failure::Gone | Failure::Silent))
    }

    fn drop_link(&self, link: Option<&Arc<Connection>>) {
        let mut line = self.lock();
        if let (Some(now), Some(then)) = (&line.connection, link)
            && Arc::ptr_eq(now, then)
        {
            now.cut();
            line.connection = None;
        }
    }
}
