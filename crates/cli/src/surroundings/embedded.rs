//! The libraries inside the program, and their place on disk.
//!
//! [`kept`] and [`unpack`] give a folder that holds `libibverbs.so.1`, the link `libibverbs.so`,
//! the stand-ins, and a folder [`CUDA`] with NVIDIA's libraries over the software GPU. It is the
//! one that a package put beside the program, where its files are those embedded, or else a
//! versioned cache below the user's cache home: a file is written under another name and renamed,
//! so any number of processes may do it at once, and what is there is compared with what is
//! embedded each time. Where the cache cannot be used (no home, not writable, not ours, mounted
//! noexec, a path that LD_PRELOAD cannot carry), the folder is made below a private directory of
//! the caller's.

use crate::console::failure::{Context, Failure, Outcome};
use rustix::fs::{Access, StatVfsMountFlags};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The drop-in library, built by this package's build script.
static LIBRARY: &[u8] = include_bytes!(env!("PEERDMA_EMBEDDED_LIBRARY"));
static LIBCUDA: &[u8] = include_bytes!(env!("PEERDMA_EMBEDDED_CUDA"));
static LIBCUDART12: &[u8] = include_bytes!(env!("PEERDMA_EMBEDDED_CUDART12"));
static LIBCUDART13: &[u8] = include_bytes!(env!("PEERDMA_EMBEDDED_CUDART13"));
static LIBNVML: &[u8] = include_bytes!(env!("PEERDMA_EMBEDDED_NVML"));

/// The folder, beside the other libraries, of those that only `--gpu cuda` shows a program.
pub const CUDA: &str = "cuda";

/// The runtimes among them, which are preloaded beside the library.
pub const CUDA_RUNTIMES: [&str; 2] = ["cuda/libcudart.so.12", "cuda/libcudart.so.13"];

/// Name the library is loaded by.
pub const SONAME: &str = "libibverbs.so.1";

/// Version and content of what is embedded, as a folder name: `0.1.0-3b51…`.
fn identity() -> &'static str {
    static IDENTITY: OnceLock<String> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let mut hasher = blake3::Hasher::new();
        for (name, content) in files() {
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
            hasher.update(&(content.len() as u64).to_le_bytes()).update(content);
        }
        format!("{}-{}", env!("CARGO_PKG_VERSION"), &hasher.finalize().to_hex()[..16])
    })
}

/// Path below the folder, and content.
fn files() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    let nvidia = [
        ("cuda/libcuda.so.1", LIBCUDA),
        (CUDA_RUNTIMES[0], LIBCUDART12),
        (CUDA_RUNTIMES[1], LIBCUDART13),
        ("cuda/libnvidia-ml.so.1", LIBNVML),
    ];
    std::iter::once((SONAME, LIBRARY)).chain(standins::LIBRARIES.iter().copied()).chain(nvidia)
}

/// Links below the folder, and where each leads. Programs that load a library at run time often ask
/// for the name without the version: of several versions that is the first.
fn links() -> BTreeMap<&'static str, &'static str> {
    let mut links = BTreeMap::new();
    for (path, _) in files() {
        let file = path.rsplit('/').next().unwrap_or(path);
        links.entry(standins::link_name(path)).or_insert(file);
    }
    links
}

/// The folder with the libraries that stays: a package's, or that in the cache, where one can be
/// used.
pub fn kept() -> Option<PathBuf> {
    if let Some(lib) = installed() {
        return Some(lib);
    }
    let lib = cache()?.join("lib");
    let usable = preloadable(&lib).is_ok() && write_all(&lib).is_ok() && executable(&lib);
    usable.then_some(lib)
}

/// `../lib/peerdma` as seen from the program's folder, where a package puts the libraries: with
/// just the files embedded here, which nobody but root and this user can change.
fn installed() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let lib = program.parent()?.parent()?.join("lib/peerdma");
    packaged(&lib).then_some(lib)
}

fn packaged(lib: &Path) -> bool {
    let safe = |path: &Path| {
        let owner = rustix::process::geteuid().as_raw();
        fs::symlink_metadata(path)
            .is_ok_and(|m| [0, owner].contains(&m.uid()) && m.mode() & 0o022 == 0)
    };
    safe(lib)
        && safe(&lib.join(CUDA))
        && files().all(|(name, content)| safe(&lib.join(name)) && holds(&lib.join(name), content))
        && preloadable(lib).is_ok()
        && executable(lib)
}

/// The folder with the libraries for users beside this one: a package's, or one made in `folder`.
pub fn for_everybody(folder: &Path) -> Outcome<PathBuf> {
    if let Some(lib) = installed() {
        return Ok(lib);
    }
    let lib = unpack(folder)?;
    for path in [&lib, &lib.join(CUDA)] {
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(path, open).what(format_args!("cannot open {}", path.display()))?;
    }
    Ok(lib)
}

/// The folder with the libraries below `private`, which is not mounted noexec.
pub fn unpack(private: &Path) -> Outcome<PathBuf> {
    let lib = private.join("lib");
    let failure = |error: io::Error| {
        Failure::new(format_args!("cannot unpack the library to {}", lib.display()))
            .because(error)
            .remedy(
                "set XDG_CACHE_HOME or TMPDIR to a writable folder on a file system that is \
                 not mounted noexec",
            )
    };
    preloadable(&lib).and_then(|()| write_all(&lib)).map_err(failure)?;
    Ok(lib)
}

