//! The environment that puts a program on the software HCA.

use super::embedded;
use super::session::Session;
use crate::args::device::{Device, GpuInterface, Link, Memlock, Model};
use crate::console::failure::{Context, Failure, Outcome};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Variables to set, in the order they are printed.
pub type Variables = Vec<(&'static str, OsString)>;

/// The value that a variable has already.
type Present = dyn Fn(&str) -> Option<OsString>;

/// Name of the variable with the platform file.
pub const PLATFORM: &str = "PEERDMA_PLATFORM";
/// Name of the variable with what the device shows itself as.
const MODEL: &str = "PEERDMA_MODEL";
/// Name of UCX's variable with the modules it loads. Its one for a ConnectX drives the queues by
/// itself; where that is refused, UCX gives up instead of going on over verbs.
const UCX_MODULES: &str = "UCX_MODULES";
/// Name of the variable with the fraction of their rate that links are paced to.
const PACE: &str = "PEERDMA_PACE";
/// Name of the variable that says how programs of one host reach each other.
const LINK: &str = "PEERDMA_LINK";
/// Name of the variable with the trace file.
const TRACE: &str = "PEERDMA_TRACE";
/// Name of the variable with the file for the counters.
pub const COUNTERS: &str = "PEERDMA_COUNTERS";
/// Name of the variable that says how regions of dma-bufs hold their buffer.
pub const DMABUF: &str = "PEERDMA_DMABUF";
/// Name of the variable that makes the limit on locked memory count.
const MEMLOCK: &str = "PEERDMA_MEMLOCK";
/// Name of the variable that makes the library speak.
pub const LOG: &str = "PEERDMA_LOG";

/// First word of a pcap file with nanosecond time stamps, in the writer's byte order.
const PCAP: u32 = 0xa1b2_3c4d;

/// What `lib` (the folder with the libraries) and `tree` (the generated sysfs) mean for a program
/// that has this process's environment.
pub fn variables(device: &Device, lib: &Path, tree: &Path) -> Outcome<Variables> {
    variables_over(device, lib, tree, &|name| std::env::var_os(name))
}

/// The same over another environment: the values that variables have there.
pub fn variables_over(
    device: &Device,
    lib: &Path,
    tree: &Path,
    present: &Present,
) -> Outcome<Variables> {
    let mut variables = vec![
        ("LD_PRELOAD", preloaded(device, lib, present)),
        ("LD_LIBRARY_PATH", library_path(device, lib, present)),
        (sysfs::ROOT_VARIABLE, tree.into()),
    ];
    if let Some(platform) = &device.platform {
        let ready_made = pcie::ReadyMade::called(platform).is_some();
        let value = if ready_made { platform.clone() } else { absolute(platform)? };
        variables.push((PLATFORM, value.into()));
    }
    if device.model == Model::Connectx {
        variables.push((MODEL, "connectx".into()));
        if present(UCX_MODULES).is_none() {
            variables.push((UCX_MODULES, "^mlx5".into()));
        }
    }
    if let Some(fraction) = device.pace {
        variables.push((PACE, fraction.to_string().into()));
    }
    match device.link {
        Link::Auto => {}
        Link::Local => variables.push((LINK, "local".into())),
        Link::Roce => variables.push((LINK, "roce".into())),
    }
    if let Some(trace) = &device.trace {
        variables.push((TRACE, trace_file(trace)?.into()));
    }
    if device.memlock == Memlock::Enforce {
        variables.push((MEMLOCK, "enforce".into()));
    }
    if device.log {
        variables.push((LOG, "1".into()));
    } else if present(LOG).is_none() {
        // The program gets an errno only; why it cannot open the device, the library then says in a
        // line.
        variables.push((LOG, "open".into()));
    }
    Ok(variables)
}

/// What every program loads first: the drop-in library, and CUDA's runtimes where wanted.
///
/// Wheels of PyTorch and others name by an RPATH where NVIDIA's runtime is, and the dynamic linker
/// looks there before it looks into `LD_LIBRARY_PATH`. What is loaded already under the name that a
/// library needs comes before both.
fn preloaded(device: &Device, lib: &Path, present: &Present) -> OsString {
    let runtimes = match device.gpu {
        GpuInterface::Drm => &[][..],
        GpuInterface::Cuda => &embedded::CUDA_RUNTIMES,
    };
    let libraries = std::iter::once(embedded::SONAME).chain(runtimes.iter().copied());
    let present = present("LD_PRELOAD").unwrap_or_default();
    libraries
        .rev()
        .fold(present, |rest, library| prepend(&rest, lib.join(library).as_os_str(), b" :"))
}

/// Where programs find libraries: ours first, NVIDIA's of ours before those where it is asked for.
fn library_path(device: &Device, lib: &Path, present: &Present) -> OsString {
    let with_ours = prepended("LD_LIBRARY_PATH", present, lib, b":;");
    match device.gpu {
        GpuInterface::Drm => with_ours,
        GpuInterface::Cuda => prepend(&with_ours, lib.join(embedded::CUDA).as_os_str(), b":;"),
    }
}

/// The present value of a list variable with `first` in front, not twice.
fn prepended(name: &str, present: &Present, first: &Path, separators: &[u8]) -> OsString {
    let present = present(name).unwrap_or_default();
    prepend(&present, first.as_os_str(), separators)
}

fn prepend(present: &OsStr, first: &OsStr, separators: &[u8]) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let others = present
        .as_bytes()
        .split(|byte| separators.contains(byte))
        .filter(|part| !part.is_empty() && *part != first.as_bytes());
    let mut value = first.as_bytes().to_owned();
    for other in others {
        value.push(b':');
        value.extend_from_slice(other);
    }
    OsString::from_vec(value)
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).what(format_args!("cannot make {} absolute", path.display()))
}

