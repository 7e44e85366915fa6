//! Thousands of runs with programs that accept, refuse, dawdle, disconnect and die as a seed says,
//! over networks as bad as it says. Whatever happens, both ends come to the same conclusion in
//! time, hear of each thing once, and nothing is left.

use crate::net::*;
use cm::{ConnId, Event};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// No conversation may take longer to come about or to fail, on either side.
fn bound() -> Duration {
    2 * SENDINGS * (PATIENCE + THINKING)
}

/// Names the run that failed.
struct Named(u64, Faults);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SEED={} repeats it; {:?}", self.0, self.1);
        }
    }
}

/// What a program is going to do.
#[derive(Clone, Copy, Debug)]
enum Act {
    Reply,
    Ready,
    Reject,
    Disconnect,
    Destroy,
    Notify,
}

/// How an end's attempt came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Connected,
    /// REJ.
    Refused,
    /// No answer.
    Unreachable,
    /// Its own program refused or died.
    Withdrawn,
}

#[derive(Debug)]
struct End {
    token: u64,
    since: Instant,
    outcome: Option<Outcome>,
    /// The other end's DREQ or DREP, or that none came.
    ended: bool,
    rested: bool,
    gone: bool,
    /// Its program does nothing any more until the run's end.
    asleep: bool,
}

struct Run {
    net: Net,
    ends: HashMap<(usize, ConnId), End>,
    acts: BTreeMap<(Instant, u64), (usize, ConnId, Act)>,
    order: u64,
    /// Whether programs may dawdle and die, or do their best.
    honest: bool,
    qpn: u32,
}

impl Run {
    fn later(&mut self, at: (usize, ConnId), act: Act, delay: Duration) {
        self.order += 1;
        self.acts.insert((self.net.now + delay, self.order), (at.0, at.1, act));
    }

    fn soon(&mut self) -> Duration {
        self.net.rng.millis(0, 20)
    }

    fn connect(&mut self, from: usize, to: usize, token: u64) {
        self.qpn += 1;
        let conn = self.net.connect(from, to, self.qpn, &token.to_be_bytes());
        self.begin((from, conn), token);
    }

    fn begin(&mut self, at: (usize, ConnId), token: u64) {
        let end = End {
            token,
            since: self.net.now,
            outcome: None,
            ended: false,
            rested: false,
            gone: false,
            asleep: false,
        };
        let before = self.ends.insert(at, end);
        assert!(before.is_none_or(|end| end.gone), "an id in use was given again");
    }

    fn conclude(&mut self, at: (usize, ConnId), outcome: Outcome) {
        let now = self.net.now;
        let end = self.ends.get_mut(&at).expect("known");
        assert!(!end.gone, "told {outcome:?} after its end");
        assert_eq!(end.outcome, None, "told {outcome:?} besides");
        assert!(now - end.since <= bound(), "{outcome:?} after {:?}", now - end.since);
        end.outcome = Some(outcome);
    }

    /// Reacts to one event as the programs of this run do.
    fn told(&mut self, node: usize, event: Event) {
        match event {
            Event::Request(request) => self.requested(node, &request),
            Event::Reply(reply) => {
                let at = (node, reply.conn);
                let (delay, lazy) = (self.soon(), self.net.rng.millis(0, 30_000));
                match self.net.rng.range(0, 19) {
                    0 if !self.honest => self.later(at, Act::Reject, delay),
                    1 if !self.honest => self.later(at, Act::Destroy, delay),
                    2 => self.later(at, Act::Ready, lazy),
                    _ => self.later(at, Act::Ready, delay),
                }
            }
            Event::Established(conn) => {
                self.conclude((node, conn), Outcome::Connected);
                self.part((node, conn));
            }
            Event::Refused(refused) => {
                let at = (node, refused.conn);
                // A connection that one end believed in may be refused by the other, which gave up.
                match self.ends[&at].outcome {
                    Some(Outcome::Connected) => self.ended(at),
                    _ => self.conclude(at, Outcome::Refused),
                }
                let delay = self.soon();
                self.later(at, Act::Destroy, delay);
            }
            Event::Unreachable(conn) => {
                self.conclude((node, conn), Outcome::Unreachable);
                let delay = self.soon();
                self.later((node, conn), Act::Destroy, delay);
            }
            Event::DisconnectRequested(conn) => {
                let at = (node, conn);
                if self.ends[&at].outcome.is_none() {
                    self.conclude(at, Outcome::Connected);
                }
                self.ended(at);
                let delay = self.soon();
                let act = if self.net.rng.chance(70) { Act::Disconnect } else { Act::Destroy };
                self.later(at, act, delay);
            }
            Event::Disconnected(conn) | Event::DisconnectUnanswered(conn) => {
                self.ended((node, conn));
                let delay = self.soon();
                if self.net.rng.chance(50) {
                    self.later((node, conn), Act::Destroy, delay);
                }
            }
            Event::TimewaitExit(conn) => {
                let end = self.ends.get_mut(&(node, conn)).expect("known");
                assert!(!end.rested && !end.gone);
                end.rested = true;
            }
            other => panic!("{other:?}"),
        }
    }

