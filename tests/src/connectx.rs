//! `peerdma connectx` as tests serve it.

use crate::{Namespace, Run, Running, peerdma};
use std::path::Path;
use std::time::{Duration, Instant};

/// `peerdma connectx` at `socket` in a network of its own, once it serves, with more options.
///
/// # Panics
/// When it does not.
pub fn serve_connectx(namespace: &Namespace, socket: &Path, options: &[&str]) -> Running {
    let mut serving = Run::program(peerdma())
        .args(&["connectx", "--socket"])
        .arg(socket)
        .args(options)
        .within(namespace)
        .limit(Duration::from_secs(1800))
        .start();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !serving.said().contains("serving") {
        assert!(serving.alive() && Instant::now() < deadline, "{}", serving.said());
        std::thread::yield_now();
    }
    serving
}
