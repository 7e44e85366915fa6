//! The library that programs are run on, as tests load and preload it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `libibverbs.so` of the profile that the calling test was built with. Cargo builds no library for
/// tests that cannot link to it, so it is built here: an old one would be tested otherwise.
///
/// # Panics
/// When it does not build.
pub fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let exe = std::env::current_exe().expect("the test program");
        let profile = exe.parent().and_then(Path::parent).expect("a profile's folder");
        let target = profile.parent().expect("a target folder");
        let mut cargo = Command::new(env!("CARGO"));
        // With this package too, what the library stands on is as it was built for the tests.
        cargo.args(["build", "--quiet", "--lib", "--package", "peerdma-verbs"]);
        cargo.args(["--package", env!("CARGO_PKG_NAME"), "--target-dir"]);
        cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success(), "the library does not build");
        profile.join("libibverbs.so")
    })
}
