//! userfaultfd(2): the kernel hands page faults of chosen ranges to this process instead of
//! answering them itself.

use descriptors::Kept;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// include/uapi/linux/userfaultfd.h
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const UFFDIO_WAKE: libc::c_ulong = 0x8010_aa02;
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa00;
const UFFD_USER_MODE_ONLY: i32 = 1;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
/// Linux 5.19: also shared memory and huge pages.
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
/// Linux 6.7: the kernel lifts protections itself, and so takes mappings of any file.
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const EVENTS: u64 =
    FEATURE_PAGEFAULT_FLAG_WP | FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 2;
/// `1 << _UFFDIO_ZEROPAGE`, among the requests that a registered range takes.
const OFFERS_ZEROPAGE: u64 = 1 << 4;
const COPY_MODE_DONTWAKE: u64 = 1;
const COPY_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const PAGEFAULT_FLAG_WP: u64 = 2;

/// What the kernel tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A thread waits at an address: nothing is mapped there, or with `protected` a page that may
    /// not be written now.
    Fault { addr: u64, protected: bool },
    /// A mapping has moved.
    Moved { from: u64, to: u64, len: u64 },
    /// Pages are about to be discarded.
    Discarded(Range<u64>),
    /// A mapping is gone.
    Unmapped(Range<u64>),
}

/// `struct uffd_msg`, by the words of its largest variants.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Message {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}

impl Message {
    pub(crate) fn event(&self) -> Option<Event> {
        let [first, second, third] = self.words;
        match self.event {
            EVENT_PAGEFAULT => {
                Some(Event::Fault { addr: second, protected: first & PAGEFAULT_FLAG_WP != 0 })
            }
            EVENT_REMAP => Some(Event::Moved { from: first, to: second, len: third }),
            EVENT_REMOVE => Some(Event::Discarded(first..second)),
            EVENT_UNMAP => Some(Event::Unmapped(first..second)),
            _ => None,
        }
    }
}

/// The descriptor.
pub(crate) struct Uffd(Kept);

/// A `userfaultfd`, of the device where the system call is refused.
fn open(flags: i32) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: no pointers are passed; the descriptor is fresh, and owned at once.
    let called = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if called >= 0 {
        // SAFETY: as above.
        return Ok(unsafe { OwnedFd::from_raw_fd(called as i32) });
    }
    let refused = io::Error::last_os_error();
    let path = c"/dev/userfaultfd";
    // SAFETY: the path is terminated; no pointers are passed to the request.
    let made = unsafe {
        let flags_of_device = libc::O_RDWR | libc::O_CLOEXEC;
        let device =
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags_of_device);
        if device < 0 {
            return Err(refused);
        }
        let device = OwnedFd::from_raw_fd(device as i32);
        libc::syscall(libc::SYS_ioctl, device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags)
    };
    if made < 0 {
        return Err(refused);
    }
    // SAFETY: a fresh descriptor, owned at once.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

impl Uffd {
    /// A new one for faults of all kinds, those that system calls take on the program's behalf too,
    /// ready for [`Uffd::register`]. The error is userfaultfd(2)'s: EPERM without the right to it.
    pub(crate) fn new() -> io::Result<Uffd> {
        let uffd = Uffd(Kept::alone(open(0)?));
        uffd.request(UFFDIO_API, &mut [UFFD_API, EVENTS, 0])?;
        Ok(uffd)
    }

