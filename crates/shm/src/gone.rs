//! Whether a process has ended, its parent having heard of it or not.

/// Whether no thread of process `pid` runs any more. A zombie's do not, though its parent has not
/// heard of its end: where `/proc` shows that. Allocates nothing.
pub fn is_gone(pid: u32) -> bool {
    let Some(number) = rustix::process::Pid::from_raw(pid.cast_signed()) else { return true };
    if rustix::process::test_kill_process(number) == Err(rustix::io::Errno::SRCH) {
        return true;
    }
    let mut text = [0u8; 512];
    read_stat(pid, &mut text).is_some_and(is_zombie)
}

/// The start of `/proc/PID/stat`.
fn read_stat(pid: u32, text: &mut [u8]) -> Option<&[u8]> {
    let (stat, flags) = (format_args!("stat"), rustix::fs::OFlags::RDONLY);
    let file = crate::Processes::seen().and_then(|all| all.open(pid, stat, flags)).ok()?;
    let len = rustix::io::read(&file, &mut *text).ok()?;
    text.get(..len)
}

/// Whether `stat` is of a process that has ended (proc_pid_stat(5)): its state is Z or X, and it
/// has one thread, since the first of several may end before the others do.
fn is_zombie(stat: &[u8]) -> bool {
    // The name before it is in parentheses and may hold anything.
    let Some(end) = stat.iter().rposition(|&byte| byte == b')') else { return false };
    let mut fields = stat[end + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = fields.next();
    // State is field 3, the number of threads field 20.
    let threads = fields.nth(16);
    matches!(state, Some(b"Z" | b"X")) && matches!(threads, Some(b"0" | b"1"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_whatever_the_name_is() {
        let line = |state: &str, threads: &str| {
            format!("7 (a) Z (b) {state} 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 5\n")
        };
        assert!(is_zombie(line("Z", "1").as_bytes()));
        assert!(!is_zombie(line("Z", "2").as_bytes()), "its first thread only");
        assert!(!is_zombie(line("S", "1").as_bytes()));
        assert!(!is_zombie(b"") && !is_zombie(b"7 (a)"));
        assert!(!is_gone(std::process::id()) && is_gone(0));
    }
}
