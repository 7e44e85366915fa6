//! Two processes on one host, whose bytes go from memory to memory (`--link local`): beside the
//! bare system calls that move as much (`tests/c/peers`) and beside UCX, in the same run.

use super::contest::Contest;
use super::mpi;
use super::pair::{column, from_gbit, from_mib, perftest, perftest_apart, ucx, ucx_by_cma};
use super::program::peer;
use super::table::{Aim, Table};
use anyhow::{Context, Result};
use system::Run;
use tempfile::NamedTempFile;

const SIZES: [(u64, &str); 3] = [(64 << 10, "64 KiB"), (1 << 20, "1 MiB"), (8 << 20, "8 MiB")];
/// What one measurement of bandwidth moves.
const BYTES_MOVED: u64 = 3 << 30;
const MOVED_BY_FILE: u64 = 6 << 30;
/// How long a bare peer moves bytes.
const SECONDS: &str = "0.4";
const ROUND_TRIPS: &str = "20000";
/// Where files lie in memory, and how long one is: perftest takes what it needs.
const IN_MEMORY: &str = "/dev/shm";
const FILE_BYTES: u64 = 64 << 20;
/// With this many messages a post, and so many in all.
const RATE: &str = "-s 8 --post_list=16 -n 800000 -N --report_gbits";
/// UCX warms up with this many messages; its own choice takes long where they are large.
const UCX_WARM_UP: u32 = 50;

/// Measures it all.
pub(super) fn measure(rounds: u32) -> Table {
    let mut contest = Contest::default();
    for (bytes, size) in SIZES {
        in_own_memory(&mut contest, bytes, size);
    }
    for (bytes, size) in SIZES {
        in_files(&mut contest, bytes, size);
    }
    sends(&mut contest);
    latencies(&mut contest);
    for (name, program) in [("WRITEs", "ib_write_bw"), ("SENDs", "ib_send_bw")] {
        let of = format!("{name} of 8 B, 16 a post");
        let rate = contest
            .add(of, "M/s", move || column(&perftest(&format!("{program} {RATE}"), local)?, 4));
        contest.aim(rate, Aim::AtLeast(1.5));
    }
    mpi::add(&mut contest);
    contest.run(rounds);
    contest.table("ratio")
}

fn in_own_memory(contest: &mut Contest<'_>, bytes: u64, size: &str) {
    let ways = [
        ("WRITE", "ib_write_bw", "write", "process_vm_writev", "put_bw", "put"),
        ("READ", "ib_read_bw", "read", "process_vm_readv", "get", "get"),
    ];
    for (name, program, way, call, test, of_ucx) in ways {
        let bare = contest.add(format!("{call} {size}"), "GB/s", move || moved_bare(way, bytes));
        let ucx = contest.add(format!("UCX {of_ucx} by cma {size}"), "GB/s", move || {
            let count = BYTES_MOVED / bytes;
            from_mib(&ucx_by_cma(&format!("{test} -s {bytes} -n {count} -w {UCX_WARM_UP}"))?)
        });
        let ours = contest.add(format!("{name} {size}"), "GB/s", move || {
            from_gbit(&perftest(&bandwidth(program, bytes, BYTES_MOVED), local)?)
        });
        contest.compare(ours, ucx, Aim::RatioAtLeast(1.0));
        contest.compare(ours, bare, Aim::RatioAtLeast(0.9));
    }
}

fn in_files(contest: &mut Contest<'_>, bytes: u64, size: &str) {
    let bare = contest.add(format!("memcpy between mapped files {size}"), "GB/s", move || {
        moved_bare("file", bytes)
    });
    for (name, program) in [("WRITE", "ib_write_bw"), ("READ", "ib_read_bw")] {
        let ours = contest.add(format!("{name} {size} of files"), "GB/s", move || {
            from_gbit(&of_files(&bandwidth(program, bytes, MOVED_BY_FILE))?)
        });
        contest.compare(ours, bare, Aim::RatioAtLeast(0.9));
    }
}

fn sends(contest: &mut Contest<'_>) {
    let (bytes, count) = (1 << 20, BYTES_MOVED >> 20);
    let tag = contest.add("UCX tag by cma 1 MiB", "GB/s", move || {
        let test = format!("tag_bw -s {bytes} -n {count} -w {UCX_WARM_UP}");
        from_mib(&ucx("posix,cma", &test)?)
    });
    let ours = contest.add("SEND 1 MiB", "GB/s", move || {
        from_gbit(&perftest(&bandwidth("ib_send_bw", bytes, BYTES_MOVED), local)?)
    });
    contest.compare(ours, tag, Aim::RatioAtLeast(1.0));
}

fn latencies(contest: &mut Contest<'_>) {
    let pingpong = |way: &'static str| move || peer("bare_pingpong", &[way, ROUND_TRIPS]);
    let of_ucx = |test: &'static str| {
        move || column(&ucx("posix,self", &format!("{test} -s 8 -n {ROUND_TRIPS} -w 1000"))?, 1)
    };
    let ours = |line: &'static str| move || column(&perftest(&latency(line), local)?, 4);

    let calls = contest.add("process_vm_writev ping-pong 8 B", "us", pingpong("call"));
    let write = contest.add("WRITE latency 8 B", "us", ours("ib_write_lat"));
    contest.compare(write, calls, Aim::RatioAtMost(1.5));

    let put = contest.add("UCX put latency by shared memory 8 B", "us", of_ucx("ucp_put_lat"));
    let tag = contest.add("UCX tag latency by shared memory 8 B", "us", of_ucx("tag_lat"));
    let write = contest.add("WRITE latency 8 B of files", "us", || {
        column(&of_files(&latency("ib_write_lat"))?, 4)
    });
    contest.compare(write, put, Aim::RatioAtMost(2.0));
    contest.compare(write, tag, Aim::RatioAtMost(2.0));

    let send = contest.add("SEND latency 8 B, polling", "us", ours("ib_send_lat"));
    contest.compare(send, tag, Aim::RatioAtMost(1.5));
    let wakes = contest.add("eventfd ping-pong of two that sleep", "us", pingpong("wake"));
    let send = contest.add("SEND latency 8 B, by events", "us", ours("ib_send_lat -e"));
    contest.compare(send, wakes, Aim::RatioAtMost(1.5));
}

fn local(run: Run) -> Run {
    run.option("--link=local")
}

fn bandwidth(program: &str, bytes: u64, moved: u64) -> String {
    format!("{program} -s {bytes} -n {} -N --report_gbits", moved / bytes)
}

fn latency(program: &str) -> String {
    format!("{program} -s 8 -n {ROUND_TRIPS}")
}

fn moved_bare(way: &str, bytes: u64) -> Result<f64> {
    peer("bare_copy", &[way, &bytes.to_string(), SECONDS])
}

/// A program of perftest's whose memory is a file at each end.
fn of_files(line: &str) -> Result<Vec<f64>> {
    let files = [file()?, file()?];
    perftest_apart(line, |run, end| {
        local(run).arg(format!("--mmap={}", files[end].path().display()))
    })
}

fn file() -> Result<NamedTempFile> {
    let file = tempfile::Builder::new().prefix("peerdma-bench").tempfile_in(IN_MEMORY);
    let file = file.with_context(|| format!("a file in {IN_MEMORY}"))?;
    file.as_file().set_len(FILE_BYTES)?;
    Ok(file)
}
