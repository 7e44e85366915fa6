//! Neighbours: RDMA WRITEs and READs between two processes of one user on one host go from memory
//! to memory, and nothing else about them changes. What is not plain goes by packets, errors are
//! what packets make them, and memory that its owner took back is touched no more, whoever dies,
//! stands still or becomes another program meanwhile.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use system::{
    Counters, FIRST_GPU, Finished, Namespace, Packets, Run, User, c_program, is_root, judged,
    link_to_neighbours, pair, peerdma, port, skip, veth_pair,
};

/// How programs are told to reach each other, or the end of the test.
macro_rules! link {
    () => {
        match link_to_neighbours() {
            None => skip!("Yama keeps every process from the memory of others"),
            Some(link) => link,
        }
    };
}

macro_rules! need_perftest {
    () => {
        if !system::has("ib_write_bw") {
            skip!("perftest is not installed");
        }
    };
}

macro_rules! need_root {
    () => {
        if !is_root() {
            skip!("another user, or a network namespace, needs root");
        }
    };
}

const ITERATIONS: u64 = 1000;

/// perftest's programs with what a request of each is, at the end that it is made to.
const PERFTEST: [(&str, &str); 3] = [
    ("ib_write_bw -s 65536", "rx_write_requests"),
    ("ib_read_bw -s 65536", "rx_read_requests"),
    ("ib_write_lat -s 4096", "rx_write_requests"),
];

/// What the two ends of perftest counted.
struct Ends {
    server: Counters,
    client: Counters,
}

/// Runs perftest's `line` between two ends that `place` puts where they belong.
#[track_caller]
fn perftest(
    line: &str,
    place: impl Fn(Run, bool) -> Run,
    at: Option<&Namespace>,
    to: &str,
) -> Ends {
    let ends = Ends { server: Counters::new(), client: Counters::new() };
    let port = port();
    let (program, switches) = line.split_once(' ').expect("a program and its switches");
    let line = format!("{program} -d peerdma0 -x 0 -F -p {port} -n {ITERATIONS} {switches}");
    let run = |counters: &Counters| Run::hca(&line).env("PEERDMA_COUNTERS", counters.file());
    let server = place(run(&ends.server), true);
    let client = place(run(&ends.client).arg(to), false);
    pair(server, at, client, port);
    ends
}

impl Ends {
    /// At least half went directly, and the other end counted every one.
    #[track_caller]
    fn went_directly(&self, line: &str, at_target: &str) {
        let direct = self.client.sum("direct_requests");
        assert!(direct >= ITERATIONS / 2, "{line}: {direct} of {ITERATIONS} went directly");
        self.arrived(line, at_target);
    }

    /// All went by packets, and the other end counted every one.
    #[track_caller]
    fn went_by_packets(&self, line: &str, at_target: &str) {
        for end in [&self.server, &self.client] {
            assert_eq!(end.sum("direct_requests"), 0, "{line}");
            assert_eq!(end.sum("ring_pkts"), 0, "{line}");
        }
        let packets = self.server.sum("sent_pkts") + self.client.sum("sent_pkts");
        assert!(packets >= ITERATIONS, "{line}: {packets} packets");
        self.arrived(line, at_target);
    }

    #[track_caller]
    fn arrived(&self, line: &str, at_target: &str) {
        let arrived = self.server.sum(at_target);
        // By packets a long READ may be asked for in several parts.
        let more = if at_target == "rx_read_requests" { ITERATIONS / 2 } else { 0 };
        let wanted = ITERATIONS..=ITERATIONS + more;
        assert!(wanted.contains(&arrived), "{line}: {arrived} {at_target}");
    }
}

/// Messages, what answers them, and what is no plain request are packets all the same.
#[test]
fn perftests_messages_pass_through_shared_memory() {
    need_perftest!();
    let run =
        |line| perftest(line, |run, _| run.option("--link").option("auto"), None, "127.0.0.1");
    for line in ["ib_send_lat -s 8", "ib_send_bw -s 65536 -c UC", "ib_send_bw -s 65536 -b"] {
        let mut ends = run(line);
        // An unreliable connection stays where its first packet went: on the wire, where the other
        // end had no processor yet to attach the ring.
        for _ in 0..9 {
            if line.ends_with("UC") && ends.client.sum("ring_pkts") == 0 {
                ends = run(line);
            }
        }
        for end in [&ends.server, &ends.client] {
            let (through, sent) = (end.sum("ring_pkts"), end.sum("sent_pkts"));
            let most = through >= sent / 2 && through <= sent;
            assert!(most, "{line}: {through} of {sent} packets");
        }
        let messages = ends.client.sum("ring_pkts");
        assert!(messages >= ITERATIONS / 2, "{line}: {messages} packets");
    }
}