/// The absolute path of the trace. What can be known now is said now: it must be a file that can be
/// made or is a trace.
fn trace_file(path: &Path) -> Outcome<PathBuf> {
    let path = absolute(path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let refused = |why: String| {
        Err(Failure::new(format_args!("cannot write a trace to {}", path.display()))
            .because(why)
            .remedy("name a new file in a folder that you may write"))
    };
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => return refused("it is a folder".to_owned()),
        Ok(metadata) if metadata.is_file() && metadata.len() > 0 && !is_trace(&path) => {
            return refused("it is there already, and is no trace".to_owned());
        }
        Ok(_) => {}
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return refused(error.to_string());
        }
        Err(_) if !folder.is_dir() => {
            return refused(format!("there is no folder {}", folder.display()));
        }
        Err(_) => {}
    }
    let written = if path.exists() { path.as_path() } else { folder };
    match rustix::fs::access(written, rustix::fs::Access::WRITE_OK) {
        Err(error) => refused(format!("{}: {error}", written.display())),
        Ok(()) => Ok(path),
    }
}

fn is_trace(path: &Path) -> bool {
    let mut begin = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == PCAP.to_ne_bytes()
}

/// A session, and the folder with the libraries: a package's or the cache's, or else in the
/// session; for a chosen build, links in the session.
pub fn begin(device: &Device) -> Outcome<(Session, PathBuf)> {
    let kept = embedded::kept();
    let session = Session::begin(kept.is_none())?;
    let own = kept.map_or_else(|| embedded::unpack(session.path()), Ok)?;
    let lib = match &device.library {
        Some(chosen) => chosen_library(chosen, &own, session.path())?,
        None => own,
    };
    Ok((session, lib))
}

/// Links to the library `chosen` and, from the folder `own`, the stand-ins.
fn chosen_library(chosen: &Path, own: &Path, private: &Path) -> Outcome<PathBuf> {
    let chosen = std::fs::canonicalize(chosen)
        .what(format_args!("cannot use the library {}", chosen.display()))?;
    let folder = private.join("chosen");
    std::fs::create_dir_all(&folder).what(format_args!("cannot make {}", folder.display()))?;
    let mut links: Vec<(OsString, PathBuf)> =
        [embedded::SONAME, "libibverbs.so"].map(|name| (name.into(), chosen.clone())).into();
    for entry in std::fs::read_dir(own).what("cannot list the stand-ins")?.flatten() {
        if !links.iter().any(|(name, _)| *name == entry.file_name()) {
            links.push((entry.file_name(), entry.path()));
        }
    }
    for (name, target) in links {
        let link = folder.join(name);
        std::os::unix::fs::symlink(target, &link)
            .what(format_args!("cannot make {}", link.display()))?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_never_spoils_another_file() {
        let folder = std::env::temp_dir().join(format!("peerdma-trace-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("file");
        assert_eq!(trace_file(&file).unwrap(), file);
        std::fs::write(&file, PCAP.to_ne_bytes()).unwrap();
        assert_eq!(trace_file(&file).unwrap(), file);
        std::fs::write(&file, "a letter").unwrap();
        let why = |path: &Path| trace_file(path).unwrap_err().into_parts().0;
        assert!(why(&file).contains("no trace"));
        assert!(why(&folder).contains("it is a folder"));
        assert!(why(&folder.join("a/b")).contains("no folder"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn lists_keep_what_the_user_had_and_name_us_once() {
        let prepend = |present: &str| prepend(OsStr::new(present), OsStr::new("/x/lib.so"), b" :");
        assert_eq!(prepend(""), "/x/lib.so");
        assert_eq!(prepend("a.so b.so"), "/x/lib.so:a.so:b.so");
        assert_eq!(prepend("a.so:/x/lib.so"), "/x/lib.so:a.so");
    }

    #[test]
    fn nvidias_libraries_come_first_where_they_are_asked_for() {
        let path = |gpu| {
            let device = Device { gpu, ..Device::default() };
            let path = library_path(&device, Path::new("/x/lib"), &|_| None).into_string().unwrap();
            path.split(':').take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(path(GpuInterface::Cuda), ["/x/lib/cuda", "/x/lib"]);
        assert_eq!(path(GpuInterface::Drm)[0], "/x/lib");
    }

    #[test]
    fn cudas_runtime_is_preloaded_where_it_is_asked_for() {
        let list = |gpu, present: &str| {
            let device = Device { gpu, ..Device::default() };
            let present = OsString::from(present);
            let had = move |name: &str| (name == "LD_PRELOAD").then(|| present.clone());
            preloaded(&device, Path::new("/x"), &had).into_string().unwrap()
        };
        assert_eq!(list(GpuInterface::Drm, "a.so"), "/x/libibverbs.so.1:a.so");
        let all = "/x/libibverbs.so.1:/x/cuda/libcudart.so.12:/x/cuda/libcudart.so.13";
        assert_eq!(list(GpuInterface::Cuda, ""), all);
        assert_eq!(list(GpuInterface::Cuda, "a.so b.so"), format!("{all}:a.so:b.so"));
        assert_eq!(list(GpuInterface::Cuda, all), all);
    }
}