/// The folder for settings that outlive this process: a package's, the cache's or nothing.
pub fn unpack_persistent() -> Outcome<PathBuf> {
    if let Some(lib) = installed() {
        return Ok(lib);
    }
    let folder = persistent_folder()?;
    let lib = folder.join("lib");
    let failure = |error: io::Error| {
        Failure::new(format_args!("cannot keep the library in {}", lib.display()))
            .because(error)
            .remedy(
                "set XDG_CACHE_HOME to a writable folder that is not mounted noexec, without \
                 spaces or colons in its path",
            )
    };
    preloadable(&lib).and_then(|()| write_all(&lib)).map_err(failure)?;
    if executable(&lib) { Ok(lib) } else { Err(failure(io::Error::other("mounted noexec"))) }
}

/// The versioned folder in the cache, for what belongs to this build.
pub fn persistent_folder() -> Outcome<PathBuf> {
    cache().ok_or_else(|| {
        Failure::new("there is no cache folder of this user's")
            .because(
                "neither XDG_CACHE_HOME nor HOME names a folder that this user owns and may write",
            )
            .remedy("set XDG_CACHE_HOME")
    })
}

/// `$XDG_CACHE_HOME/peerdma/<identity>`, made and ours.
fn cache() -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base =
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    let ours = base.join("peerdma");
    private_folder(&ours).ok()?;
    let folder = ours.join(identity());
    private_folder(&folder).ok()?;
    Some(folder)
}

/// Makes `path` and its parents, and checks that nobody else can change what is in it: programs
/// will load it.
pub fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = fs::symlink_metadata(path)?;
    let ours = metadata.is_dir()
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & 0o022 == 0;
    if !ours {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is not this user's alone", path.display()),
        ));
    }
    rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK)?;
    Ok(())
}

/// The dynamic linker separates LD_PRELOAD by spaces and colons, LD_LIBRARY_PATH by colons and
/// semicolons, and expands `$`.
fn preloadable(path: &Path) -> io::Result<()> {
    if path.as_os_str().as_bytes().iter().any(|byte| b" \t\n:;$".contains(byte)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the dynamic linker cannot preload from a path with a space, colon, semicolon or \
             dollar sign",
        ));
    }
    Ok(())
}

fn executable(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|fs| !fs.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// Writes what is missing or differs.
fn write_all(lib: &Path) -> io::Result<()> {
    private_folder(lib)?;
    private_folder(&lib.join(CUDA))?;
    for (name, content) in files() {
        let path = lib.join(name);
        if !holds(&path, content) {
            replace(&path, |temporary| {
                let mut file = fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o755)
                    .open(temporary)?;
                file.write_all(content)
            })?;
        }
    }
    for (name, target) in links() {
        let link = lib.join(name);
        if !fs::read_link(&link).is_ok_and(|found| found == Path::new(target)) {
            replace(&link, |temporary| std::os::unix::fs::symlink(target, temporary))?;
        }
    }
    Ok(())
}

fn holds(path: &Path, content: &[u8]) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.is_file() && m.len() == content.len() as u64)
        && fs::read(path).is_ok_and(|found| found == content)
}

/// Makes a file under a name of its own and renames it to `path`: readers see the old one, the new
/// one, never a part. Nor is it taken for one of theirs by whoever reads a folder by how names end.
pub fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(format!(".{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let temporary = path.with_file_name(name);
    let result = make(&temporary).and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        // The error of the write is what matters.
        drop(fs::remove_file(&temporary));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_replaced_and_a_good_one_left() {
        let folder =
            std::env::temp_dir().join(format!("peerdma-embedded-test-{}", std::process::id()));
        write_all(&folder).unwrap();
        let path = folder.join(SONAME);
        let inode = fs::metadata(&path).unwrap().ino();
        write_all(&folder).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode, "an intact file was replaced");
        let mut damaged = fs::read(&path).unwrap();
        damaged[100] ^= 1;
        fs::write(&path, damaged).unwrap();
        write_all(&folder).unwrap();
        assert!(holds(&path, LIBRARY));
        assert_eq!(fs::read_link(folder.join("libibverbs.so")).unwrap(), Path::new(SONAME));
        assert!(holds(&folder.join("cuda/libcudart.so.13"), LIBCUDART13));
        let cuda = fs::canonicalize(folder.join(CUDA).join("libcuda.so")).unwrap();
        assert!(holds(&cuda, LIBCUDA) && cuda.ends_with("cuda/libcuda.so.1"));
        let runtime = fs::canonicalize(folder.join(CUDA).join("libcudart.so")).unwrap();
        assert!(holds(&runtime, LIBCUDART12) && runtime.ends_with("cuda/libcudart.so.12"));
        assert!(
            fs::read_dir(&folder).unwrap().all(|entry| !entry
                .unwrap()
                .file_name()
                .as_bytes()
                .starts_with(b".new"))
        );
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_package_is_used_as_long_as_it_is_whole_and_safe() {
        let folder =
            std::env::temp_dir().join(format!("peerdma-packaged-test-{}", std::process::id()));
        let lib = for_everybody(&folder).unwrap();
        assert_eq!(fs::metadata(&lib).unwrap().mode() & 0o777, 0o755);
        assert!(packaged(&lib));
        let path = lib.join(SONAME);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o757)).unwrap();
        assert!(!packaged(&lib), "anybody may write to the library");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(packaged(&lib));
        fs::write(&path, "another version").unwrap();
        assert!(!packaged(&lib), "it is another version's");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn paths_that_the_linker_splits_are_refused() {
        assert!(preloadable(Path::new("/home/a b/.cache")).is_err());
        assert!(preloadable(Path::new("/home/a:b")).is_err());
        assert!(preloadable(Path::new("/home/ab/.cache/peerdma")).is_ok());
    }
}
