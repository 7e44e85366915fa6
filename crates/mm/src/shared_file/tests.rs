use super::*;
use crate::guard;
use crate::loan::alone;
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, OFlags, SealFlags};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const SIZE: u64 = 4 << 12;

/// A file of [`SIZE`], as a program may map it.
fn sized(file: OwnedFd) -> OwnedFd {
    rustix::fs::ftruncate(&file, SIZE).unwrap();
    file
}

/// A memfd that nobody may seal.
fn memfd(name: &str) -> OwnedFd {
    sized(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap())
}

fn sealable(name: &str, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = sized(rustix::fs::memfd_create(name, flags).unwrap());
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn mapped_here(file: &impl AsFd) -> Mapping {
    guard::install();
    Mapping::shared(file.as_fd(), SIZE).unwrap()
}

fn own() -> Shown {
    Shown::new(std::process::id()).unwrap()
}

/// What this process is lent of its own memory.
fn lent(range: Range<u64>, writable: bool) -> Result<Loan, NotLent> {
    of_process(std::process::id(), range, writable)
}

/// Whether the view of a part of `memory` shows that, and is another mapping.
fn shows(memory: &Mapping, part: Range<u64>) -> bool {
    let range = memory.addr() + part.start..memory.addr() + part.end;
    let Ok(loan) = lent(range.clone(), true) else { return false };
    let Some((view, offset)) = loan.at(range.start) else { return false };
    let (len, here) = (part.end - part.start, memory.sink().part(part.start, 5).unwrap());
    let there = view.memory(offset, len).unwrap();
    let mut bytes = [0; 5];
    there.write(b"there").unwrap();
    here.source().read(&mut bytes).unwrap();
    assert_eq!(&bytes, b"there");
    here.write(b"again").unwrap();
    there.source().read(&mut bytes).unwrap();
    assert!(view.memory(offset, len + 1).is_none(), "no more than was asked for");
    &bytes == b"again" && there.addr() != here.addr()
}

fn refused(memory: &Mapping, writable: bool) -> bool {
    lent(memory.range(), writable).err() == Some(NotLent::Never)
}

#[test]
fn a_memfd_is_found_by_a_descriptor_alone() {
    let _alone = alone();
    let file = memfd("found");
    let map = mapped_here(&file);
    let _same_name = memfd("found");
    assert!(shows(&map, 0..SIZE) && shows(&map, 4096 + 7..2 * 4096 + 99));
    drop(file);
    assert!(refused(&map, true) && refused(&map, false), "nobody has it open any more");
}

#[test]
fn a_piece_in_several_mappings_is_one() {
    let _alone = alone();
    let file = memfd("pieces");
    let map = mapped_here(&file);
    // SAFETY: a page of our own mapping, which stays as it is.
    let code = unsafe {
        let (page, only_read) = ((map.addr() + 4096) as usize, libc::PROT_READ);
        libc::mprotect(page as *mut _, 4096, only_read | libc::PROT_EXEC);
        libc::mprotect(page as *mut _, 4096, only_read | libc::PROT_WRITE | libc::PROT_EXEC)
    };
    assert_eq!(code, 0);
    assert!(shows(&map, 100..SIZE));
    // SAFETY: as above.
    unsafe { libc::mprotect((map.addr() + 4096) as usize as *mut _, 4096, libc::PROT_READ) };
    assert!(refused(&map, true), "a part may not be written");
    assert!(lent(map.range(), false).is_ok());
}

#[test]
fn what_may_be_sealed_or_is_is_left_alone() {
    let _alone = alone();
    let (one, sealed) = (SealFlags::GROW, SealFlags::SHRINK | SealFlags::SEAL);
    let open = sealable("open", one);
    assert!(refused(&mapped_here(&open), true));
    let settled = sealable("settled", sealed);
    assert!(shows(&mapped_here(&settled), 0..SIZE));
    let later = sealable("later", SealFlags::empty());
    let map = mapped_here(&later);
    rustix::fs::fcntl_add_seals(&later, SealFlags::FUTURE_WRITE | SealFlags::SEAL).unwrap();
    assert!(refused(&map, true), "no new mapping may write it");
}

#[test]
fn memory_that_is_no_shared_file_is_not_lent() {
    let _alone = alone();
    guard::install();
    let [private, shared] =
        [Mapping::anonymous(SIZE).unwrap(), Mapping::anonymous_shared(SIZE).unwrap()];
    assert!(refused(&private, true) && refused(&private, false));
    assert!(refused(&shared, true), "it has no descriptor");
    let file = memfd("private");
    let map = Mapping::private(file.as_fd(), SIZE).unwrap();
    assert!(refused(&map, true) && refused(&map, false));
    assert_eq!(lent(0..0, true).err(), Some(NotLent::Never));
    assert_eq!(lent(4096..u64::MAX, true).err(), Some(NotLent::Never));
    let short = memfd("short");
    let map = mapped_here(&short);
    rustix::fs::ftruncate(&short, SIZE - 1).unwrap();
    assert!(shows(&map, 0..SIZE), "its last page is there");
    rustix::fs::ftruncate(&short, SIZE - 4096).unwrap();
    assert_eq!(lent(map.range(), true).err(), Some(NotLent::NotNow), "its end is gone");
    rustix::fs::ftruncate(&short, SIZE).unwrap();
    assert!(shows(&map, 0..SIZE));
}

/// A new path, below a folder, that goes with the value.
struct Place(PathBuf);

impl Place {
    fn new(folder: &Path, name: &str) -> Place {
        Place(folder.join(format!("peerdma-mm-{name}-{}", std::process::id())))
    }

    fn file(&self) -> OwnedFd {
        let file = File::options().read(true).write(true).create_new(true).open(&self.0);
        sized(file.unwrap().into())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A folder in memory, or the end of the test.
macro_rules! in_memory {
    () => {
        match Path::new("/dev/shm") {
            folder if folder.is_dir() => folder,
            _ => test_support::skip!("there is no /dev/shm"),
        }
    };
}

#[test]
fn a_file_in_memory_is_found_by_its_path() {
    let _alone = alone();
    let place = Place::new(in_memory!(), "path");
    let map = mapped_here(&place.file());
    assert!(shows(&map, 0..SIZE));
    std::fs::remove_file(&place.0).unwrap();
    assert!(refused(&map, true), "it has no path any more");
}

/// The path of what is mapped names something else by the time that it is looked at: nothing of
/// that is opened, and nobody waits for it.
#[test]
fn what_took_the_place_of_a_file_is_not_opened() {
    let folder = in_memory!();
    let (place, aside) = (Place::new(folder, "taken"), Place::new(folder, "aside"));
    let map = mapped_here(&place.file());
    let extent = Extent::of_process(&own(), &map.range(), true).unwrap();
    let finds = || find::open(&own(), &extent, extent.offset + SIZE, true).is_ok();
    assert!(finds());
    std::fs::rename(&place.0, &aside.0).unwrap();
    std::os::unix::fs::symlink(&aside.0, &place.0).unwrap();
    assert!(!finds(), "a link");
    for kind in [FileType::Fifo, FileType::Socket, FileType::RegularFile] {
        std::fs::remove_file(&place.0).unwrap();
        rustix::fs::mknodat(CWD, &place.0, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(!finds(), "{kind:?}");
    }
    std::fs::remove_file(&place.0).unwrap();
    std::fs::create_dir(&place.0).unwrap();
    assert!(!finds(), "a folder");
    std::fs::remove_dir(&place.0).unwrap();
    std::fs::rename(&aside.0, &place.0).unwrap();
    assert!(finds(), "the file itself again");
}

/// Whoever maps a file for reading only has opened it so, perhaps since it may not write it.
#[test]
fn a_file_is_opened_as_it_is_wanted() {
    let _alone = alone();
    let place = Place::new(in_memory!(), "read");
    drop(place.file());
    let file = rustix::fs::open(&place.0, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    guard::install();
    let map = Mapping::shared_lazily(file.as_fd(), 0..SIZE, false).unwrap();
    assert!(refused(&map, true));
    let (view, _) = lent(map.range(), false).unwrap().at(map.addr()).unwrap();
    let memory = view.memory(0, SIZE).unwrap();
    assert!(memory.source().read(&mut [0; 5]).is_ok());
    assert!(memory.write(b"there").is_err());
}

#[test]
fn a_file_on_a_disk_is_not_lent() {
    let _alone = alone();
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let system = rustix::fs::statfs(folder).unwrap().f_type as u64;
    if system == 0x0102_1994 {
        test_support::skip!("the tests were built in memory");
    }
    let place = Place::new(folder, "disk");
    let file = place.file();
    assert!(refused(&mapped_here(&file), true));
}

/// Whoever detaches one by a bare call takes it away unseen.
#[test]
fn a_segment_is_not_lent() {
    let _alone = alone();
    guard::install();
    // SAFETY: a new segment, attached at an address of the kernel's choice and known to nobody, and
    // removed with this process.
    let addr = unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, SIZE as usize, 0o600);
        assert!(id >= 0, "{}", std::io::Error::last_os_error());
        let addr = libc::syscall(libc::SYS_shmat, id, 0usize, 0);
        assert_eq!(libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()), 0);
        addr
    };
    assert_ne!(addr, -1);
    let range = addr as u64..addr as u64 + SIZE;
    for writable in [false, true] {
        assert_eq!(lent(range.clone(), writable).err(), Some(NotLent::Never));
    }
    // SAFETY: attached above, and nobody uses it.
    unsafe { libc::syscall(libc::SYS_shmdt, addr) };
}