    /// A new one that takes no faults and tells what becomes of mappings, for [`Uffd::watch`]. From
    /// Linux 5.11 on no right is needed for it. The error is userfaultfd(2)'s.
    pub(crate) fn for_events() -> io::Result<Uffd> {
        let opened = match open(UFFD_USER_MODE_ONLY) {
            // a kernel that does not know the flag
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0),
            other => other,
        };
        let uffd = Uffd(Kept::alone(opened?));
        let shared = EVENTS | FEATURE_WP_HUGETLBFS_SHMEM;
        let offers = [shared | FEATURE_WP_ASYNC, shared, EVENTS];
        let agree = |features| uffd.request(UFFDIO_API, &mut [UFFD_API, features, 0]);
        offers
            .into_iter()
            .map(agree)
            .find(Result::is_ok)
            .unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)))?;
        Ok(uffd)
    }

    fn request<const N: usize>(&self, what: libc::c_ulong, words: &mut [u64; N]) -> io::Result<()> {
        // SAFETY: each request reads and writes exactly the words that its caller passes. The
        // ranges in them are touched by the kernel as it would for the program's own faults.
        let code =
            unsafe { libc::syscall(libc::SYS_ioctl, self.0.as_raw_fd(), what, words.as_mut_ptr()) };
        if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes over the faults of a range, again if it was.
    pub(crate) fn register(&self, range: &Range<u64>) -> io::Result<()> {
        let mode = REGISTER_MODE_MISSING | REGISTER_MODE_WP;
        self.request(UFFDIO_REGISTER, &mut [range.start, range.end - range.start, mode, 0])
    }

    /// Asks for notices of what becomes of the mappings of a range, whose faults stay the kernel's:
    /// nothing in it is protected. `true` if none of the mappings is of hugetlbfs, the only one
    /// whose pages the kernel does not offer to fill with zeros.
    pub(crate) fn watch(&self, range: &Range<u64>) -> io::Result<bool> {
        let mut words = [range.start, range.end - range.start, REGISTER_MODE_WP, 0];
        self.request(UFFDIO_REGISTER, &mut words)?;
        Ok(words[3] & OFFERS_ZEROPAGE != 0)
    }

    /// Leaves a range to the kernel again. Mappings that are gone were left with their end.
    pub(crate) fn unregister(&self, range: &Range<u64>) {
        let _ = self.request(UFFDIO_UNREGISTER, &mut [range.start, range.end - range.start]);
    }

    /// Whether a registered mapping has begun to change and the kernel has not told all of it yet.
    pub(crate) fn is_changing(&self) -> bool {
        // refused for that before its (empty) range is looked at
        let asked = self.request(UFFDIO_WRITEPROTECT, &mut [0, 0, 0]);
        asked.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    }

    /// Lets stores to the pages of a range that are there fault from now on, or no more; the latter
    /// wakes who waits.
    pub(crate) fn write_protect(&self, range: &Range<u64>, protect: bool) -> io::Result<()> {
        let mode = if protect { WRITEPROTECT_MODE_WP } else { 0 };
        self.request(UFFDIO_WRITEPROTECT, &mut [range.start, range.end - range.start, mode])
    }

    /// Lets those who wait in a range try again.
    pub(crate) fn wake(&self, range: &Range<u64>) {
        // the range may be gone, and those who waited with it
        let _ = self.request(UFFDIO_WAKE, &mut [range.start, range.end - range.start]);
    }

    /// Makes a page at `to` that is not there, with the bytes at `from`. Wakes nobody.
    pub(crate) fn copy(&self, to: u64, from: u64, len: u64, protected: bool) -> io::Result<()> {
        let mode = COPY_MODE_DONTWAKE | if protected { COPY_MODE_WP } else { 0 };
        self.request(UFFDIO_COPY, &mut [to, from, len, mode, 0])
    }

    /// Waits until there is something to read; `false` when the descriptor was taken from us.
    pub(crate) fn wait(&self) -> bool {
        loop {
            let fd = self.0.as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one live structure.
            unsafe { libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, 0usize, 0usize, 0usize) };
            if poll.revents & libc::POLLNVAL != 0 {
                return false;
            }
            if poll.revents & libc::POLLERR == 0 {
                return true;
            }
            // somebody has made the descriptor a blocking one, which the kernel does not let poll
            // SAFETY: changes a flag of our descriptor.
            if unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
                return false;
            }
        }
    }

    /// Reads what is there; `None` when the descriptor was taken from us. Whoever caused it goes on
    /// then, but for a page fault.
    pub(crate) fn read<'a>(&self, room: &'a mut [Message]) -> Option<&'a [Message]> {
        let bytes = size_of_val(room);
        // SAFETY: the kernel writes at most `bytes` into the messages, which may hold anything.
        let read =
            unsafe { libc::syscall(libc::SYS_read, self.0.as_raw_fd(), room.as_mut_ptr(), bytes) };
        let is_late = || io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
        let messages = match usize::try_from(read) {
            Ok(bytes) => bytes / size_of::<Message>(),
            Err(_) if is_late() => return Some(&[]),
            Err(_) => 0,
        };
        (messages > 0).then_some(&room[..messages])
    }

    /// Takes the descriptor from whoever waits for it.
    #[cfg(test)]
    pub(crate) fn lose(&self) {
        let other = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: two descriptors of ours.
        unsafe { libc::dup2(other.as_raw_fd(), self.0.as_raw_fd()) };
    }
}
