//! UCX's benchmark, however a distribution built it.

use crate::Run;
use std::path::Path;
use std::sync::OnceLock;

/// Variables for it. Where it is built for MPI, what MPI loads closes a socket in whose `accept` a
/// thread of its own waits, and waits for that thread.
pub const UCX_PERFTEST_ENV: (&str, &str) = ("FI_VERBS_DGRAM_USE_NAME_SERVER", "0");

/// Why UCX cannot be tried here: it is not installed, or its distribution built it without verbs.
pub fn lacks_ucx() -> Option<String> {
    if !crate::has("ucx_perftest") || !crate::has("ucx_info") {
        return Some("UCX is not installed (package ucx-utils)".to_owned());
    }
    // From 1.15 on it tells where it is, and is also packaged without what drives verbs.
    let about = Run::plain("ucx_info -v").finish().stdout;
    let library = about.lines().find_map(|line| line.strip_prefix("# Library path: "))?;
    let module = Path::new(library.trim()).with_file_name("ucx").join("libuct_ib.so.0");
    let words = || format!("UCX came without verbs: {} is missing", module.display());
    (!module.exists()).then(words)
}

/// How it is called: one that is built for MPI wants to be started by `mpirun` unless an option
/// says otherwise.
pub fn ucx_perftest() -> &'static str {
    static CALL: OnceLock<&str> = OnceLock::new();
    CALL.get_or_init(|| {
        let help = Run::plain("ucx_perftest -h").finish();
        let for_mpi = format!("{}{}", help.stdout, help.stderr).contains("-P <0|1>");
        if for_mpi { "ucx_perftest -P 0" } else { "ucx_perftest" }
    })
}
