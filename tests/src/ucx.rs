//! UCX's benchmark, however a distribution built it.

use crate::Run;
use std::sync::OnceLock;

/// Variables for it. Where it is built for MPI, what MPI loads closes a socket in whose `accept` a thread of its own waits, and
/// waits for that thread.
pub const UCX_PERFTEST_ENV: (&str, &str) = ("FI_VERBS_DGRAM_USE_NAME_SERVER", "0");

/// How it is called: one that is built for MPI wants to be started by `mpirun` unless it is told to do without.
pub fn ucx_perftest() -> &'static str {
    static CALL: OnceLock<&str> = OnceLock::new();
    CALL.get_or_init(|| {
        let help = Run::plain("ucx_perftest -h").finish();
        let for_mpi = format!("{}{}", help.stdout, help.stderr).contains("-P <0|1>");
        if for_mpi { "ucx_perftest -P 0" } else { "ucx_perftest" }
    })
}
