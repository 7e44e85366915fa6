//! The device's counters that a program on the software HCA leaves behind (`PEERDMA_COUNTERS`).

use std::path::PathBuf;
use tempfile::TempDir;

/// A file that programs append their counters to when they end. Any user may.
#[derive(Debug)]
pub struct Counters {
    folder: TempDir,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters::new()
    }
}

impl Counters {
    /// An empty file, to be named in `PEERDMA_COUNTERS`.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new() -> Counters {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let counters = Counters { folder };
        std::fs::write(counters.file(), "").expect("a file for counters");
        for (path, mode) in [(counters.folder.path().to_owned(), 0o755), (counters.file(), 0o666)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
                .expect("a file for everybody");
        }
        counters
    }

    /// The file.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("counters")
    }

    /// Everything that was written: lines of a name and a value, once for each device closed.
    pub fn text(&self) -> String {
        std::fs::read_to_string(self.file()).unwrap_or_default()
    }

    /// A counter, over all programs.
    ///
    /// # Panics
    /// When no program wrote it: it does not exist, or no device was closed.
    pub fn sum(&self, name: &str) -> u64 {
        let text = self.text();
        let values: Vec<u64> = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(found, _)| *found == name)
            .filter_map(|(_, value)| value.parse().ok())
            .collect();
        assert!(!values.is_empty(), "no counter {name}:\n{text}");
        values.iter().sum()
    }
}

/// Bytes that HCAs read from GPUs and wrote to them directly, by what counters say: lines
/// `route HCA GPU KIND READ WRITTEN`.
///
/// # Panics
/// When such a line has no numbers.
pub fn of_gpus(text: &str) -> u64 {
    let routes = text.lines().filter(|line| line.starts_with("route ") && !line.contains("host"));
    let counts = routes.flat_map(|line| line.rsplit(' ').take(2));
    counts.map(|count| count.parse::<u64>().expect("a number")).sum()
}

#[cfg(test)]
mod tests {
    use super::{Counters, of_gpus};

    #[test]
    fn counters_of_several_programs_add_up() {
        let counters = Counters::new();
        std::fs::write(counters.file(), "sent_pkts 3\nrcvd_pkts 4\nsent_pkts 5\n").unwrap();
        assert_eq!(counters.sum("sent_pkts"), 8);
        assert_eq!(counters.sum("rcvd_pkts"), 4);
    }

    #[test]
    fn bytes_of_gpus_are_those_of_their_routes() {
        let text = "sent_bytes 9\nroute 0000:18:00.0 host memory NONE 1 2\n\
                    route 0000:18:00.0 0000:1a:00.0 BUS_ADDR 4 8\n\
                    route 0000:18:00.0 0000:3b:00.0 THRU_HOST_BRIDGE 16 32\n";
        assert_eq!(of_gpus(text), 60);
    }

    #[test]
    #[should_panic(expected = "no counter sent")]
    fn a_counter_that_nobody_wrote_is_an_error() {
        Counters::new().sum("sent");
    }
}
