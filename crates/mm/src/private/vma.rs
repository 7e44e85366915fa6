//! Which parts of a range can be migrated, from `/proc/self/maps` (proc_pid_maps(5)).

use std::ops::Range;

/// The parts of `range` in private, anonymous memory that may be read and written.
pub(super) fn movable(range: &Range<u64>) -> Vec<Range<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(|line| part(line, range)).collect()
}

fn part(line: &str, range: &Range<u64>) -> Option<Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let rights = words.next()?;
    let (inode, name) = (words.nth(2)?, words.next().unwrap_or_default());
    let anonymous =
        inode == "0" && (name.is_empty() || name == "[heap]" || name.starts_with("[anon:"));
    let (start, end) = (start.max(range.start), end.min(range.end));
    let good = rights.starts_with("rw") && rights.ends_with('p') && anonymous;
    (good && start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_anonymous_writable_memory() {
        let all = 0..u64::MAX;
        for (line, expected) in [
            ("1000-3000 rw-p 00000000 00:00 0", Some(0x1000..0x3000)),
            ("1000-3000 rw-p 00000000 00:00 0      [heap]", Some(0x1000..0x3000)),
            ("1000-3000 rwxp 00000000 00:00 0  [anon:mine]", Some(0x1000..0x3000)),
            ("1000-3000 r--p 00000000 00:00 0", None),
            ("1000-3000 rw-s 00000000 00:01 77    /dev/zero (deleted)", None),
            ("1000-3000 rw-p 00000000 08:01 4242   /usr/lib/libc.so", None),
            ("1000-3000 rw-p 00000000 00:00 0      [stack]", None),
            ("nonsense", None),
            ("", None),
        ] {
            assert_eq!(part(line, &all), expected, "{line}");
        }
        let line = "1000-3000 rw-p 00000000 00:00 0";
        assert_eq!(part(line, &(0x2000..0x9000)), Some(0x2000..0x3000));
        assert_eq!(part(line, &(0x3000..0x9000)), None);
    }
}
