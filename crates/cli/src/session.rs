//! The private folder of one run: made at its start, removed at its end, and swept by a later run when the end never came.
//!
//! All folders of a user lie in one base folder. A run holds a file lock in its folder while it lives; the kernel drops
//! the lock however the run ends. Who finds a folder whose lock is free, and whose program has ended too (it may outlive a
//! launcher that was killed), removes it. Making and sweeping happen under one lock of the base folder, so no folder is
//! swept before it is locked.

use crate::embedded::private_folder;
use crate::failure::{Context, Failure, Outcome};
use rustix::fs::FlockOperation;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// File that a live run keeps locked.
const LOCK: &str = "lock";
/// File that names the program's process: its pid and start time.
const PROGRAM: &str = "program";

/// A private folder; dropped, it is gone.
#[derive(Debug)]
pub struct Session {
    path: PathBuf,
    _lock: File,
}

impl Session {
    /// Makes a folder and sweeps what dead runs left.
    pub fn begin() -> Outcome<Session> {
        let bases = bases();
        let mut reasons = Vec::new();
        for base in &bases {
            match Session::begin_in(base) {
                Ok(session) => return Ok(session),
                Err(error) => reasons.push(format!("{}: {error}", base.display())),
            }
        }
        let failure = Failure::new("there is no place for temporary files");
        let failure = reasons.into_iter().fold(failure, Failure::because);
        Err(failure.remedy("set TMPDIR to a folder that this user may write"))
    }

