//! What happens when the process that hosts the registry is killed, stopped or forks.

mod common;

use common::{Child, Rendezvous, until_received};
use registry::{Client, Error, Role};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(2);
const NOW: Duration = Duration::from_millis(0);

#[test]
fn child_process() {
    common::run_as_child();
}

/// Whether one datagram to each slot, over each family, arrives there and nowhere else.
fn is_exact(place: &Rendezvous, members: &mut [(Child, u16)], tag: u32, within: Duration) -> bool {
    for (child, _) in members.iter_mut() {
        while child.receive(NOW).is_some() {}
    }
    for ip in ["127.0.0.1", "::1"] {
        for (_, slot) in members.iter() {
            place.send_to(ip, *slot, tag);
        }
        for (child, slot) in members.iter_mut() {
            if child.receive(within) != Some((*slot, tag)) {
                return false;
            }
        }
    }
    members.iter_mut().all(|(child, _)| child.receive(NOW).is_none())
}

fn steering_is_exact(place: &Rendezvous, members: &mut [(Child, u16)], tag: u32) {
    assert!(is_exact(place, members, tag, SOON));
}

/// Waits until all are listed and steering is exact; returns how long that took.
fn recovery(place: &Rendezvous, members: &mut [(Child, u16)], tag: u32) -> Duration {
    let begin = Instant::now();
    let listed = |child: &mut Child, slots: &[u16]| {
        let list = child.ask("members");
        slots.iter().all(|slot| list.split(' ').any(|m| m.starts_with(&format!("{slot}:"))))
    };
    let slots: Vec<u16> = members.iter().map(|(_, slot)| *slot).collect();
    while !listed(&mut members[0].0, &slots)
        || !is_exact(place, members, tag, Duration::from_millis(5))
    {
        assert!(begin.elapsed() < Duration::from_secs(5), "no recovery");
    }
    let took = begin.elapsed();
    steering_is_exact(place, members, tag + 1_000_000);
    took
}

/// A machine that stands still now and then is soon enough in one of some rounds.
#[test]
fn after_a_killed_host_every_slot_works_again_also_the_stopped_ones() {
    let took: Vec<_> = (0..5).map_while(|_| a_host_is_killed()).collect();
    assert!(took.len() < 5, "{took:?}");
}

/// How long the others took until all was as before, if that was long.
fn a_host_is_killed() -> Option<Duration> {
    let place = Rendezvous::new();
    let (host, _) = place.member();
    let mut members: Vec<_> = (0..3).map(|_| place.member()).collect();
    let (mut stopped, stopped_slot) = place.member();
    assert_eq!(members[0].0.ask("publish vram/1 control"), "ok");
    let slot = members[0].1;
    assert_eq!(members[0].0.ask(&format!("claim {slot} 5")), "ok");
    stopped.signal(libc::SIGSTOP);

    host.kill();
    let took = recovery(&place, &mut members, 1);
    eprintln!("every live slot works {took:?} after the host's end");
    assert_eq!(members[1].0.ask("lookup vram/1"), "control");
    assert_eq!(members[1].0.ask("owner 5"), slot.to_string());
    let directory = format!("directory of {}", members[0].0.pid());
    assert_eq!(members[1].0.ask(&format!("directory {slot}")), directory);

    // What is sent to the stopped one less than half a second after the takeover waits for it.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        place.send(stopped_slot, 2);
        members[0].0.receive(Duration::from_millis(10));
    }
    place.send(stopped_slot, 3);
    stopped.signal(libc::SIGCONT);
    let mut got = stopped.receive(SOON);
    while let Some((_, tag)) = got
        && tag != 3
    {
        got = stopped.receive(SOON);
    }
    assert_eq!(got, Some((stopped_slot, 3)));

    // It comes back by itself, and then all are listed.
    members.push((stopped, stopped_slot));
    recovery(&place, &mut members, 4);
    members.push(place.member());
    steering_is_exact(&place, &mut members, 5);
    (took >= Duration::from_secs(1)).then_some(took)
}

#[test]
fn no_datagram_goes_astray_when_the_host_ends() {
    let place = Rendezvous::new();
    let (host, _) = place.member();
    let mut members: Vec<_> = (0..5).map(|_| place.member()).collect();
    // A vacant seat in the middle, which only the host holds.
    members.remove(2).0.kill();
    recovery(&place, &mut members, 1);
    host.kill();
    // Longer than a successor waits for members to come back.
    let begin = Instant::now();
    let mut tag = 100;
    while begin.elapsed() < Duration::from_millis(600) {
        tag += 1;
        steering_is_exact(&place, &mut members, tag);
    }
    recovery(&place, &mut members, 2);
}

