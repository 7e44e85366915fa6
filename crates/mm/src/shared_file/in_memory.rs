//! Which file systems are in memory, as the kernel itself knows them: those of others are not asked
//! what they are (statfs(2)), since who serves one (FUSE) may never answer.
//!
//! The pages of any other may take long to come, too (NFS): who copies would be held up where the
//! owner of the memory, who is to take it away, waits for the copy.

use super::process::Shown;
use rustix::fs::{AtFlags, MemfdFlags, OFlags, StatxFlags};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// Bytes of `mountinfo` that are read at most: some thousand mounts.
const MOST: u64 = 1 << 19;

/// Sizes of huge pages that processors have, by their power of two, 0 for the kernel's default:
/// each has a file system.
const HUGE_PAGES: [u32; 7] = [0, 16, 21, 25, 29, 30, 34];

/// Whether the file system of a device is one in memory (tmpfs, hugetlbfs): the kernel's own of
/// memfds, or one that is mounted where the process is.
pub(super) fn is_in_memory(process: &Shown, device: (u32, u32)) -> bool {
    let is_of = |flags| device_of_memfds(flags) == Some(device);
    is_of(MemfdFlags::empty())
        || is_mounted(process, device)
        || HUGE_PAGES
            .iter()
            .any(|size| is_of(MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(size << 26)))
}

/// The file system of memfds with such pages, if the kernel has them.
fn device_of_memfds(pages: MemfdFlags) -> Option<(u32, u32)> {
    let file = rustix::fs::memfd_create(c"peerdma", MemfdFlags::CLOEXEC | pages).ok()?;
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::empty()).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}

fn is_mounted(process: &Shown, device: (u32, u32)) -> bool {
    let Ok(mounts) = process.open("mountinfo", OFlags::RDONLY) else { return false };
    let mut mounts = BufReader::new(File::from(mounts).take(MOST)).split(b'\n');
    mounts.any(|line| line.is_ok_and(|line| mounted_in_memory(&line) == Some(device)))
}

/// The device of a mount of a file system in memory, by its line of `mountinfo`
/// (proc_pid_mountinfo(5)): the third word, where the first after the one that is `-` is the type.
fn mounted_in_memory(line: &[u8]) -> Option<(u32, u32)> {
    let mut words = line.split(|byte| *byte == b' ');
    let (major, minor) = std::str::from_utf8(words.nth(2)?).ok()?.split_once(':')?;
    let kind = words.skip(3).skip_while(|word| *word != b"-").nth(1)?;
    let is_in_memory = matches!(kind, b"tmpfs" | b"hugetlbfs");
    is_in_memory.then_some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_mount_in_memory_is_known_by_its_line() {
        let of = |line: &str| mounted_in_memory(line.as_bytes());
        let line = "34 23 0:29 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,inode64";
        assert_eq!(of(line), Some((0, 29)));
        assert_eq!(of("35 23 0:30 / /huge rw - hugetlbfs none rw"), Some((0, 30)));
        for line in [
            "36 23 0:31 / /mnt rw shared:7 - fuse.tmpfs tmpfs rw",
            "36 23 0:31 / /-\\040tmpfs rw shared:7 - fuse tmpfs rw",
            "36 23 0:31 / /mnt rw",
            "36 23 0 / /mnt rw - tmpfs tmpfs rw",
            "",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_on_a_disk_is_not_in_memory() {
        let process = Shown::new(std::process::id()).unwrap();
        let own = device_of_memfds(MemfdFlags::empty()).unwrap();
        assert!(is_in_memory(&process, own));
        assert!(!is_in_memory(&process, (own.0, u32::MAX)));
    }
}