    fn requested(&mut self, node: usize, request: &cm::Request) {
        let at = (node, request.conn);
        let token = u64::from_be_bytes(request.private[..8].try_into().unwrap());
        self.begin(at, token);
        let (delay, lazy) = (self.soon(), self.net.rng.millis(0, 200_000));
        match self.net.rng.range(0, 19) {
            0..=1 if !self.honest => self.later(at, Act::Reject, delay),
            2 if !self.honest => self.later(at, Act::Destroy, delay),
            3 if !self.honest => self.ends.get_mut(&at).expect("known").asleep = true,
            4 => self.later(at, Act::Reply, lazy),
            _ => self.later(at, Act::Reply, delay),
        }
    }

    fn ended(&mut self, at: (usize, ConnId)) {
        let end = self.ends.get_mut(&at).expect("known");
        assert!(!end.gone && !end.ended, "ended twice");
        end.ended = true;
    }

    /// A connected end disconnects some time, perhaps at the very moment at which the other does.
    fn part(&mut self, at: (usize, ConnId)) {
        let delay = Duration::from_secs(self.net.rng.range(0, 3));
        match self.net.rng.range(0, 3) {
            0 => {}
            1 => self.later(at, Act::Destroy, delay),
            _ => self.later(at, Act::Disconnect, delay),
        }
    }

    fn act(&mut self, node: usize, conn: ConnId, act: Act) {
        let at = (node, conn);
        let now = self.net.now;
        if self.ends[&at].gone {
            return;
        }
        match act {
            Act::Reply => {
                self.qpn += 1;
                // Refused when the peer gave up meanwhile.
                let done = self.net.reply(node, conn, self.qpn);
                if done.is_ok() && self.net.rng.chance(10) {
                    let delay = self.net.rng.millis(0, 10_000);
                    self.later(at, Act::Notify, delay);
                }
            }
            Act::Ready => {
                if self.net.cms[node].ready(conn).is_ok() {
                    self.conclude(at, Outcome::Connected);
                    self.part(at);
                }
            }
            Act::Reject => {
                if self.net.cms[node].reject(conn, cm::Reason(28), &[], now).is_ok() {
                    self.conclude(at, Outcome::Withdrawn);
                    self.later(at, Act::Destroy, Duration::ZERO);
                }
            }
            Act::Disconnect => {
                let _ = self.net.cms[node].disconnect(conn, now);
            }
            Act::Notify => {
                // Only the peer's data may say so: it sends none before it is ready, nor to a
                // conversation that a late REQ began.
                let token = self.ends[&at].token;
                let others =
                    self.ends.iter().filter(|(key, end)| **key != at && end.token == token);
                let outcomes: Vec<_> = others.map(|(_, end)| end.outcome).collect();
                if outcomes == [Some(Outcome::Connected)] {
                    let _ = self.net.cms[node].notify_established(conn);
                }
            }
            Act::Destroy => self.destroy(at),
        }
    }

    fn destroy(&mut self, at: (usize, ConnId)) {
        self.net.cms[at.0].destroy(at.1, self.net.now);
        let end = self.ends.get_mut(&at).expect("known");
        end.outcome.get_or_insert(Outcome::Withdrawn);
        end.gone = true;
    }

    fn react(&mut self) {
        self.net.collect();
        for (node, event) in std::mem::take(&mut self.net.events) {
            self.told(node, event);
        }
    }

    /// Until nothing more happens by itself.
    fn settle(&mut self) {
        let mut steps = 0;
        loop {
            self.react();
            let act = self.acts.keys().next().map(|(at, _)| *at);
            let Some(next) = self.net.next().into_iter().chain(act).min() else { break };
            self.net.go_to(next);
            self.react();
            while let Some(entry) = self.acts.first_entry()
                && entry.key().0 <= self.net.now
            {
                let (node, conn, act) = entry.remove();
                self.act(node, conn, act);
                self.react();
            }
            steps += 1;
            assert!(steps < 100_000, "it never ends");
        }
    }