#[test]
fn a_new_member_waits_for_those_of_the_host_before() {
    let place = Rendezvous::new();
    let (host, _) = place.member();
    let mut members: Vec<_> = (0..4).map(|_| place.member()).collect();
    members.remove(1).0.kill();
    recovery(&place, &mut members, 1);
    for (child, _) in &members {
        child.signal(libc::SIGSTOP);
    }
    host.kill();
    let mut new = place.child();
    assert_eq!(new.ask("connect member"), "ok");
    new.tell("join");
    // All the while nobody is back, and the new one hosts.
    let begin = Instant::now();
    let mut tag = 100;
    while tag < 102 || begin.elapsed() < Duration::from_millis(50) {
        tag += 1;
        for (_, slot) in &members {
            place.send(*slot, tag);
        }
        std::thread::yield_now();
    }
    for (child, _) in &members {
        child.signal(libc::SIGCONT);
    }
    let slot = new.hear().strip_prefix("joined ").unwrap().parse().unwrap();
    for (child, slot) in &mut members {
        // What fits a receive buffer; a gap at its front would be what went astray.
        assert_eq!(child.receive(SOON), Some((*slot, 101)));
        assert_eq!(child.receive(SOON), Some((*slot, 102)));
    }
    members.push((new, slot));
    recovery(&place, &mut members, 2);
}

/// How long a new host keeps answers back (`EARLY` of the client).
const EARLY: Duration = Duration::from_millis(300);

#[test]
fn what_a_new_host_is_asked_waits_for_those_who_come_back() {
    assert!((0..20).any(|_| a_new_host_is_asked()), "each time who came back was late");
}

/// Whether all was known that was asked; otherwise who came back was late.
fn a_new_host_is_asked() -> bool {
    let place = Rendezvous::new();
    let (host, _) = place.member();
    let (mut member, slot) = place.member();
    assert_eq!(member.ask("publish vram/1 control"), "ok");
    assert_eq!(member.ask(&format!("claim {slot} 5")), "ok");
    member.signal(libc::SIGSTOP);
    let questions = [
        "members".to_owned(),
        format!("directory {slot}"),
        "lookup vram/1".to_owned(),
        "owner 5".to_owned(),
    ];
    let mut asking: Vec<_> = questions.iter().map(|_| place.child()).collect();
    host.kill();
    // The new ones come and ask while nobody is back; the first of them hosts.
    let begin = Instant::now();
    for (new, question) in asking.iter_mut().zip(&questions) {
        assert_eq!(new.ask("connect member"), "ok");
        new.tell(question);
    }
    std::thread::sleep(Duration::from_millis(50));
    member.signal(libc::SIGCONT);
    let answers: Vec<String> = asking.iter_mut().map(Child::hear).collect();
    let took = begin.elapsed();
    let directory = format!("directory of {}", member.pid());
    let rest = [directory, "control".to_owned(), slot.to_string()];
    if !answers[0].starts_with(&format!("{slot}:")) || answers[1..] != rest {
        assert!(took > EARLY, "{answers:?} after {took:?}");
        return false;
    }
    // Once that is over, there is nothing to wait for.
    let quick = || {
        let begin = Instant::now();
        assert_eq!(asking[0].ask("lookup vram/2"), "error Unknown");
        begin.elapsed() < Duration::from_millis(100)
    };
    assert!(std::iter::repeat_with(quick).take(5).any(|quick| quick));
    true
}

#[test]
fn an_observer_waits_for_members_that_lost_their_host() {
    assert!((0..5).any(|_| an_observer_waits()), "each time the member was late");
}

/// Whether it found the member; otherwise that was late.
fn an_observer_waits() -> bool {
    let place = Rendezvous::new();
    let (host, _) = place.member();
    let (member, slot) = place.member();
    member.signal(libc::SIGSTOP);
    host.kill();
    let options = place.options();
    let begin = Instant::now();
    let looking = std::thread::spawn(move || {
        Client::connect_at(Role::Observer, &options).and_then(|observer| observer.members())
    });
    std::thread::sleep(Duration::from_millis(50));
    member.signal(libc::SIGCONT);
    let listed = looking.join().unwrap();
    if let Err(error) = &listed
        && begin.elapsed() >= Duration::from_millis(500)
    {
        eprintln!("{error}");
        return false;
    }
    assert_eq!(listed.unwrap().iter().map(|member| member.slot).collect::<Vec<_>>(), [slot]);
    true
}

