//! Whether preloading reaches a program. The dynamic linker that starts it must be one that reads
//! LD_PRELOAD, that may (no raised privilege), and that can load our library (same architecture,
//! same C library). Where it cannot, the program runs, but sees no device; the user hears why.

use super::lookup;
use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Endian, Endianness, Object};
use rustix::fs::StatVfsMountFlags;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why a program does not see the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// Linked statically: there is no dynamic linker that would preload.
    Static,
    /// A Go program that makes system calls itself.
    GoStatic,
    /// Runs with another user's or group's rights: the linker ignores LD_PRELOAD.
    RaisedId,
    /// Has file capabilities: likewise.
    FileCapabilities,
    /// 32-bit code.
    Bits32,
    /// Code of another machine.
    Machine(u16),
    /// Started by a linker that is not glibc's.
    ForeignLibc(String),
    /// Starts with `#!`, but its interpreter does not exist.
    NoInterpreter(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Static => f.write_str("it is statically linked"),
            Obstacle::GoStatic => f.write_str("it is a Go program that does not use the C library"),
            Obstacle::RaisedId => f.write_str(
                "it is set-user-ID or set-group-ID, so the dynamic linker ignores LD_PRELOAD",
            ),
            Obstacle::FileCapabilities => {
                f.write_str("it has file capabilities, so the dynamic linker ignores LD_PRELOAD")
            }
            Obstacle::Bits32 => f.write_str("it is a 32-bit program"),
            Obstacle::Machine(machine) => {
                write!(f, "it is a program for another machine (ELF machine {machine})")
            }
            Obstacle::ForeignLibc(linker) => {
                write!(f, "its C library is not glibc (it starts with {linker})")
            }
            Obstacle::NoInterpreter(name) => write!(f, "its interpreter {name} does not exist"),
        }
    }
}

impl Obstacle {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Obstacle::Static => "link it dynamically",
            Obstacle::GoStatic => "build it with CGO_ENABLED=1, so that it uses libibverbs",
            Obstacle::RaisedId => "run a copy without the set-ID bit",
            Obstacle::FileCapabilities => {
                "run a copy without capabilities (`cp` drops them), or run as root"
            }
            Obstacle::Bits32 | Obstacle::Machine(_) => "use a build for this machine",
            Obstacle::ForeignLibc(_) => {
                "use a build against glibc, for instance in a Debian container"
            }
            Obstacle::NoInterpreter(_) => {
                "install the interpreter, or correct the first line of the script"
            }
        }
    }
}

/// The file that is really executed, and what keeps our library out of it.
#[derive(Debug)]
pub struct Reach {
    /// The binary at the end of a chain of scripts.
    pub binary: PathBuf,
    /// What is in the way, if anything.
    pub obstacle: Option<Obstacle>,
}

/// Scripts that start scripts: the kernel follows four.
const CHAIN: usize = 5;

/// Looks at `path`, through scripts and `env`. An unreadable or odd file is taken as reachable:
/// starting it tells more.
pub fn inspect(path: &Path) -> Reach {
    let mut binary = path.to_owned();
    for _ in 0..CHAIN {
        let Some(line) = shebang(&binary) else { break };
        match interpreter(&line) {
            Some(Ok(next)) => binary = next,
            Some(Err(missing)) => {
                return Reach { binary, obstacle: Some(Obstacle::NoInterpreter(missing)) };
            }
            None => break,
        }
    }
    // What a set-ID bit on a script does: nothing on Linux. So only the binary counts.
    let obstacle = privilege(&binary).or_else(|| image(&binary));
    Reach { binary, obstacle }
}

/// What follows `#!` in the first line.
fn shebang(path: &Path) -> Option<Vec<u8>> {
    // The kernel looks at 256 bytes.
    let mut head = [0; 256];
    let mut file = File::open(path).ok()?;
    let length = file.read(&mut head).ok()?;
    let line = head[..length].strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line);
    Some(line.trim_ascii().to_owned())
}

/// The program a `#!` line starts; looks behind `env`. The error is the name that was not found.
fn interpreter(line: &[u8]) -> Option<Result<PathBuf, String>> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let first = PathBuf::from(OsStr::from_bytes(words.next()?));
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(if first.exists() { Ok(first) } else { Err(first.display().to_string()) });
    }
    // `env [-S] [-flags] [NAME=value]... program`.
    let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    let name: OsString = OsStr::from_bytes(program).to_owned();
    Some(lookup::program(&name).map_err(|_| name.to_string_lossy().into_owned()))
}

