//! Acknowledges that wait for answers: they leave with them, and none is lost where the program
//! does not answer, but computes, ends, or fails. By packets on the wire, where they wait.

use std::time::Duration;
use system::{Namespace, Run, skip};

#[track_caller]
fn is_right(how: &str) {
    if !system::is_root() {
        skip!("network namespaces need root");
    }
    let program = match system::c_program("replies") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let host = Namespace::new("replies");
    let run = Run::hca(&format!("{} {how}", program.display())).option("--link=roce");
    run.within(&host).limit(Duration::from_secs(120)).finish().ok();
}

#[test]
fn an_answer_and_the_acknowledge_before_it_leave_at_once() {
    is_right("answers");
    is_right("writes");
}

#[test]
fn a_program_that_computes_is_not_waited_for() {
    is_right("computes");
}

#[test]
fn a_program_that_ends_on_its_last_message_has_acknowledged_it() {
    for _ in 0..5 {
        is_right("returns");
        is_right("leaves");
    }
}

#[test]
fn a_program_whose_answer_is_refused_has_acknowledged_what_it_was_for() {
    is_right("errs");
}
