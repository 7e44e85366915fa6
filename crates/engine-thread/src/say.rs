//! Lines on the stderr of somebody else's program.
//!
//! That it takes nothing more is no reason to fail, nor to end the program: where its reader is
//! gone a write sends SIGPIPE (pipe(7)), which the program did not ask for. Nor does it hear of it
//! by errno, which is that of the call that it made.

use std::io::Write;

/// Writes a line, which ends with a line feed.
pub fn say(line: &str) {
    crate::kept_signal::without(libc::SIGPIPE, || {
        // SAFETY: this thread's own.
        let errno = unsafe { *libc::__errno_location() };
        let _ = std::io::stderr().write_all(line.as_bytes());
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    });
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    const ASKED: &str = "PEERDMA_TEST_SAYS";

    /// In a process of its own, whose stderr nobody reads and which SIGPIPE would end.
    #[test]
    fn a_line_that_nobody_reads_ends_nothing() {
        if std::env::var_os(ASKED).is_some() {
            // SAFETY: the default action, which std has taken away.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            super::say("to nobody\n");
            std::process::exit(7);
        }
        let own = std::env::current_exe().unwrap();
        let name = "say::tests::a_line_that_nobody_reads_ends_nothing";
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = Command::new(own);
        child.args([name, "--exact", "--nocapture"]).env(ASKED, "1").stdout(Stdio::null());
        let status = child.stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(7), "{status}");
    }
}