    fn begin_in(base: &Path) -> io::Result<Session> {
        let _base_lock = lock_base(base)?;
        sweep(base);
        let (path, lock) = make(base)?;
        Ok(Session { path, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that will name the program, for the sweep of a run whose launcher was killed.
    pub fn note(&self) -> Outcome<Note> {
        let path = self.path.join(PROGRAM);
        let file = File::create_new(&path).what(format_args!("cannot write {}", path.display()))?;
        Ok(Note { file })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // What cannot be removed now is swept by a later run.
        drop(fs::remove_dir_all(&self.path));
        if let Some(base) = self.path.parent() {
            drop(remove_if_unused(base));
        }
    }
}

/// Names the program: its pid, by itself before it starts, then also its start time, by the launcher.
pub struct Note {
    file: File,
}

impl Note {
    /// In the new process: notes its pid. Only system calls, so it may run between fork and exec.
    pub fn own(&self) -> io::Result<()> {
        let mut digits = [0; 10];
        let mut place = digits.len();
        let mut rest = rustix::process::getpid().as_raw_pid().unsigned_abs();
        while rest > 0 && place > 0 {
            place -= 1;
            digits[place] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        self.file.write_all_at(&digits[place..], 0)
    }

    /// In the launcher: adds the start time, which with the pid names one process for ever.
    pub fn complete(&self, pid: u32) {
        if let Some(start) = start_time(pid) {
            // The pid alone serves as well until it is used again.
            drop(self.file.write_all_at(format!("{pid} {start}").as_bytes(), 0));
        }
    }
}

/// Makes the base folder and takes its lock, which orders making, sweeping and removing.
fn lock_base(base: &Path) -> io::Result<File> {
    // A run that ends may remove the folder between any two steps; each try is lost to a run that made progress.
    let mut tries = 1000;
    loop {
        tries -= 1;
        let lock = match private_folder(base).and_then(|()| lock_file(&base.join(LOCK))) {
            Err(error) if tries > 0 && lost(&error) => continue,
            other => other?,
        };
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        // While we waited, its holder may have removed the file: then it orders nothing any more.
        let current = fs::metadata(base.join(LOCK)).map(|metadata| metadata.ino());
        if current.is_ok_and(|inode| lock.metadata().is_ok_and(|metadata| metadata.ino() == inode))
        {
            return Ok(lock);
        }
    }
}

/// Whether another run made or removed the folder between a look and a step.
fn lost(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists)
}

/// Removes the base folder when no run is left in it.
fn remove_if_unused(base: &Path) -> io::Result<()> {
    let _lock = lock_base(base)?;
    let others = fs::read_dir(base)?.flatten().any(|entry| entry.file_name() != LOCK);
    if !others {
        fs::remove_file(base.join(LOCK))?;
        fs::remove_dir(base)?;
    }
    Ok(())
}

/// Where the folders may lie, best first.
fn bases() -> Vec<PathBuf> {
    let name = format!("peerdma-{}", rustix::process::geteuid().as_raw());
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    [Some(std::env::temp_dir()), Some("/tmp".into()), runtime, Some("/dev/shm".into())]
        .into_iter()
        .flatten()
        .map(|folder| folder.join(&name))
        .collect()
}

fn lock_file(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).open(path)
}

fn make(base: &Path) -> io::Result<(PathBuf, File)> {
    let pid = std::process::id();
    for number in 0_u32.. {
        let path = base.join(format!("{pid}-{number}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        }
        let lock = lock_file(&path.join(LOCK))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        return Ok((path, lock));
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

/// Removes the folders of dead runs. The caller holds the base lock.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && dead(&path) {
            // Another user's leftovers cannot be here; what resists is tried again next time.
            drop(fs::remove_dir_all(&path));
        }
    }
}

fn dead(path: &Path) -> bool {
    let unlocked = match File::open(path.join(LOCK)) {
        Ok(lock) => rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
        // Made under the base lock, a folder without a lock file is one whose making was cut short.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    unlocked && !program_lives(&fs::read_to_string(path.join(PROGRAM)).unwrap_or_default())
}

/// Whether the process that a note names is still there.
fn program_lives(note: &str) -> bool {
    let (pid, start) = note.split_once(' ').unwrap_or((note, ""));
    let Some(found) = pid.parse().ok().and_then(start_time) else { return false };
    start.is_empty() || start.parse() == Ok(found)
}

/// When a process started, in clock ticks since boot (`/proc/PID/stat`, field 22): with the pid it names one process.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the command in parentheses, may hold spaces; the third follows the last parenthesis.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("peerdma-session-test-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_live_folder_survives_a_sweep_and_a_dead_one_does_not() {
        let base = base("sweep");
        let live = Session::begin_in(&base).unwrap();
        let dead = base.join("1-0");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(LOCK), "").unwrap();
        fs::write(dead.join("content"), "x").unwrap();
        let other = Session::begin_in(&base).unwrap();
        assert!(!dead.exists());
        assert!(live.path().exists() && other.path() != live.path());
        let path = live.path().to_owned();
        drop(live);
        assert!(!path.exists());
        drop(other);
        assert!(!base.exists(), "the last run leaves nothing");
    }

    #[test]
    fn many_at_once_get_folders_of_their_own_and_leave_nothing() {
        let base = base("many");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let session = Session::begin_in(&base).unwrap();
                        fs::write(session.path().join("mine"), "x").unwrap();
                        assert!(session.path().join(LOCK).exists());
                    }
                });
            }
        });
        assert!(!base.exists());
    }

    #[test]
    fn a_folder_whose_program_lives_survives_its_launcher() {
        let base = base("orphan");
        let session = Session::begin_in(&base).unwrap();
        let path = session.path().to_owned();
        // The lock goes, the folder stays: a launcher that was killed.
        let Session { path: _, _lock } = &session;
        rustix::fs::flock(_lock, FlockOperation::Unlock).unwrap();
        assert!(dead(&path), "no program was started");
        let note = session.note().unwrap();
        note.own().unwrap();
        assert!(!dead(&path), "our own process is alive");
        note.complete(std::process::id());
        assert!(!dead(&path), "our own process is still alive");
        fs::write(path.join(PROGRAM), "1 999999999999").unwrap();
        assert!(dead(&path), "pid 1 of another start time is another process");
        drop(session);
        assert!(!base.exists());
    }
}
