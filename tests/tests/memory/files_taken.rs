//! Memory that is a file, and that a neighbour has mapped as well, where it must not be written by
//! that any longer, or never.

use system::{Finished, Run, c_program, is_root, judged, link_to_neighbours, skip};

/// Plays a story between two processes, which go directly or by packets, or ends the test.
macro_rules! story {
    ($name:literal, $least:literal) => {
        story!("files_taken", $name, $least)
    };
    ($program:literal, $name:literal, $least:literal) => {{
        let Some(link) = link_to_neighbours() else {
            skip!("Yama keeps every process from the memory of others");
        };
        let program = match c_program($program) {
            Ok(program) => program.display().to_string(),
            Err(reason) => skip!("{reason}"),
        };
        for (link, way) in [(link, "direct"), ("roce", "packets")] {
            story(&format!("{program} {} {way}", $name), link, $least);
        }
    }};
}

#[track_caller]
fn story(line: &str, link: &str, least: u32) -> Finished {
    judged(Run::hca(line).option("--link").option(link), least)
}

/// In a PID namespace whose `/proc` shows the processes outside, a stranger has the number of the
/// one that the bytes are for, and the like of its memory at the same address.
#[test]
fn a_stranger_of_the_same_number_is_not_written_to() {
    if !is_root() {
        skip!("a PID namespace needs root");
    }
    // Those of the two in the namespace are told before, and end the program where one is wrong.
    story!("stranger", 1);
}

/// A file system that a process serves, and that does not say what it is.
#[test]
fn nobody_waits_for_who_serves_a_file_system() {
    if !is_root() || !std::path::Path::new("/dev/fuse").exists() {
        skip!("to serve a file system needs root and /dev/fuse");
    }
    story!("unanswered", "writes", 3);
}

/// Nor do pages come to it that its owner has taken out of it.
#[test]
fn memory_that_was_taken_back_gets_no_pages() {
    story!("back", 2);
}

/// By the C library's functions, of whose calls the kernel tells nobody.
#[test]
fn what_takes_memory_away_unwatched_is_seen() {
    story!("remap", 3);
    story!("guard", 3);
}

#[test]
fn a_segment_that_is_detached_unseen_is_not_written() {
    story!("shmdt", 3);
    story!("shmat", 3);
}

#[test]
fn nothing_is_mapped_any_more_when_the_device_is_closed() {
    story!("closed", 4);
}

/// Its mask has come back by a jump, and the file is cut.
#[test]
fn a_thread_that_blocks_signals_outlives_a_file_that_is_cut() {
    story!("blocked", 4);
}

/// A bare close_range(2) has taken the descriptor by which the kernel tells.
#[test]
fn what_the_kernel_watches_no_more_is_written_by_calls() {
    story!("unwatched", 3);
}