#[test]
fn hosts_killed_one_after_the_other_are_followed_every_time() {
    let place = Rendezvous::new();
    let mut members: Vec<_> = (0..6).map(|_| place.member()).collect();
    let mut tag = 0;
    while members.len() > 1 {
        tag += 1;
        // Whoever hosts: kill all but one in turn; a new process joins half of the time.
        members.remove(0).0.kill();
        if tag % 2 == 0 && tag < 6 {
            members.push(place.member());
        }
        recovery(&place, &mut members, tag);
    }
}

#[test]
fn host_and_members_killed_together_leave_the_others_working() {
    let place = Rendezvous::new();
    let mut members: Vec<_> = (0..8).map(|_| place.member()).collect();
    for at in [6, 3, 1, 0] {
        members[at].0.signal(libc::SIGKILL);
    }
    for at in [6, 3, 1, 0] {
        members.remove(at).0.kill();
    }
    let took = recovery(&place, &mut members, 1);
    assert!(took < Duration::from_secs(1), "{took:?}");
    // The new host sees the order as it is also in what follows.
    members.remove(0).0.kill();
    members.push(place.member());
    recovery(&place, &mut members, 3);
}

#[test]
fn a_stopped_host_is_deposed_and_abdicates_when_it_wakes() {
    let place = Rendezvous::new();
    let (mut host, host_slot) = place.member();
    let mut members: Vec<_> = (0..2).map(|_| place.member()).collect();
    assert_eq!(members[0].0.ask("publish vram/1 control"), "ok");
    host.signal(libc::SIGSTOP);
    // Traffic does not care.
    steering_is_exact(&place, &mut members, 1);

    // A new process gets in, and nobody is lost.
    let begin = Instant::now();
    members.push(place.member());
    let took = begin.elapsed();
    eprintln!("joined beside a stopped host within {took:?}");
    recovery(&place, &mut members, 2);
    assert_eq!(members[2].0.ask("lookup vram/1"), "control");

    place.send(host_slot, 4);
    host.signal(libc::SIGCONT);
    until_received(&place, &mut host, host_slot, 5);
    members.push((host, host_slot));
    recovery(&place, &mut members, 6);
    assert!(members[3].0.ask("members").contains(&format!("{host_slot}:")));
}

