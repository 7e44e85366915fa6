//! The registry among live processes: slots, steering, directories, publications, claims, users.

mod common;

use common::{Rendezvous, content, identity, memfd};
use registry::{Client, Error, Role};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::Duration;
use test_support::{is_root, skip};

const SOON: Duration = Duration::from_secs(2);
const NOW: Duration = Duration::from_millis(0);

#[test]
fn child_process() {
    common::run_as_child();
}

#[test]
fn each_slot_receives_its_own_datagrams_over_both_families() {
    let place = Rendezvous::new();
    let mut members: Vec<_> = (0..4).map(|_| place.member()).collect();
    for ip in ["127.0.0.1", "::1"] {
        for ((_, slot), tag) in members.iter().zip(0..) {
            place.send_to(ip, *slot, tag);
        }
        for (tag, (child, slot)) in members.iter_mut().enumerate() {
            assert_eq!(child.receive(SOON), Some((*slot, tag as u32)), "{ip}");
            assert_eq!(child.receive(NOW), None);
        }
    }
    // Slot 0, and slots nobody holds, are the leader's, the first that joined.
    place.send(0, 77);
    let free = (1..).find(|s| members.iter().all(|(_, slot)| slot != s)).unwrap();
    place.send(free, 78);
    let (leader, slot) = &mut members[0];
    assert_eq!(leader.receive(SOON), Some((*slot, 77)));
    assert_eq!(leader.receive(SOON), Some((*slot, 78)));
    let listed = leader.ask("members");
    assert!(listed.contains(&format!("{slot}:{}*", leader.pid())), "{listed}");
    assert_eq!(listed.split(' ').count(), 4);
}

#[test]
fn an_observer_sees_members_but_never_hosts() {
    let place = Rendezvous::new();
    let none = Client::connect_at(Role::Observer, &place.options());
    assert_eq!(none.err(), Some(Error::NoRegistry));
    let (child, slot) = place.member();
    let observer = Client::connect_at(Role::Observer, &place.options()).unwrap();
    let members = observer.members().unwrap();
    assert_eq!((members.len(), members[0].slot, members[0].pid), (1, slot, child.pid() as i32));
    assert!(members[0].leader && members[0].comm == "test" && members[0].device == "peerdma0");
    let directory = content(observer.directory(slot).unwrap());
    assert_eq!(directory, format!("directory of {}", child.pid()));
    child.kill();
    assert_eq!(observer.members().err(), Some(Error::NoRegistry));
}

#[test]
fn publications_reach_other_processes_and_end_with_their_owner() {
    let place = Rendezvous::new();
    let (mut host, _) = place.member();
    let (mut owner, _) = place.member();
    assert_eq!(owner.ask("publish vram/1 control"), "ok");
    assert_eq!(host.ask("lookup vram/1"), "control");
    assert_eq!(host.ask("publish vram/1 other"), "error Taken");
    assert_eq!(owner.ask("publish vram/1 again"), "ok");
    assert_eq!(host.ask("lookup vram/1"), "again");
    assert_eq!(owner.ask("publish vram/2 more"), "ok");
    assert_eq!(owner.ask("withdraw vram/1"), "ok");
    assert_eq!(host.ask("lookup vram/1"), "error Unknown");
    owner.kill();
    // The host learns of the end by an event that a request does not overtake for long.
    let client = place.connect();
    until(|| client.lookup("vram/2").err() == Some(Error::Unknown));
}

#[test]
fn claims_are_exclusive_and_name_their_owner() {
    let place = Rendezvous::new();
    let (mut a, slot_a) = place.member();
    let (mut b, slot_b) = place.member();
    assert_eq!(a.ask(&format!("claim {slot_a} 5")), "ok");
    assert_eq!(b.ask(&format!("claim {slot_b} 5")), "error Taken");
    assert_eq!(b.ask(&format!("claim {slot_a} 6")), "error Unknown");
    assert_eq!(b.ask("owner 5"), slot_a.to_string());
    assert_eq!(a.ask("release 5"), "ok");
    assert_eq!(b.ask(&format!("claim {slot_b} 5")), "ok");
    assert_eq!(b.ask(&format!("leave {slot_b}")), "ok");
    assert_eq!(a.ask("owner 5"), "error Unknown");
}

fn until(condition: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(5));
        std::thread::yield_now();
    }
}

#[test]
fn who_leaves_receives_nothing_and_nobody_else_notices() {
    let place = Rendezvous::new();
    let mut members: Vec<_> = (0..5).map(|_| place.member()).collect();
    let (mut gone, slot) = members.remove(1);
    assert_eq!(gone.ask(&format!("leave {slot}")), "ok");
    place.send(slot, 9);
    let (leader, leaders) = &mut members[0];
    assert_eq!(leader.receive(SOON), Some((*leaders, 9)));
    assert_eq!(gone.receive(NOW), None);
    for (child, slot) in &mut members {
        place.send(*slot, 1);
        assert_eq!(child.receive(SOON), Some((*slot, 1)));
    }
}

