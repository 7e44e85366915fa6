//! What a host program does to the process that it shares with the engine: the engine goes on, and
//! the program finds what it would find without it.

use system::{Namespace, Run, c_program, is_root, judged, skip};

/// The program, or the end of the test as skipped.
macro_rules! compiled {
    ($name:literal) => {
        match c_program($name) {
            Ok(program) => program.display().to_string(),
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// A network of the test's own where that can be made.
struct Network(Option<Namespace>);

impl Network {
    fn new() -> Network {
        Network(is_root().then(|| Namespace::new("host")))
    }

    fn run(&self, line: &str) -> Run {
        match &self.0 {
            Some(namespace) => Run::hca(line).within(namespace),
            None => Run::hca(line),
        }
    }
}

#[test]
fn closing_every_descriptor_spares_the_engine() {
    let program = compiled!("closes_all");
    judged(Network::new().run(&program), 36);
}

#[test]
fn errno_is_the_programs() {
    let program = compiled!("errno_kept");
    judged(Network::new().run(&program), 75);
    judged(Network::new().run(&program).option("--gpu").option("cuda"), 75);
}

#[test]
fn a_limit_on_file_sizes_ends_no_program() {
    let program = compiled!("file_limit");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (trace, counters) = (folder.path().join("trace.pcap"), folder.path().join("counters"));
    let place = Network::new();
    let run = place.run(&program).option("--trace").option(&trace);
    judged(run.env("PEERDMA_COUNTERS", &counters), 6);
    let bytes = |path| std::fs::metadata(path).expect("a file").len();
    assert_eq!((bytes(&trace), bytes(&counters)), (4096, 0), "the limit was met");
}

#[test]
fn blocked_signals_do_not_turn_gone_memory_into_death() {
    judged(Network::new().run(&compiled!("masked")), 4);
}

#[test]
fn what_no_interposed_call_sees_ends_a_registration_too() {
    let program = compiled!("unseen_end");
    let place = Network::new();
    judged(place.run(&program), 83);
    judged(place.run(&format!("{program} refused")), 36);
    if kernel_is_at_least(6, 7) {
        judged(place.run(&format!("{program} files")), 6);
    }
}

/// Whether `uname -r` begins with this version or a later one.
fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-']).map(|number| number.trim().parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

#[test]
fn the_limit_on_locked_memory_counts_where_it_is_told_to() {
    let program = compiled!("memlock");
    let place = Network::new();
    judged(place.run(&format!("{program} ignore")), 7);
    let enforced = place.run(&format!("{program} enforce"));
    judged(enforced.option("--memlock").option("enforce"), 7);
}

#[test]
fn a_plugin_that_connects_while_it_is_loaded_is_served() {
    let plugin = match system::c_plugin("plugin") {
        Ok(plugin) if system::has("python3") => plugin,
        Ok(_) => skip!("python3 is not installed (package python3)"),
        Err(reason) => skip!("{reason}"),
    };
    let loads = format!("import ctypes; ctypes.CDLL('{}')", plugin.display());
    let place = Network::new();
    let run = place.run("python3").arg("-c").arg(loads);
    let done = run.limit(std::time::Duration::from_secs(30)).finish().ok();
    assert!(done.stdout.contains("ok a message comes while"), "{done}");
}
