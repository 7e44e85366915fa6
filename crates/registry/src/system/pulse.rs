//! Whether the thread that hosts a registry is at work though it gives no answer: on a machine with
//! many more programs than processors it may come to that late, and who takes its place then makes
//! it later for all.
//!
//! A thread that runs or wants to is at work, and so is one that has run since it was looked at
//! last. One that is stopped, held by a debugger, frozen or waiting for ever is not; nor is one
//! that cannot be seen from here, as in another PID namespace.

use super::sys;
use std::ffi::CStr;
use std::os::fd::AsFd;

/// The thread that hosts, by its name.
pub(crate) const HOST: &CStr = c"peerdma-reg";

/// What was seen of a host.
pub(crate) struct Pulse {
    /// Its thread's folder in /proc, if it is seen.
    thread: Option<String>,
    /// What `schedstat` said there: time on a processor and what else changes when it runs.
    ran: Option<String>,
}

impl Pulse {
    /// Looks for the host at the other end of a connection.
    pub(crate) fn of(connection: impl AsFd) -> Pulse {
        let process = sys::peer(connection).map_or(0, |(pid, _)| pid);
        let is_shown = shm::Processes::seen().is_ok();
        Pulse::at(if is_shown { thread_of(process) } else { None })
    }

    fn at(thread: Option<String>) -> Pulse {
        let ran = thread.as_deref().and_then(ran);
        Pulse { thread, ran }
    }

    /// Whether it is at work.
    pub(crate) fn beats(&self) -> bool {
        let Some(thread) = self.thread.as_deref() else { return false };
        let has_run = self.ran.as_ref().zip(ran(thread)).is_some_and(|(then, now)| *then != now);
        has_run || wants_to_run(thread)
    }
}

/// The folder of the thread of this process that hosts.
fn thread_of(process: i32) -> Option<String> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let is_host = |folder: &String| {
        let name = std::fs::read_to_string(format!("{folder}/comm"));
        name.is_ok_and(|name| name.trim_end().as_bytes() == HOST.to_bytes())
    };
    let folder = |entry: std::fs::DirEntry| entry.path().into_os_string().into_string().ok();
    threads.flatten().filter_map(folder).find(is_host)
}

fn ran(thread: &str) -> Option<String> {
    std::fs::read_to_string(format!("{thread}/schedstat")).ok()
}

/// Whether its state is R: behind the name in parentheses, which may hold any character.
fn wants_to_run(thread: &str) -> bool {
    let stat = std::fs::read_to_string(format!("{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::mpsc::channel;

    #[test]
    fn a_thread_that_works_is_told_from_one_that_does_not() {
        let (works, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            let host = scope.spawn(|| {
                let thread = rustix::thread::gettid();
                tell.send(format!("/proc/self/task/{thread}")).unwrap();
                while !ends.load(Relaxed) {
                    if !works.load(Relaxed) {
                        std::thread::park();
                    }
                }
            });
            let thread = told.recv().unwrap();
            let look = || Pulse::at(Some(thread.clone()));
            let rests = (0..1_000_000).any(|_| !look().beats());
            works.store(true, Relaxed);
            let before = look();
            host.thread().unpark();
            let awakes = (0..1_000_000).any(|_| before.beats());
            ends.store(true, Relaxed);
            host.thread().unpark();
            assert!(rests && awakes, "rests {rests}, works {awakes}");
        });
    }

    #[test]
    fn a_host_is_found_by_its_connection() {
        let (here, _there) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let (tell, told) = channel::<()>();
            let host = std::thread::Builder::new().name(HOST.to_str().unwrap().to_owned());
            let host = host.spawn_scoped(scope, move || told.recv());
            // It gives itself its name.
            while Pulse::of(&here).thread.is_none() {
                std::thread::yield_now();
            }
            drop(tell);
            drop(host.unwrap().join());
        });
        assert!(thread_of(0).is_none());
    }
}