/// Whether executing the file raises privilege, as the kernel decides it.
fn privilege(path: &Path) -> Option<Obstacle> {
    let metadata = std::fs::metadata(path).ok()?;
    if rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        return None;
    }
    let mode = metadata.mode();
    let other_user = mode & 0o4000 != 0 && metadata.uid() != rustix::process::getuid().as_raw();
    // Without group execute, the bit means mandatory locking.
    let other_group =
        mode & 0o2010 == 0o2010 && metadata.gid() != rustix::process::getgid().as_raw();
    if other_user || other_group {
        return Some(Obstacle::RaisedId);
    }
    let mut value = [0_u8; 64];
    let capable = rustix::fs::getxattr(path, "security.capability", &mut value).is_ok();
    (capable && !rustix::process::getuid().is_root()).then_some(Obstacle::FileCapabilities)
}

/// What the ELF header and its linker say.
fn image(path: &Path) -> Option<Obstacle> {
    let data = std::fs::read(path).ok()?;
    if !data.starts_with(&elf::ELFMAG) {
        return None;
    }
    if data.get(4) == Some(&elf::ELFCLASS32) {
        return Some(Obstacle::Bits32);
    }
    let file = ElfFile64::<Endianness>::parse(&*data).ok()?;
    let endian = file.endian();
    let machine = file.elf_header().e_machine(endian);
    if machine != native_machine() || endian.is_big_endian() != cfg!(target_endian = "big") {
        return Some(Obstacle::Machine(machine));
    }
    let mut linker = None;
    let mut soname = false;
    for header in file.elf_program_headers() {
        if let Ok(Some(name)) = header.interpreter(endian, &*data) {
            linker = Some(String::from_utf8_lossy(name).into_owned());
        }
        if let Ok(Some(entries)) = header.dynamic(endian, &*data) {
            soname |= entries.iter().any(|entry| entry.tag(endian) == elf::DT_SONAME);
        }
    }
    match linker {
        Some(linker) => {
            let name =
                Path::new(&linker).file_name().unwrap_or_default().to_string_lossy().into_owned();
            let glibc = name.starts_with("ld-linux")
                || name.starts_with("ld64")
                || name.starts_with("ld.so");
            (!glibc).then_some(Obstacle::ForeignLibc(linker))
        }
        // A shared object that is executed is the dynamic linker itself, which preloads.
        None if soname => None,
        None if file.section_by_name(".note.go.buildid").is_some() => Some(Obstacle::GoStatic),
        None => Some(Obstacle::Static),
    }
}

fn native_machine() -> u16 {
    if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(name: &str, text: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("peerdma-reach-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn scripts_are_followed_to_their_binary() {
        let direct = script("direct", "#!/bin/sh -e\n");
        let chained = script("chained", &format!("#! {}\n", direct.display()));
        let by_env = script("env", "#!/usr/bin/env -S A=b sh -e\n");
        for path in [&direct, &chained, &by_env] {
            let reach = inspect(path);
            assert_eq!(reach.binary.file_name().unwrap(), "sh", "{path:?}");
            assert_eq!(reach.obstacle, None);
        }
        let missing = script("missing", "#!/nonexistent/interpreter\n");
        let obstacle = inspect(&missing).obstacle.unwrap();
        assert_eq!(obstacle, Obstacle::NoInterpreter("/nonexistent/interpreter".into()));
        for path in [direct, chained, by_env, missing] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_script_that_names_itself_ends() {
        let path = script("loop", "");
        std::fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        assert_eq!(inspect(&path).binary, path);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn this_test_program_is_reachable_and_a_truncated_one_is_no_panic() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(inspect(&own).obstacle, None);
        let data = std::fs::read(&own).unwrap();
        for length in [4, 5, 20, 63, 64, 100, 1000, 4096] {
            let path = script("cut", "");
            std::fs::write(&path, &data[..length]).unwrap();
            inspect(&path);
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn headers_decide() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let patched = |offset: usize, value: u8| {
            let mut data = own.clone();
            data[offset] = value;
            let path = script("patched", "");
            std::fs::write(&path, data).unwrap();
            let obstacle = inspect(&path).obstacle;
            std::fs::remove_file(path).unwrap();
            obstacle
        };
        assert_eq!(patched(4, elf::ELFCLASS32), Some(Obstacle::Bits32));
        assert_eq!(patched(18, 0xf3), Some(Obstacle::Machine(0xf3)));
    }
}
