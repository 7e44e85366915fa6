//! How a program is run on the built library.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
pub use test_support::library::path;

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

/// `program`, to be run on the library within 60 seconds, in the test program's own network: the
/// calling thread moves there.
pub fn command(program: &str) -> Command {
    test_support::network::enter();
    let mut command = Command::new("timeout");
    command
        .args(["-k", "2", "60", program])
        .env("LD_LIBRARY_PATH", folder())
        .env("LD_PRELOAD", folder().join("libibverbs.so.1"));
    command
}
