//! Waiting for a child as a transparent launcher does: signals sent to the launcher reach the
//! child, job control works, and the launcher ends the way the child ended. All signal handling of
//! the program is here.
//!
//! The child stays in the launcher's process group, so the terminal reaches both with Ctrl-C and
//! the like; those signals come from the kernel and are not passed on a second time. Signals sent
//! by a process are.
#![allow(unsafe_code, reason = "signals and children are waited for by the C library's calls")]

use crate::surroundings::session::Note;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// How a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It exited with this status.
    Exited(u8),
    /// This signal ended it.
    Signalled(i32),
}

/// Signals that are passed on.
const PASSED: [i32; 12] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGALRM,
    libc::SIGIO,
    libc::SIGPWR,
];

/// The signals above and SIGCHLD, held back from the thread from `begin` on.
pub struct Supervisor {
    watched: libc::sigset_t,
    before: libc::sigset_t,
}

impl Supervisor {
    /// Holds the signals back; call before other threads exist, which inherit the mask.
    pub fn begin() -> io::Result<Supervisor> {
        // SAFETY: the sets are initialised by sigemptyset and filled by sigaddset with valid
        // signals; pthread_sigmask writes the old mask.
        unsafe {
            let mut watched = MaybeUninit::uninit();
            libc::sigemptyset(watched.as_mut_ptr());
            let mut watched = watched.assume_init();
            for signal in PASSED.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut watched, signal);
            }
            let mut before = watched;
            match libc::pthread_sigmask(libc::SIG_BLOCK, &watched, &mut before) {
                0 => Ok(Supervisor { watched, before }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Starts the child with the signal mask that the launcher had, and with its pid noted.
    pub fn spawn(&self, command: &mut Command, note: Note) -> io::Result<Child> {
        let mask = self.before;
        let note = Arc::new(note);
        let in_child = note.clone();
        // SAFETY: between fork and exec only system calls run, on copies made before the fork;
        // nothing allocates.
        unsafe {
            command.pre_exec(move || {
                in_child.own()?;
                match libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut()) {
                    0 => Ok(()),
                    error => Err(io::Error::from_raw_os_error(error)),
                }
            });
        }
        let child = command.spawn()?;
        note.complete(child.id());
        Ok(child)
    }

    /// Waits for a signal that asks for the end.
    pub fn wait_for_end(&self) {
        const ENDS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
        loop {
            // SAFETY: the set is initialised; nobody wants to know who sent the signal.
            let signal = unsafe { libc::sigwaitinfo(&self.watched, std::ptr::null_mut()) };
            if ENDS.contains(&signal) {
                return;
            }
        }
    }

    /// Passes signals on until the child has ended.
    pub fn wait(&self, child: &mut Child) -> io::Result<End> {
        let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
        loop {
            if let Some(end) = look(pid)? {
                return Ok(end);
            }
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: the set is initialised and `info` is written on success.
            let signal = unsafe { libc::sigwaitinfo(&self.watched, info.as_mut_ptr()) };
            if signal < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            // SAFETY: zeroed, then written by the successful call.
            let from_kernel = unsafe { info.assume_init() }.si_code > 0;
            if signal != libc::SIGCHLD && !from_kernel {
                // SAFETY: the child is ours and not reaped yet, so the pid is its own.
                unsafe { libc::kill(pid, signal) };
            }
        }
    }
}

/// Looks at the child without waiting: its end, or nothing yet. When it stopped by job control, so
/// does the launcher.
fn look(pid: libc::pid_t) -> io::Result<Option<End>> {
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::WUNTRACED) } {
            0 => return Ok(None),
            found if found == pid => {
                if libc::WIFEXITED(status) {
                    return Ok(Some(End::Exited(libc::WEXITSTATUS(status) as u8)));
                }
                if libc::WIFSIGNALED(status) {
                    return Ok(Some(End::Signalled(libc::WTERMSIG(status))));
                }
                // A plain SIGSTOP is somebody's doing to the child alone (a debugger, a test): who
                // continues it does not know of the launcher.
                if libc::WIFSTOPPED(status)
                    && matches!(
                        libc::WSTOPSIG(status),
                        libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU
                    )
                {
                    // SAFETY: stopping oneself and continuing one's own child.
                    unsafe {
                        libc::raise(libc::SIGSTOP);
                        libc::kill(pid, libc::SIGCONT);
                    }
                }
            }
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// The signals that ask a command to stop, held back so that it can clean up first.
pub struct Interrupts {
    set: libc::sigset_t,
}

impl Interrupts {
    /// Holds them back; call before other threads exist. Children started by `std` have them
    /// unblocked again.
    pub fn begin() -> io::Result<Interrupts> {
        // SAFETY: the set is initialised by sigemptyset and filled with valid signals.
        unsafe {
            let mut set = MaybeUninit::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
                0 => Ok(Interrupts { set }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Sends each arriving signal, as an event, from a thread of its own.
    pub fn report_to<E: Send + 'static>(self, events: Sender<E>, event: fn(i32) -> E) {
        std::thread::spawn(move || {
            let mut signal = 0;
            // SAFETY: the set is initialised and `signal` is written on success.
            while unsafe { libc::sigwait(&self.set, &mut signal) } == 0 {
                if events.send(event(signal)).is_err() {
                    break;
                }
            }
        });
    }
}

/// Ends the launcher as the child ended.
pub fn end_like(end: End) -> ! {
    if let End::Signalled(signal) = end {
        // SAFETY: plain calls on this process; no other thread depends on the disposition. The
        // child has dumped core if that was wanted; a second one of the launcher would only
        // mislead.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::signal(signal, libc::SIG_DFL);
            let mut set = MaybeUninit::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), signal);
            libc::raise(signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
        }
        // A signal whose default is to go on, or one that this process may not take.
        std::process::exit(128 + signal);
    }
    let End::Exited(status) = end else { unreachable!("both kinds are handled") };
    std::process::exit(status.into())
}
