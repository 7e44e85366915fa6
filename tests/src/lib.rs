//! What the whole-system tests stand on: programs we did not write, run on the software HCA, each with a time limit.
//!
//! A test that cannot run here says why with [`skip!`], which the test command counts. Namespaces, users and the lab's
//! guest are made for one test and gone with it.
#![forbid(unsafe_code)]

mod c;
mod capture;
pub mod conformance;
mod connectx;
mod container;
mod counters;
mod debian;
pub mod gpu_guest;
pub mod lab;
mod meeting;
mod namespace;
mod rows;
mod run;

pub use c::{c_example, c_program};
pub use capture::{Capture, Packets};
pub use connectx::serve_connectx;
pub use container::Container;
pub use counters::Counters;
pub use debian::{beside_suite, next_debian};
pub use meeting::{converse, listening, pair, perftest_came_early, port};
pub use namespace::{Namespace, veth_pair};
pub use rows::{judged, rows};
pub use run::{Finished, Run, Running, User, gpu_memory, peerdma, shared_dir};
pub use vm::apt::Apt;

/// Ends the calling test as skipped: prints the reason and notes it for the test command's closing line.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::note_skip(&format!($($reason)*));
        return;
    }};
}

/// Whether this process is root: namespaces and other users need it.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a program is on the PATH.
pub fn has(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

/// Notes a skipped test in the file that the test command names.
pub fn note_skip(reason: &str) {
    use std::io::Write;
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    eprintln!("skipped: {name}: {reason}");
    let Some(file) = std::env::var_os("PEERDMA_SKIPS") else { return };
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    if let Ok(mut file) = opened {
        let _ = writeln!(file, "{name}: {reason}");
    }
}
