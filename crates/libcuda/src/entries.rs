//! All functions by name and version: what `cuGetProcAddress` looks through. The build script makes
//! the table of `entry-points.txt` and of what the sources in `calls` define.
#![allow(clashing_extern_declarations, reason = "the table wants addresses only")]

use cuda::{Error, Res};

/// A function.
pub struct Entry {
    symbol: &'static str,
    version: u32,
    is_built: bool,
    address: unsafe extern "C" fn() -> u32,
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "made by the build script")]
mod made {
    use super::Entry;
    include!(concat!(env!("OUT_DIR"), "/entries.rs"));
}

/// Which default stream a program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultStream {
    /// The one that all threads share.
    Legacy,
    /// Each thread's own.
    PerThread,
}

/// How a search ended (`CUdriverProcAddressQueryResult`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Found = 0,
    NotFound = 1,
    VersionTooOld = 2,
}

/// Name without version and kind of default stream, and whether it is of the second kind.
fn base(symbol: &str) -> (&str, bool) {
    let plain = symbol.strip_suffix("_ptsz").or_else(|| symbol.strip_suffix("_ptds"));
    let name = plain.unwrap_or(symbol);
    let unversioned = name.rsplit_once("_v").filter(|(_, version)| {
        !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit())
    });
    (unversioned.map_or(name, |(name, _)| name), plain.is_some())
}

/// The newest function of a name that is not newer than a version of CUDA (12090 is 12.9). A name
/// with a version or a suffix is taken as it is.
pub fn find(name: &str, version: u32, default: DefaultStream) -> (Option<u64>, Outcome) {
    let exact = made::ENTRIES.iter().find(|entry| entry.symbol == name && base(name).0 != name);
    if let Some(entry) = exact {
        return (Some(entry.address()), Outcome::Found);
    }
    let named = || made::ENTRIES.iter().filter(|entry| base(entry.symbol).0 == name);
    let newest = |per_thread: bool| {
        let fits = |entry: &&Entry| base(entry.symbol).1 == per_thread && entry.version <= version;
        named().filter(fits).max_by_key(|entry| entry.version)
    };
    let own = if default == DefaultStream::PerThread { newest(true) } else { None };
    match own.or_else(|| newest(false)) {
        Some(entry) => (Some(entry.address()), Outcome::Found),
        None if named().next().is_some() => (None, Outcome::VersionTooOld),
        None => (None, Outcome::NotFound),
    }
}

impl Entry {
    fn address(&self) -> u64 {
        if !self.is_built {
            cuda::log::say_once(format_args!("{} is asked for, and is not there", self.symbol));
        }
        self.address as usize as u64
    }
}

/// The kind of default stream by the flags of `cuGetProcAddress`.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for flags that are none.
pub fn default_of(flags: u64) -> Res<DefaultStream> {
    match flags {
        0 | 1 => Ok(DefaultStream::Legacy),
        2 => Ok(DefaultStream::PerThread),
        _ => Err(Error::INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, version: u32, default: DefaultStream) -> Option<&'static str> {
        let (found, _) = find(name, version, default);
        let is_it = |entry: &&Entry| Some(entry.address()) == found;
        found.and_then(|_| made::ENTRIES.iter().find(is_it)).map(|entry| entry.symbol)
    }

    #[test]
    fn the_newest_that_is_old_enough_is_found() {
        use DefaultStream::*;
        assert_eq!(symbol("cuMemFree", 3020, Legacy), Some("cuMemFree_v2"));
        assert_eq!(symbol("cuMemFree", 12090, PerThread), Some("cuMemFree_v2"));
        assert_eq!(symbol("cuMemcpyHtoDAsync", 12000, Legacy), Some("cuMemcpyHtoDAsync_v2"));
        assert_eq!(
            symbol("cuMemcpyHtoDAsync", 12000, PerThread),
            Some("cuMemcpyHtoDAsync_v2_ptsz")
        );
        assert_eq!(symbol("cuMemcpyHtoDAsync", 4000, PerThread), Some("cuMemcpyHtoDAsync_v2"));
        assert_eq!(symbol("cuGetProcAddress", 11030, Legacy), Some("cuGetProcAddress"));
        assert_eq!(symbol("cuGetProcAddress", 13000, Legacy), Some("cuGetProcAddress_v2"));
        assert_eq!(symbol("cuMemAlloc_v2", 2000, Legacy), Some("cuMemAlloc_v2"));
        assert_eq!(find("cuMemAllocAsync", 11010, Legacy), (None, Outcome::VersionTooOld));
        assert_eq!(find("cuNothing", 13000, Legacy), (None, Outcome::NotFound));
    }

    #[test]
    fn a_function_that_is_not_there_says_so() {
        let (found, outcome) = find("cuGraphCreate", 13000, DefaultStream::Legacy);
        assert_eq!(outcome, Outcome::Found);
        let entry = made::ENTRIES.iter().find(|entry| entry.symbol == "cuGraphCreate").unwrap();
        assert!(!entry.is_built && found == Some(entry.address()));
        // SAFETY: it takes nothing of what it would be called with.
        assert_eq!(unsafe { (entry.address)() }, 801);
    }
}
