//! `peerdma connectx` as tests serve it.

use crate::{Namespace, Run, Running, peerdma};
use std::path::Path;
use std::time::Duration;

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
    serving.until("it does not serve", |serving| serving.said().contains("serving"));
    serving
}
