//! Where unsafe code may live: in rooms that are for it, and in single files of others. Every other
//! room forbids it altogether.

use super::modules::Crate;
use super::workspace::{crate_roots, crates, within};
use std::path::Path;

/// The rooms that unsafe code may live in, as ARCHITECTURE.md tells.
const ROOMS: &[&str] = &[
    "cli",
    "cuda",
    "dmabuf",
    "gpu",
    "engine-thread",
    "libcuda",
    "libcudart",
    "libcudart12",
    "libcudart13",
    "libnvml",
    "link",
    "mm",
    "peerdma",
    "registry",
    "shim",
    "shm",
    "verbs",
];

/// The ones among those that are not unsafe as a whole, with the files that are.
const FILES: &[(&str, &[&str])] = &[
    ("cli", &["process/supervise.rs"]),
    ("cuda", &["sys/abi.rs", "sys/copy.rs", "sys/map.rs", "sys/migrate.rs", "sys/node.rs"]),
    ("libcuda", &["entries.rs", "symbol.rs"]),
    ("libcudart", &["driver.rs"]),
    ("libcudart12", &[]),
    ("libcudart13", &[]),
    ("libnvml", &["ffi.rs"]),
    ("gpu", &["lease.rs", "providers/cuda_driver.rs", "providers/ioctl.rs"]),
];

/// Rooms that should forbid unsafe code and do not.
pub fn not_forbidden(root: &Path) -> Vec<String> {
    let others = crates(root).into_iter();
    let others = others.filter(|room| !ROOMS.iter().any(|name| room.ends_with(name)));
    let wrong = others.filter(|room| !forbids_unsafe(room));
    wrong.map(|room| format!("{} does not forbid unsafe code", room.display())).collect()
}

/// Files of the rooms that are not unsafe as a whole which have unsafe code and may not, and those
/// that may and have none.
pub fn elsewhere(root: &Path) -> Vec<String> {
    let of = |(room, may): &(&str, &[&str])| {
        let room = root.join("crates").join(room);
        in_room(
            root,
            &room,
            &may.iter().map(|file| within(root, &room.join("src").join(file))).collect::<Vec<_>>(),
        )
    };
    FILES.iter().flat_map(of).collect()
}

fn in_room(root: &Path, room: &Path, may: &[String]) -> Vec<String> {
    let mut has: Vec<String> = Vec::new();
    for crate_root in crate_roots(room) {
        match Crate::read(&crate_root) {
            Ok(found) => {
                let modules = found.modules.iter().filter(|module| module.has_unsafe);
                has.extend(modules.map(|module| within(root, &found.files[module.file])));
            }
            Err(error) => {
                return vec![format!("{} cannot be read: {error:#}", within(root, room))];
            }
        }
    }
    has.sort();
    has.dedup();
    let wrong = has.iter().filter(|file| !may.contains(file));
    let wrong = wrong.map(|file| format!("{file} has unsafe code and is not named for it"));
    let unneeded = may.iter().filter(|file| !has.contains(file));
    wrong
        .chain(unneeded.map(|file| format!("{file} is named for unsafe code and has none")))
        .collect()
}

fn forbids_unsafe(room: &Path) -> bool {
    ["lib.rs", "main.rs"]
        .iter()
        .filter_map(|name| std::fs::read_to_string(room.join("src").join(name)).ok())
        .any(|text| text.lines().any(|line| line == "#![forbid(unsafe_code)]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_that_nobody_named_must_forbid_unsafe_code() {
        let root = tempfile::tempdir().unwrap();
        let room = |name: &str, text: &str| {
            std::fs::create_dir_all(root.path().join(name).join("src")).unwrap();
            std::fs::write(root.path().join(name).join("Cargo.toml"), "").unwrap();
            std::fs::write(root.path().join(name).join("src/lib.rs"), text).unwrap();
        };
        for name in ["crates/wire", "tests", "xtask", "fuzz"] {
            room(name, "//! What it is.\n#![forbid(unsafe_code)]\n");
        }
        room("crates/mm", "");
        assert_eq!(not_forbidden(root.path()), [""; 0]);
        room("crates/new", "// #![forbid(unsafe_code)]\n");
        let [wrong] = not_forbidden(root.path()).try_into().unwrap();
        assert!(wrong.ends_with("crates/new does not forbid unsafe code"), "{wrong}");
    }

    #[test]
    fn unsafe_code_is_in_the_files_that_may_have_it() {
        let root = tempfile::tempdir().unwrap();
        let room = root.path().join("crates/gpu");
        std::fs::create_dir_all(room.join("src")).unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(room.join("src").join(name), text).unwrap();
        };
        file("lib.rs", "mod a; mod b; mod c; #[cfg(test)] mod tests { fn f() { unsafe {} } }");
        file("a.rs", "fn f() { unsafe { g() } }");
        file("b.rs", "// unsafe\nfn f() { let _ = \"unsafe\"; }");
        file("c.rs", "unsafe impl Send for C {}");
        let broken = |may: &[&str]| -> Vec<String> {
            let may: Vec<String> =
                may.iter().map(|file| format!("crates/gpu/src/{file}")).collect();
            in_room(root.path(), &room, &may)
        };
        assert_eq!(broken(&["a.rs", "c.rs"]), [""; 0]);
        assert_eq!(
            broken(&["a.rs"]),
            ["crates/gpu/src/c.rs has unsafe code and is not named for it"]
        );
        assert_eq!(
            broken(&["a.rs", "b.rs", "c.rs"]),
            ["crates/gpu/src/b.rs is named for unsafe code and has none"]
        );
    }
}