/// The rule that a member's end moves nobody: no datagram is lost or misdirected while others are
/// killed.
#[test]
fn killing_members_loses_no_datagram_of_others() {
    let place = Rendezvous::new();
    let (_host, _) = place.member();
    let victims: Vec<_> = (0..4).map(|_| place.member()).collect();
    let (mut steady, slot) = place.member();
    let mut tag = 0;
    for (victim, _) in victims {
        let mut victim = Some(victim);
        for round in 0..200 {
            if round == 50
                && let Some(victim) = victim.take()
            {
                victim.signal(libc::SIGKILL);
            }
            tag += 1;
            place.send(slot, tag);
            assert_eq!(steady.receive(SOON), Some((slot, tag)));
        }
    }
}

#[test]
fn peers_that_break_the_protocol_or_never_read_hurt_nobody() {
    let place = Rendezvous::new();
    let (mut host, _) = place.member();
    let mut crowd = place.child();
    assert_eq!(crowd.ask("crowd 50"), "ok");
    crowd.signal(libc::SIGSTOP);
    let (mut other, slot) = place.member();
    place.send(slot, 3);
    assert_eq!(other.receive(SOON), Some((slot, 3)));
    assert_eq!(host.ask("members").split(' ').count(), 2);
}

#[test]
fn bad_arguments_are_refused() {
    let place = Rendezvous::new();
    let client = place.connect();
    let fd = memfd("x");
    let long = "x".repeat(200);
    let who = identity(&long);
    assert_eq!(client.join(&who, fd.as_fd()).err(), Some(Error::TooLong("device name")));
    assert_eq!(client.publish(&long, fd.as_fd()), Err(Error::TooLong("id")));
    assert_eq!(client.directory(0).err(), Some(Error::Unknown));
    assert_eq!(client.directory(5000).err(), Some(Error::Unknown));
    assert_eq!(client.claim(7, 1, 1), Err(Error::Unknown));
    client.leave(7);
    client.withdraw("nothing");
}

#[test]
fn one_process_can_hold_several_slots() {
    let place = Rendezvous::new();
    let (mut child, first) = place.member();
    let second = child.join();
    assert_ne!(first, second);
    for slot in [first, second] {
        place.send(slot, u32::from(slot));
        assert_eq!(child.receive(SOON), Some((slot, u32::from(slot))));
    }
}

#[test]
fn another_user_has_a_registry_of_its_own_but_not_the_port() {
    if !is_root() {
        skip!("needs root to become another user");
    }
    let place = Rendezvous::new();
    let (_ours, _) = place.member();
    let mut nobody = place.child();
    assert_eq!(nobody.ask("setuid 65534"), "ok");
    assert_eq!(nobody.ask("connect observer"), "error NoRegistry");
    assert_eq!(nobody.ask("connect member"), "ok");
    assert_eq!(nobody.ask("members"), "");
    let refused = nobody.ask("join");
    assert!(refused.starts_with(&format!("error PortTaken {{ port: {}", place.port)), "{refused}");
    assert!(refused.contains("a program of uid 0 (socket inode"), "{refused}");
}

#[test]
fn a_squatter_of_another_user_denies_nothing() {
    if !is_root() {
        skip!("needs root to become another user");
    }
    let place = Rendezvous::new();
    let mut squatter = place.child();
    assert_eq!(squatter.ask("setuid 65534"), "ok");
    assert_eq!(squatter.ask("squat 0"), "ok");
    let none = Client::connect_at(Role::Observer, &place.options()).err();
    assert_eq!(none, Some(Error::NoRegistry));
    // The first hosts under a name that nobody could foresee, and the others find it there.
    let (mut first, slot) = place.member();
    let (mut second, other) = place.member();
    assert_ne!(slot, other);
    let listed = place.connect().members().unwrap();
    assert_eq!(listed.iter().map(|m| m.slot).collect::<BTreeSet<_>>(), [slot, other].into());
    for (child, slot, tag) in [(&mut first, slot, 1), (&mut second, other, 2)] {
        place.send(slot, tag);
        assert_eq!(child.receive(SOON), Some((slot, tag)));
    }
    // Whoever follows on it has another one, and the squatter's end changes nothing.
    first.kill();
    let listed = second.ask("members");
    assert!(listed.starts_with(&format!("{other}:")), "{listed}");
    squatter.kill();
    let (_third, third) = place.member();
    assert_ne!(third, other);
    assert_eq!(place.connect().members().unwrap().len(), 2);
}

#[test]
fn a_port_held_without_sharing_is_reported() {
    let place = Rendezvous::new();
    let _rude = std::net::UdpSocket::bind(("0.0.0.0", place.port)).unwrap();
    let client = place.connect();
    let refused = client.join(&identity("peerdma0"), memfd("x").as_fd()).unwrap_err();
    assert!(
        matches!(&refused, Error::PortTaken { holder, .. }
        if holder.contains("this user that does not share")),
        "{refused}"
    );
}
