//! CPU time of the programs that were run.

use anyhow::{Context, Result};

/// Seconds that this process's children spent on CPUs, in the kernel too, those of theirs among
/// them: of all that ended and were waited for (`cutime` and `cstime` of proc_pid_stat(5)).
pub fn children_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let ticks = children_ticks(&stat).with_context(|| stat.clone())?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn children_ticks(stat: &str) -> Option<u64> {
    // The name, which may hold anything, ends at the last parenthesis; state is field 3.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(16 - 3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_childrens_fields_are_taken() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 1 2 3 4 50 60 700 80 20 0 1 0 99";
        assert_eq!(children_ticks(stat), Some(780));
    }
}
