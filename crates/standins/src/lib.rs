//! Stand-ins for rdma-core's provider libraries.
//!
//! perftest, UCX, libfabric and pyverbs link `libmlx5.so.1`, `libefa.so.1` and their like directly.
//! The distribution's own need private symbols of exactly their libibverbs, so they cannot live
//! beside ours. These small libraries export every public symbol of each at its version and fail as
//! its manual page says a device of another provider fails: nothing pretends, and no program finds
//! a symbol missing.
//!
//! The one table is `symbols.txt`. The built libraries are inside this crate as bytes
//! ([`LIBRARIES`]); whoever unpacks them also makes the link without the version ([`link_name`]),
//! which programs that load a provider at run time ask for.
#![forbid(unsafe_code)]

pub mod table;

/// File name (which is the soname) and content of each library.
pub const LIBRARIES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/libraries.rs"));

/// The table the libraries were built from.
pub const SYMBOLS: &str = include_str!("../symbols.txt");

/// The development name of a library: `libmlx5.so` for `libmlx5.so.1`.
pub fn link_name(file_name: &str) -> &str {
    let version = file_name.rsplit_once(".so.").map_or("", |(_, version)| version);
    file_name.strip_suffix(version).map_or(file_name, |name| name.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::parse;

    #[test]
    fn every_library_is_embedded_as_an_elf_file() {
        let names: Vec<&str> = LIBRARIES.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            [
                "libmlx5.so.1",
                "libmlx4.so.1",
                "libefa.so.1",
                "libhns.so.1",
                "libmana.so.1",
                "libionic.so.1"
            ]
        );
        assert!(LIBRARIES.iter().all(|(_, bytes)| bytes.starts_with(b"\x7fELF")));
        assert_eq!(link_name("libmlx5.so.1"), "libmlx5.so");
        assert_eq!(link_name("cuda/libcudart.so.12"), "cuda/libcudart.so");
        assert_eq!(link_name("libmlx5.so"), "libmlx5.so");
    }

    #[test]
    fn bad_tables_name_the_line() {
        for (text, line) in [
            ("node A\n", 1),
            ("library l\nf errno\n", 2),
            ("library l\nnode A\nf what\n", 3),
            ("library l\nnode A B\n", 2),
            ("\nlibrary a b\n", 2),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("line {line}:")), "{text:?}: {error}");
        }
    }
}
