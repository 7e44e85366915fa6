//! Where the built library is, and how a program is run on it.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library of the profile that this test was built with. For tests cargo does not build a library that they cannot
/// link to, so it is built here: an old one would be tested otherwise.
pub fn path() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let profile = exe.parent().and_then(Path::parent).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--target-dir"]);
        cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the library does not build");
        profile.join("libibverbs.so")
    })
    .clone()
}

/// A folder with the library under the names that the loader looks for.
fn folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let folder = path().with_file_name("deps").join("peerdma-verbs-lib");
            std::fs::create_dir_all(&folder).unwrap();
            for name in ["libibverbs.so", "libibverbs.so.1"] {
                let link = folder.join(name);
                // Another test program of the same build may be at it: the link is the same.
                match std::os::unix::fs::symlink(path(), &link) {
                    Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                        panic!("{}: {error}", link.display())
                    }
                    _ => {}
                }
            }
            folder
        })
        .clone()
}

/// `program`, to be run on the library within 60 seconds.
pub fn command(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "2", "60", program])
        .env("LD_LIBRARY_PATH", folder())
        .env("LD_PRELOAD", folder().join("libibverbs.so.1"));
    command
}