/// A program that waits for each short request has nothing from a packet, which the other end must
/// be awake for; one that posts many before it looks saves the calls to the system.
#[test]
fn short_requests_in_a_stream_share_packets() {
    need_perftest!();
    let link = link!();
    let run = |line| perftest(line, |run, _| run.option("--link").option(link), None, "127.0.0.1");
    run("ib_read_lat -s 8").went_directly("ib_read_lat", "rx_read_requests");
    let line = "ib_write_bw -s 8";
    // Where others want the processor, posts are not right behind one another.
    let mut direct = Vec::new();
    while direct.iter().all(|direct| *direct > ITERATIONS / 2) {
        assert!(direct.len() < 5, "of {ITERATIONS} went directly, one by one: {direct:?}");
        let ends = run(line);
        direct.push(ends.client.sum("direct_requests"));
        ends.arrived(line, "rx_write_requests");
    }
}

#[test]
fn perftest_goes_from_memory_to_memory() {
    need_perftest!();
    let link = link!();
    for (line, at_target) in PERFTEST {
        let ends = perftest(line, |run, _| run.option("--link").option(link), None, "127.0.0.1");
        ends.went_directly(line, at_target);
    }
}

#[test]
fn perftest_goes_by_packets_where_they_are_wanted() {
    need_perftest!();
    for (line, at_target) in PERFTEST {
        let roce = |run: Run, _| run.option("--link").option("roce");
        perftest(line, roce, None, "127.0.0.1").went_by_packets(line, at_target);
    }
    // One end that wants packets is enough.
    for server_wants in [true, false] {
        let (line, at_target) = PERFTEST[0];
        let one = |run: Run, is_server| match is_server == server_wants {
            true => run.option("--link").option("roce"),
            false => run,
        };
        perftest(line, one, None, "127.0.0.1").went_by_packets(line, at_target);
    }
}

#[test]
fn a_trace_has_every_packet() {
    need_perftest!();
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (number, (line, at_target)) in PERFTEST.into_iter().enumerate() {
        let file = |is_server| folder.path().join(format!("{number}-{is_server}.pcap"));
        let traced = |run: Run, is_server| run.option("--trace").option(file(is_server));
        perftest(line, traced, None, "127.0.0.1").went_by_packets(line, at_target);
        if system::has("tshark") {
            let packets = Packets::of(&file(false)).count_by(&["infiniband.bth.opcode"]);
            let all: usize = packets.values().sum();
            assert!(all as u64 >= ITERATIONS, "{line}: {all} packets in the trace");
        }
    }
}

#[test]
fn hosts_are_no_neighbours() {
    need_perftest!();
    need_root!();
    let (left, right) = veth_pair("neigh", 1500);
    for (line, at_target) in PERFTEST {
        let apart = |run: Run, is_server| run.within(if is_server { &left } else { &right });
        let ends = perftest(line, apart, Some(&left), "198.18.9.1");
        ends.went_by_packets(line, at_target);
    }
}

#[test]
fn perftest_of_a_plain_user_goes_from_memory_to_memory() {
    need_perftest!();
    need_root!();
    let link = link!();
    // UDP port 4791 is one user's in a namespace.
    let own = Namespace::new("plain");
    for (line, at_target) in PERFTEST {
        let plain = |run: Run, _| run.within(&own).user(User::Nobody).option("--link").option(link);
        perftest(line, plain, Some(&own), "127.0.0.1").went_directly(line, at_target);
    }
}

