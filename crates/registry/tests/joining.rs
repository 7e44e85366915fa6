//! The claim of joining a multicast group, whatever becomes of its holder.

mod common;

use common::{Child, Rendezvous};
use registry::JOINING_LEASE;
use std::time::{Duration, Instant};

#[test]
fn child_process() {
    common::run_as_child();
}

/// Asks for the claim of joining until it is granted; returns how long that took.
fn until_joining(child: &mut Child, slot: u16) -> Duration {
    let begin = Instant::now();
    loop {
        match child.ask(&format!("claim-joining {slot}")).as_str() {
            "ok" => return begin.elapsed(),
            answer => assert_eq!(answer, "error Taken"),
        }
        assert!(begin.elapsed() < 3 * JOINING_LEASE, "the claim is never given up");
    }
}

#[test]
fn who_stops_while_it_joins_a_group_holds_the_others_up_for_a_limited_time() {
    let place = Rendezvous::new();
    let (_host, _) = place.member();
    let (mut holder, held) = place.member();
    let (mut other, slot) = place.member();
    assert_eq!(holder.ask(&format!("claim-joining {held}")), "ok");
    holder.signal(libc::SIGSTOP);
    let took = until_joining(&mut other, slot);
    assert!(took > JOINING_LEASE / 2, "{took:?}");
    holder.signal(libc::SIGCONT);
    assert_eq!(holder.ask("release-joining"), "lost");
    assert_eq!(holder.ask(&format!("claim-joining {held}")), "error Taken");
    assert_eq!(other.ask("release-joining"), "kept");

    // One that ended holds nobody up.
    assert_eq!(holder.ask(&format!("claim-joining {held}")), "ok");
    holder.kill();
    let took = until_joining(&mut other, slot);
    assert!(took < JOINING_LEASE / 2, "{took:?}");
}

#[test]
fn a_claim_of_joining_does_not_outlive_the_host() {
    let place = Rendezvous::new();
    let (host, _) = place.member();
    let (mut holder, held) = place.member();
    let (mut other, slot) = place.member();
    assert_eq!(holder.ask(&format!("claim-joining {held}")), "ok");
    holder.signal(libc::SIGSTOP);
    host.kill();
    // Another joins and is done with it before the holder comes back to the new host.
    until_joining(&mut other, slot);
    assert_eq!(other.ask("release-joining"), "kept");
    holder.signal(libc::SIGCONT);
    assert_eq!(holder.ask("release-joining"), "lost");
}