#[test]
fn an_observer_that_meets_a_stopped_host_has_it_deposed() {
    let place = Rendezvous::new();
    let (host, host_slot) = place.member();
    let mut members: Vec<_> = (0..3).map(|_| place.member()).collect();
    host.signal(libc::SIGSTOP);
    let begin = Instant::now();
    let observer = loop {
        match Client::connect_at(Role::Observer, &place.options()) {
            Ok(observer) => break observer,
            // It has two seconds, of which it needs more than one.
            Err(Error::Timeout) if begin.elapsed() < Duration::from_secs(20) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let listed = || observer.members().unwrap().iter().map(|m| m.slot).collect::<BTreeSet<_>>();
    let begin = Instant::now();
    let wanted = members.iter().map(|(_, slot)| *slot).collect();
    while listed() != wanted {
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", listed());
    }
    recovery(&place, &mut members, 1);
    host.signal(libc::SIGCONT);
    members.push((host, host_slot));
    recovery(&place, &mut members, 2);
}

#[test]
fn an_abandoned_copy_in_a_forked_child_holds_nothing_up() {
    let place = Rendezvous::new();
    let (mut host, _) = place.member();
    let mut members: Vec<_> = (0..2).map(|_| place.member()).collect();
    let forked: Vec<i32> = [host.ask("fork"), members[0].0.ask("fork")]
        .iter()
        .map(|pid| pid.parse().unwrap())
        .collect();
    steering_is_exact(&place, &mut members, 1);
    host.kill();
    let took = recovery(&place, &mut members, 2);
    assert!(took < Duration::from_secs(1), "{took:?}");
    for pid in forked {
        // SAFETY: a plain system call on a process that a child of ours started. It still lives, so
        // what was tested is what it did not hold up.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    }
}

#[test]
fn a_daemon_carries_on_what_its_parent_was() {
    let place = Rendezvous::new();
    let mut members: Vec<_> = (0..3).map(|_| place.member()).collect();
    assert_eq!(members[0].0.ask("publish vram/1 control"), "ok");
    assert_eq!(members[0].0.ask("pause"), "ok");
    // The host first, then one that is not; each time the others go on all the while.
    for at in [0, 2] {
        let (child, slot) = &mut members[at];
        let daemon = child.ask("daemon");
        let listed = format!("{slot}:{daemon}");
        let begin = Instant::now();
        while !members[1].0.ask("members").split(['*', ' ']).any(|member| member == listed) {
            assert!(begin.elapsed() < SOON, "the daemon {daemon} is not listed");
        }
        steering_is_exact(&place, &mut members, 10 + at as u32);
    }
    assert_eq!(members[1].0.ask("lookup vram/1"), "control");
    members.push(place.member());
    recovery(&place, &mut members, 20);
}

#[test]
fn a_host_that_drops_its_client_is_followed_like_a_killed_one() {
    let place = Rendezvous::new();
    let (mut host, _) = place.member();
    let mut members: Vec<_> = (0..3).map(|_| place.member()).collect();
    assert_eq!(host.ask("drop"), "ok");
    recovery(&place, &mut members, 1);
}

/// When a hundred members are given up that two processors serve.
const LATE: Duration = Duration::from_secs(20);

#[test]
fn a_hundred_members_come_and_go() {
    let place = Rendezvous::new();
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as usize % below
    };
    // Twenty processes with five members each; processes are killed and replaced at random.
    let full = |place: &Rendezvous| {
        let (mut child, first) = place.member();
        let mut slots = vec![first];
        slots.extend((1..5).map(|_| child.join()));
        (child, slots)
    };
    let mut processes: Vec<_> = (0..20).map(|_| full(&place)).collect();
    for round in 0..12_u32 {
        let victim = random(processes.len());
        match random(3) {
            0 => {
                processes.swap_remove(victim).0.kill();
                processes.push(full(&place));
            }
            1 => {
                let (child, slots) = &mut processes[victim];
                let gone = slots.swap_remove(random(slots.len()));
                assert_eq!(child.ask(&format!("leave {gone}")), "ok");
                slots.push(child.join());
            }
            _ => processes.swap_remove(victim).0.kill(),
        }
        let begin = Instant::now();
        for (child, slots) in &mut processes {
            for slot in slots.iter() {
                while begin.elapsed() < LATE {
                    place.send(*slot, round);
                    let got = child.receive(Duration::from_millis(5));
                    if got == Some((*slot, round)) {
                        break;
                    }
                }
            }
            while child.receive(NOW).is_some() {}
        }
        assert!(begin.elapsed() < LATE, "round {round}");
        for (child, slots) in &mut processes {
            for slot in slots.iter() {
                place.send(*slot, 5000 + round);
                assert_eq!(child.receive(SOON), Some((*slot, 5000 + round)), "round {round}");
            }
        }
    }
    let all: BTreeSet<u16> = processes.iter().flat_map(|(_, slots)| slots.clone()).collect();
    assert_eq!(all.len(), processes.iter().map(|(_, slots)| slots.len()).sum::<usize>());
}

#[test]
fn claims_are_given_back_within_one_deadline_when_nobody_answers() {
    let place = Rendezvous::new();
    let (host, _) = place.member();
    let client = place.connect();
    let directory = common::memfd("directory");
    let slot = client.join(&common::identity("one"), directory.as_fd()).unwrap().slot;
    let keys = 1..=8;
    keys.clone().for_each(|key| client.claim(slot, 1, key).unwrap());
    // Nobody hosts the registry, and nobody takes it over.
    assert!(client.pause(Instant::now() + SOON));
    host.signal(libc::SIGSTOP);
    let begin = Instant::now();
    let deadline = begin + Duration::from_millis(250);
    keys.for_each(|key| assert!(!client.release_by(deadline, 1, key)));
    // Two seconds for each would be sixteen.
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    host.signal(libc::SIGCONT);
    client.resume();
}

#[test]
fn a_call_that_nobody_answers_holds_a_pause_up_for_a_limited_time() {
    let place = Rendezvous::new();
    let (host, _) = place.member();
    let client = place.connect();
    host.signal(libc::SIGSTOP);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| client.members().map(drop));
        let limit = Duration::from_millis(100);
        // until the call is under way
        let took = loop {
            let begin = Instant::now();
            if !client.pause(begin + limit) {
                break begin.elapsed();
            }
            client.resume();
        };
        assert!(took >= limit && took < SOON / 2, "{took:?}");
        assert_eq!(client.adopt(), Err(registry::Error::Timeout));
        assert_eq!(client.lookup("vram/1").err(), Some(registry::Error::Abandoned));
        client.resume();
        host.signal(libc::SIGCONT);
        let _ = call.join().unwrap();
    });
}
