//! A network namespace of one's own, in which is nothing but the loopback interface: for what stays
//! on this host, or where UDP port 4791 of the host's is another user's.
//!
//! The program starts itself again there, by util-linux's `unshare`, for a process cannot leave its
//! namespace once it has threads.

use crate::console::failure::{Context, Failure, Outcome};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Names the namespace that the program came from.
pub const ORIGIN: &str = "PEERDMA_NETWORK_ORIGIN";

/// Goes on in a network namespace of its own: what was started there does, and sees a loopback
/// interface that is up.
///
/// # Errors
/// What refuses such a namespace. Otherwise the first process does not come back.
pub fn enter() -> Outcome<()> {
    if is_inside() {
        return link::set_loopback_up().what("cannot set the loopback interface up");
    }
    let here = namespace().what("cannot tell which network namespace this is")?;
    let program = std::env::current_exe().what("cannot find this program")?;
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        // who is nobody special needs a user namespace for it, and stays the user there
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.arg("--net").arg("--").arg(program).args(std::env::args_os().skip(1)).env(ORIGIN, here);
    let error = command.exec();
    let failure = Failure::new("cannot start in a network namespace").because(error);
    Err(failure.remedy("install util-linux, whose `unshare` makes one"))
}

/// Whether this process was started in one.
pub fn is_inside() -> bool {
    let origin = std::env::var_os(ORIGIN);
    origin.is_some_and(|origin| namespace().is_ok_and(|here| here != origin))
}

/// A name that no other network namespace has.
fn namespace() -> std::io::Result<OsString> {
    Ok(std::fs::read_link("/proc/self/ns/net")?.into_os_string())
}
