//! Two queue pairs of one process, on one device: RDMA WRITEs and READs between them go from memory
//! to memory, and nothing else about them changes. The stories are those of neighbours; the other
//! end is a thread.

use std::time::{SystemTime, UNIX_EPOCH};
use system::{FIRST_GPU, Finished, Namespace, Run, c_program, is_root, judged, peerdma, skip};

/// Directly, and by packets.
const LINKS: [&str; 2] = ["auto", "roce"];

/// The program, or the end of the test.
macro_rules! compiled {
    ($name:literal) => {
        match c_program($name) {
            Ok(program) => program.display().to_string(),
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// A story, `place`d where it belongs; it says the seed that it had.
#[track_caller]
fn story(
    program: &str,
    arguments: &str,
    link: &str,
    least: u32,
    place: impl Fn(Run) -> Run,
) -> Finished {
    let way = if link == "roce" { "packets" } else { "direct" };
    let (name, rounds) = arguments.split_once(' ').unwrap_or((arguments, ""));
    let seed =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let (peerdma, line) = (peerdma().display(), format!("{program} {name} {way} {rounds} {seed}"));
    let line = format!("GPU={FIRST_GPU} PEERDMA={peerdma} exec {line}");
    let run = Run::hca("sh -c").arg(line).env("ONE_PROCESS", "1");
    judged(place(run.option("--link").option(link)), least)
}

#[test]
fn bytes_order_and_refusals_are_those_of_packets() {
    let program = compiled!("neighbours");
    let outcomes = LINKS.map(|link| {
        let told = |name, least| story(&program, name, link, least, |run| run).stdout;
        told("bytes", 134);
        told("order", 6);
        told("mixed", 4);
        let told = told("refusals", 113);
        let outcomes = told.lines().filter(|line| line.starts_with("outcome"));
        outcomes.map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0].len(), 30);
}

/// Or that another process has now.
#[test]
fn memory_that_was_taken_back_is_touched_no_more() {
    let program = compiled!("neighbours_part");
    let of_memory = ["dereg", "munmap", "map-over", "mremap", "dontneed"];
    let of_keys = ["rereg-memory", "rereg-access", "rereg-pd"];
    let of_queue_pairs = ["qp-access", "qp-err", "qp-reset", "qp-destroy"];
    let stories = [&of_memory[..], &of_keys, &of_queue_pairs].concat();
    std::thread::scope(|scope| {
        for (name, least) in stories.into_iter().map(|name| (name, 7)).chain([("fork", 6)]) {
            let program = &program;
            scope.spawn(move || story(program, &format!("{name} 30"), "auto", least, |run| run));
        }
    });
}

/// What moves a buffer, or takes it back, does so with all that are in the namespace.
#[test]
fn a_gpus_memory_is_reached_where_it_is() {
    if !is_root() {
        skip!("a network namespace needs root");
    }
    let program = compiled!("neighbours_part");
    let revokes = ["gpu-dereg", "gpu-qp-access", "gpu-qp-err", "gpu-revoke"];
    for (name, least) in revokes.map(|name| (name, 7)).into_iter().chain([("gpu-move", 4)]) {
        for (link, rounds) in LINKS.into_iter().zip([10, 2]) {
            let own = Namespace::new("gpu");
            story(&program, &format!("{name} {rounds}"), link, least, |run| run.within(&own));
        }
    }
}