    /// Who waits still, with nothing on its way?
    fn nobody_waits(&self) {
        for (at, end) in &self.ends {
            let decided = end.outcome.is_some() || end.asleep;
            assert!(decided, "{at:?} waits for ever: {end:?}");
        }
    }

    /// Both ends of a connection that neither withdrew from agree.
    fn both_agree(&self) {
        let mut by_token: BTreeMap<u64, Vec<Outcome>> = BTreeMap::new();
        for end in self.ends.values() {
            by_token.entry(end.token).or_default().extend(end.outcome);
        }
        for (token, outcomes) in by_token {
            let connected = outcomes.iter().filter(|o| **o == Outcome::Connected).count();
            let withdrawn = outcomes.contains(&Outcome::Withdrawn);
            assert!(connected == 0 || connected == 2 || withdrawn, "{token}: {outcomes:?}");
        }
    }
}

fn run(seed: u64, faults: Faults, honest: bool, blackouts: bool) -> BTreeMap<String, u64> {
    let _named = Named(seed, faults);
    let mut net = Net::new(3, seed);
    net.faults = faults;
    if blackouts {
        for _ in 0..net.rng.range(1, 4) {
            let from = net.now + net.rng.millis(0, 200_000);
            let until = from + net.rng.millis(1000, 150_000);
            net.blackouts.push((from, until));
        }
    }
    let mut run =
        Run { net, ends: HashMap::new(), acts: BTreeMap::new(), order: 0, honest, qpn: 100 };
    for token in 0..6 {
        let from = run.net.rng.range(0, 2) as usize;
        let to = (from + run.net.rng.range(1, 2) as usize) % 3;
        run.connect(from, to, token);
    }
    run.settle();
    run.nobody_waits();
    if !blackouts && faults.in_a_row > 0 && honest {
        run.both_agree();
    }
    let mut outcomes = BTreeMap::new();
    for end in run.ends.values() {
        *outcomes.entry(format!("{:?}", end.outcome)).or_default() += 1;
    }
    let left: Vec<_> = run.ends.iter().filter(|(_, end)| !end.gone).map(|(at, _)| *at).collect();
    for at in left {
        run.destroy(at);
    }
    run.settle();
    for (node, cm) in run.net.cms.iter().enumerate() {
        assert_eq!(cm.conversations(), 0, "conversations of node {node}");
        assert_eq!(cm.next_deadline(), None, "a deadline of node {node}");
    }
    outcomes
}

/// SEED=n repeats one run, SEED=n SEEDS=k explores k of them.
fn runs(many: u64, faults: Faults, honest: bool, blackouts: bool) -> BTreeMap<String, u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, count) =
        number("SEED").map_or((1, many), |seed| (seed, number("SEEDS").unwrap_or(1)));
    println!("seeds {first} to {}", first + count - 1);
    let mut total: BTreeMap<String, u64> = BTreeMap::new();
    for seed in first..first + count {
        for (outcome, count) in run(seed, faults, honest, blackouts) {
            *total.entry(outcome).or_default() += count;
        }
    }
    println!("{total:?}");
    total
}

#[test]
fn a_good_network_and_honest_programs() {
    let outcomes = runs(300, Faults::default(), true, false);
    assert_eq!(outcomes.keys().collect::<Vec<_>>(), ["Some(Connected)"]);
}

/// The specification's repetitions overcome whatever is not lost for ever: both are connected, or
/// both know better.
#[test]
fn a_network_that_loses_a_message_twice_but_not_three_times() {
    let faults = Faults { loss: 40, duplicate: 20, reorder: 30, in_a_row: 2 };
    runs(2000, faults, true, false);
}

#[test]
fn programs_that_refuse_dawdle_and_die() {
    let faults = Faults { loss: 20, duplicate: 20, reorder: 20, in_a_row: 2 };
    let outcomes = runs(2000, faults, false, false);
    for outcome in ["Connected", "Refused", "Withdrawn"] {
        assert!(outcomes.contains_key(&format!("Some({outcome})")), "{outcomes:?}");
    }
}

#[test]
fn a_network_that_loses_most() {
    let faults = Faults { loss: 75, duplicate: 10, reorder: 30, in_a_row: 0 };
    let outcomes = runs(1500, faults, false, false);
    assert!(outcomes.contains_key("Some(Unreachable)"), "{outcomes:?}");
}

#[test]
fn a_network_that_is_cut() {
    let faults = Faults { loss: 10, duplicate: 10, reorder: 10, in_a_row: 0 };
    let outcomes = runs(1500, faults, false, true);
    assert!(outcomes.contains_key("Some(Unreachable)"), "{outcomes:?}");
}