/// The program, or the end of the test.
macro_rules! compiled {
    ($name:literal) => {
        match c_program($name) {
            Ok(program) => program.display().to_string(),
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// A seed for delays and requests; the programs say which they had.
fn seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
}

/// The line of a story between two processes, which go directly or, where `link` says so, by
/// packets.
fn line(program: &str, arguments: &str, link: &str) -> String {
    let way = if link == "roce" { "packets" } else { "direct" };
    let (story, rounds) = arguments.split_once(' ').unwrap_or((arguments, ""));
    format!("{program} {story} {way} {rounds} {}", seed())
}

#[track_caller]
fn story(program: &str, arguments: &str, link: &str, least: u32) -> Finished {
    let run = Run::hca(&line(program, arguments, link));
    judged(run.option("--link").option(link), least)
}

/// A story of a GPU's memory. What moves a buffer, or takes it back, does so with all that are in
/// the namespace.
#[track_caller]
fn story_on_gpu(program: &str, arguments: &str, link: &str, least: u32) -> Finished {
    let own = Namespace::new("gpu");
    let line = line(program, arguments, link);
    let script = format!("GPU={FIRST_GPU} PEERDMA={} exec {line}", peerdma().display());
    judged(Run::hca("sh -c").arg(script).within(&own).option("--link").option(link), least)
}

#[test]
fn every_byte_arrives() {
    let (program, link) = (compiled!("neighbours"), link!());
    for link in [link, "roce"] {
        story(&program, "bytes", link, 134);
    }
}

/// Programs watch a flag or a counter of two or four bytes, and the kernel copies such bytes one by
/// one.
#[test]
fn a_word_that_a_program_watches_is_never_seen_in_part() {
    let (program, link) = (compiled!("watched"), link!());
    for link in [link, "roce"] {
        for memory in ["", "file-"] {
            story(&program, &format!("{memory}writes"), link, 30);
            story(&program, &format!("{memory}reads"), link, 21);
        }
    }
}

#[test]
fn requests_are_done_in_the_order_of_their_queue() {
    let (program, link) = (compiled!("neighbours"), link!());
    for link in [link, "roce"] {
        story(&program, "order", link, 6);
        story(&program, "mixed", link, 4);
    }
}

#[test]
fn what_is_refused_is_refused_as_by_packets() {
    let (program, link) = (compiled!("neighbours"), link!());
    let outcomes = [link, "roce"].map(|link| {
        let said = story(&program, "refusals", link, 113).stdout;
        let outcomes = said.lines().filter(|line| line.starts_with("outcome"));
        outcomes.map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0].len(), 30);
}

/// Stories at once: what they wait for is mostly time that goes by.
fn at_once(program: &str, link: &str, stories: &[&str], rounds: u32, least: u32) {
    std::thread::scope(|scope| {
        for name in stories {
            scope.spawn(move || story(program, &format!("{name} {rounds}"), link, least));
        }
    });
}

/// Stories of processes that end or stand still, each with its rounds and least rows, at once. Each
/// has a network of its own where this user may make one: the end of a registry that another story
/// was using too is no part of it.
fn apart_at_once(program: &str, link: &str, stories: &[(&str, u32, u32)]) {
    std::thread::scope(|scope| {
        for &(name, rounds, least) in stories {
            scope.spawn(move || {
                let own = is_root().then(|| Namespace::new(name));
                let run = Run::hca(&line(program, &format!("{name} {rounds}"), link));
                let run = own.iter().fold(run, |run, own| run.within(own));
                judged(run.option("--link").option(link), least)
            });
        }
    });
}

const OF_MEMORY: [&str; 5] = ["dereg", "munmap", "map-over", "mremap", "dontneed"];
const OF_KEYS: [&str; 3] = ["rereg-memory", "rereg-access", "rereg-pd"];
const OF_QUEUE_PAIRS: [&str; 4] = ["qp-access", "qp-err", "qp-reset", "qp-destroy"];

/// Nor by a key, or a queue pair, that no longer gives leave.
#[test]
fn memory_that_was_taken_back_is_touched_no_more() {
    let (program, link) = (compiled!("neighbours_part"), link!());
    let stories = [&OF_MEMORY[..], &OF_KEYS, &OF_QUEUE_PAIRS].concat();
    at_once(&program, link, &stories, 50, 7);
}

/// What the stories want is no more than what packets do.
#[test]
fn by_packets_all_of_it_ends_the_same() {
    let program = compiled!("neighbours_part");
    for stories in [&OF_MEMORY[..], &OF_QUEUE_PAIRS[1..]] {
        at_once(&program, "roce", stories, 3, 7);
    }
    let stories =
        [("killed-initiator", 3, 2), ("killed-target", 3, 3), ("exec", 3, 4), ("fork", 3, 6)];
    apart_at_once(&program, "roce", &stories);
}

#[test]
fn a_gpus_memory_that_was_taken_back_is_touched_no_more() {
    need_root!();
    let (program, link) = (compiled!("neighbours_part"), link!());
    let both = |name| {
        story_on_gpu(&program, &format!("{name} 10"), link, 7);
        story_on_gpu(&program, &format!("{name} 2"), "roce", 7);
    };
    std::thread::scope(|scope| {
        for name in ["gpu-dereg", "gpu-qp-access", "gpu-qp-err", "gpu-revoke"] {
            scope.spawn(move || both(name));
        }
    });
}

#[test]
fn a_gpus_memory_is_reached_where_it_is() {
    need_root!();
    let (program, link) = (compiled!("neighbours_part"), link!());
    for link in [link, "roce"] {
        story_on_gpu(&program, "gpu-move 20", link, 8);
    }
}

/// A copy to memory that is mapped stands still in its middle, where a call to the system would
/// have ended.
#[test]
fn a_visitor_of_a_gpus_memory_that_stands_still_writes_little_afterwards() {
    need_root!();
    let (program, link) = (compiled!("neighbours_part"), link!());
    story_on_gpu(&program, "gpu-stopped 6", link, 4);
}

/// As perftest, UCX and NIXL register GPU memory by default.
#[test]
fn a_gpus_translated_memory_is_counted_as_by_packets() {
    need_root!();
    let (program, link) = (compiled!("translated"), link!());
    for link in [link, "roce"] {
        story_on_gpu(&program, "units", link, 31);
    }
}

/// Or the end of the test: what the kernel does not watch is not mapped at both ends.
macro_rules! need_watch {
    () => {
        if let Err(error) = mm::can_watch() {
            skip!("the kernel does not tell of unmappings: {error}");
        }
    };
}

/// A memfd, a file of a path or huge pages, and what is none of these.
#[test]
fn a_file_in_memory_is_mapped_as_long_as_it_is_used() {
    need_watch!();
    let (program, link) = (compiled!("neighbours_files"), link!());
    for link in [link, "roce"] {
        story(&program, "comes", link, 170);
    }
}

#[test]
fn none_is_mapped_where_calls_are_filtered_or_address_space_is_limited() {
    let (program, link) = (compiled!("neighbours_files"), link!());
    story(&program, "filtered", link, 170);
    let limited = format!("ulimit -v 33554432 && exec {}", line(&program, "comes", link));
    judged(Run::hca("sh -c").arg(limited).option("--link").option(link), 170);
}

/// Its end is cut off, pages are taken out of it, it may not be written, or another file is in its
/// place, while it is mapped at both ends.
#[test]
fn a_file_that_its_owner_changes_fails_as_by_packets() {
    need_watch!();
    let (program, link) = (compiled!("neighbours_files"), link!());
    let outcomes = [link, "roce"].map(|link| {
        let said = story(&program, "changes", link, 67).stdout;
        let outcomes = said.lines().filter(|line| line.starts_with("outcome"));
        outcomes.map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0].len(), 8);
}

const OF_FILES: [&str; 8] = [
    "file-dereg",
    "file-munmap",
    "file-bare-munmap",
    "file-map-over",
    "file-mremap",
    "file-dontneed",
    "file-rereg-access",
    "file-qp-err",
];

/// The file itself, which stays, is touched no more: a view of it is not what the key stands for.
#[test]
fn a_file_that_was_taken_back_is_touched_no_more() {
    need_watch!();
    let (program, link) = (compiled!("neighbours_part"), link!());
    at_once(&program, link, &OF_FILES, 30, 8);
    at_once(&program, "roce", &OF_FILES, 3, 8);
    story(&program, "file-stopped 4", link, 4);
}

#[test]
fn a_message_of_packets_goes_no_further_than_its_leave() {
    let program = compiled!("neighbours_part");
    at_once(&program, "roce", &OF_KEYS, 3, 7);
    at_once(&program, "roce", &OF_QUEUE_PAIRS[..1], 3, 7);
}

/// Nobody waits for a killed neighbour, and for one that stands still so long and no longer;
/// another program in the same process is no neighbour, and a fork leaves the memory its parent's.
#[test]
fn whoever_ends_or_stands_still_does_no_harm() {
    let (program, link) = (compiled!("neighbours_part"), link!());
    let stories = [
        ("killed-initiator", 20, 2),
        ("killed-target", 20, 3),
        ("stopped", 4, 4),
        ("exec", 30, 4),
        ("fork", 20, 6),
    ];
    apart_at_once(&program, link, &stories);
}

#[test]
fn more_peers_than_rings_get_their_datagrams() {
    need_root!();
    let program = compiled!("datagram_rings");
    // Its processes only: a ring is one of those that the device has.
    let own = Namespace::new("datagrams");
    judged(Run::hca(&format!("{program} 70")).within(&own).limit(Duration::from_secs(180)), 8);
}
