//! Programs that wait for events of messages from another process of the host, by rings: whoever
//! waits is woken in time, whatever pauses, threads, signals or ends come between.

use system::{Namespace, Run, judged, skip};

#[track_caller]
fn is_right(program: &str, story: &str, rows: u32) {
    if !system::is_root() {
        skip!("network namespaces need root");
    }
    let program = match system::c_program(program) {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let host = Namespace::new("events");
    let run = Run::hca(&format!("{} {story}", program.display()));
    judged(run.within(&host), rows);
}

#[test]
fn whoever_waits_is_woken_after_pauses_of_any_length() {
    is_right("events", "pauses", 4);
}

#[test]
fn threads_that_wait_are_woken_each_for_its_own() {
    is_right("events", "threads", 4);
}

#[test]
fn a_thread_that_polls_takes_nothing_from_one_that_waits() {
    is_right("events", "beside", 4);
}

#[test]
fn a_channel_that_does_not_block_is_readable_in_time() {
    is_right("events", "epoll", 6);
}

#[test]
fn who_takes_a_message_and_computes_has_acknowledged_it() {
    is_right("events", "computes", 5);
}

#[test]
fn after_a_thread_is_cancelled_another_gets_its_events() {
    is_right("events_amid", "cancelled", 5);
}

#[test]
fn signals_end_a_wait_or_let_it_go_on_as_their_handlers_say() {
    is_right("events_amid", "signals", 6);
}

#[test]
fn who_is_long_in_a_handler_amid_its_wait_keeps_no_peer_waiting() {
    is_right("events_amid", "handlers", 4);
}

#[test]
fn a_process_that_forks_while_it_waits_is_woken() {
    is_right("events_amid", "forks", 4);
}

#[test]
fn a_request_to_a_killed_process_fails_while_its_event_is_waited_for() {
    is_right("events_amid", "killed", 6);
}

#[test]
fn a_process_that_connects_meanwhile_wakes_who_waits() {
    is_right("events_amid", "third", 8);
}
