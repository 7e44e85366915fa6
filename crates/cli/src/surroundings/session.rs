//! The private folder of one run: made at its start, removed at its end, and swept by a later run
//! when the end never came.
//!
//! All folders of a user lie in one base folder, in memory where there is room: a run writes
//! hundreds of small files, which takes a disk's file system a second and memory some milliseconds.
//! A run holds a file lock in its folder while it lives; the kernel drops the lock however the run
//! ends. Who finds a folder whose lock is free, and whose program has ended too (it may outlive a
//! launcher that was killed), removes it. Making and sweeping happen under one lock of the base
//! folder, so no folder is swept before it is locked. Every place where an earlier run may have
//! made its folder is swept.

use super::embedded::private_folder;
use crate::console::failure::{Context, Failure, Outcome};
use rustix::fs::{FlockOperation, StatVfsMountFlags};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// File that a live run keeps locked.
const LOCK: &str = "lock";
/// File that names the program's process: its pid and start time.
const PROGRAM: &str = "program";
/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
/// What a file system in memory must have free to be preferred: a run takes two MiB, and others
/// need theirs (containers have 64 MiB of /dev/shm by default).
const ROOM_BYTES: u64 = 65 << 20;
/// Names that the base folder may have in one place. A second one is taken where somebody else has
/// the first: another user, or root where this user is called root in a user namespace.
const NAMES: u32 = 4;

/// A private folder; dropped, it is gone.
#[derive(Debug)]
pub struct Session {
    path: PathBuf,
    _lock: File,
}

impl Session {
    /// Makes a folder and sweeps what dead runs left; with `executable`, where programs may be
    /// loaded from.
    pub fn begin(executable: bool) -> Outcome<Session> {
        let mut reasons = Vec::new();
        for place in places() {
            if executable && is_noexec(&place) {
                reasons.push(format!("{} is mounted noexec", place.display()));
                continue;
            }
            match Session::begin_at(&place) {
                Ok(session) => {
                    session.sweep_elsewhere();
                    return Ok(session);
                }
                Err(error) => reasons.push(format!("{}: {error}", place.display())),
            }
        }
        let failure = Failure::new("there is no place for temporary files");
        let failure = reasons.into_iter().fold(failure, Failure::because);
        let noexec = if executable { " on a file system that is not mounted noexec" } else { "" };
        Err(failure.remedy(format_args!("set TMPDIR to a folder that this user may write{noexec}")))
    }

    /// Makes one below `place`, in the first base folder that can be ours.
    fn begin_at(place: &Path) -> io::Result<Session> {
        let mut first = None;
        for base in bases_in(place) {
            match Session::begin_in(&base) {
                Ok(session) => return Ok(session),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn sweep_elsewhere(&self) {
        let own = self.path.parent();
        for base in places().iter().flat_map(|place| bases_in(place)) {
            if own != Some(&base) && base.is_dir() {
                // Another user's, or in use: whose it is tries again.
                drop(tidy(&base));
            }
        }
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
        let Some(base) = self.path.parent() else { return };
        // Under the base lock: a run that begins would take a half removed folder for a dead one,
        // and its name for free. What cannot be removed now is swept by a later run.
        drop(lock_base(base).and_then(|_lock| {
            fs::remove_dir_all(&self.path)?;
            remove_if_unused(base)
        }));
    }
}

/// Names the program: its pid, by itself before it starts, then also its start time, by the
/// launcher.
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
    // A run that ends may remove the folder between any two steps; each try is lost to a run that
    // made progress.
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

/// Sweeps a base folder, and removes it when no run is left in it.
fn tidy(base: &Path) -> io::Result<()> {
    let _lock = lock_base(base)?;
    sweep(base);
    remove_if_unused(base)
}

/// Removes the base folder when no run is left in it. The caller holds its lock.
fn remove_if_unused(base: &Path) -> io::Result<()> {
    let others = fs::read_dir(base)?.flatten().any(|entry| entry.file_name() != LOCK);
    if !others {
        fs::remove_file(base.join(LOCK))?;
        fs::remove_dir(base)?;
    }
    Ok(())
}

/// Where the base folder may lie, best first: where the user wants it, in memory, elsewhere. /tmp
/// comes before places that are emptied when the user logs out, for a program may go on.
fn places() -> Vec<PathBuf> {
    let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let usual: Vec<PathBuf> =
        [Some("/tmp".into()), named("XDG_RUNTIME_DIR"), Some("/dev/shm".into())]
            .into_iter()
            .flatten()
            .collect();
    let in_memory = usual.iter().filter(|place| is_roomy_memory(place));
    let mut places = Vec::new();
    for place in named("TMPDIR").iter().chain(in_memory).chain(&usual) {
        // A missing folder is not ours to make.
        if !places.contains(place) && place.is_dir() {
            places.push(place.clone());
        }
    }
    places
}

fn bases_in(place: &Path) -> impl Iterator<Item = PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    (0..NAMES).map(move |number| match number {
        0 => place.join(format!("peerdma-{user}")),
        _ => place.join(format!("peerdma-{user}.{number}")),
    })
}

fn is_roomy_memory(place: &Path) -> bool {
    rustix::fs::statfs(place).is_ok_and(|fs| {
        // Without blocks there is no limit.
        let free = fs.f_bavail.saturating_mul(fs.f_bsize as u64);
        fs.f_type == TMPFS && (fs.f_blocks == 0 || free >= ROOM_BYTES)
    })
}

fn is_noexec(place: &Path) -> bool {
    rustix::fs::statvfs(place).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOEXEC))
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

/// When a process started, in clock ticks since boot (`/proc/PID/stat`, field 22): with the pid it
/// names one process; `None` when it has ended.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the command in parentheses, may hold spaces; the third follows the last
    // parenthesis.
    let (_, rest) = stat.rsplit_once(") ")?;
    // A process that nobody waits for has ended all the same.
    if rest.starts_with('Z') {
        return None;
    }
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
    fn the_first_name_of_somebody_else_is_left_to_them() {
        let place = base("names");
        fs::create_dir(&place).unwrap();
        let names: Vec<PathBuf> = bases_in(&place).collect();
        // A folder that others may write is not ours alone.
        fs::create_dir(&names[0]).unwrap();
        fs::set_permissions(&names[0], std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
        let session = Session::begin_at(&place).unwrap();
        assert_eq!(session.path().parent(), Some(names[1].as_path()));
        assert_eq!(fs::read_dir(&names[0]).unwrap().count(), 0);
        drop(session);
        assert!(!names[1].exists());
        fs::remove_dir(&names[0]).unwrap();
        fs::remove_dir(&place).unwrap();
    }

    #[test]
    fn tidying_removes_what_is_dead_and_keeps_what_lives() {
        let base = base("tidy");
        let dead = base.join("1-0");
        private_folder(&base).unwrap();
        fs::create_dir(&dead).unwrap();
        tidy(&base).unwrap();
        assert!(!base.exists());
        let live = Session::begin_in(&base).unwrap();
        fs::create_dir(&dead).unwrap();
        tidy(&base).unwrap();
        assert!(!dead.exists() && live.path().exists());
        drop(live);
        assert!(!base.exists());
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
