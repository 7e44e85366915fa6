//! How rdma-core's own test suite is judged, wherever it runs: what a test does, what became of it,
//! and the list of those that do not pass, each with its reason.
//!
//! A list cannot rot in either direction: a listed test that passes or that fails in another way is
//! a surprise, and so is an unlisted one that does not pass. A pass counts only if counters of ours
//! moved where the test moves data.

pub mod other_root;

use serde_json::Value;
use std::collections::BTreeMap;
use std::rc::Rc;

/// One test of the suite.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name as Python has it.
    pub id: String,
    /// What it does with data.
    pub kind: Kind,
}

/// What a test does with data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It moves some.
    Moves,
    /// It posts only work that the device refuses.
    IsRefused,
    /// It posts no work.
    Asks,
}

impl Kind {
    /// The kind that `list_tests.py` calls so.
    ///
    /// # Panics
    /// When it has no such word.
    pub fn named(word: &str) -> Kind {
        match word {
            "moves" => Kind::Moves,
            "refused" => Kind::IsRefused,
            "asks" => Kind::Asks,
            _ => panic!("no kind of tests is {word}"),
        }
    }
}

/// What became of a test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It passed, and moved data if it should.
    Passed,
    /// Skipped itself or failed; all it said.
    Not(String),
    /// Crashed, hung, or passed without moving data; in words. Never excused.
    Never(String),
}

impl Outcome {
    /// The outcome of a test that passes, when so many packets were sent; none if no device was
    /// opened.
    pub fn of_pass(kind: Kind, packets: Option<u64>) -> Outcome {
        match (kind, packets) {
            (Kind::Moves, None | Some(0)) => Outcome::Never("passes without moving a byte".into()),
            (Kind::IsRefused, None | Some(1..)) => Outcome::Never("passes with traffic".into()),
            _ => Outcome::Passed,
        }
    }
}

/// Reads what `in_guest.py` said, which runs tests in one process: a test that has begun and not
/// ended, and whether all is done.
pub fn outcomes(said: &str, results: &mut Vec<(Case, Outcome)>) -> (Option<(u64, Case)>, bool) {
    let mut running: Option<(u64, Case)> = None;
    for line in said.lines() {
        let Ok(Value::Object(line)) = serde_json::from_str(line) else { continue };
        let text = |name: &str| line.get(name).and_then(Value::as_str).unwrap_or_default();
        if line.contains_key("end") {
            return (None, true);
        }
        if let Some(number) = line.get("number").and_then(Value::as_u64) {
            let case = Case { id: text("id").to_owned(), kind: Kind::named(text("kind")) };
            running = Some((number, case));
        } else if let Some((_, case)) = running.take() {
            let packets = line.get("packets").and_then(Value::as_u64);
            let outcome = outcome(&case, text("said"), packets);
            results.push((case, outcome));
        }
    }
    (running, false)
}

fn outcome(case: &Case, said: &str, packets: Option<u64>) -> Outcome {
    match said {
        "" => Outcome::of_pass(case.kind, packets),
        said if said.contains("Hangs: hangs") => Outcome::Never(said.to_owned()),
        said => Outcome::Not(said.to_owned()),
    }
}

/// Why some tests do not pass.
#[derive(Debug)]
pub struct Exception {
    /// One of these is in what the test says.
    pub signs: Vec<String>,
    /// The host lacks something: on another one the test may pass.
    pub host: bool,
    /// In words.
    pub why: String,
}

/// The line that says most of why a test did not pass.
fn reason(said: &str) -> &str {
    let line = said
        .lines()
        .find(|line| line.contains("skipped '"))
        .or_else(|| said.lines().find(|line| line.contains("Errno")))
        .or_else(|| said.lines().rev().find(|line| line.contains("Error")));
    line.unwrap_or("no reason given").trim()
}

/// The exceptions by test. A section of the list opens with what its tests must say, in brackets,
/// `|` between alternatives, and the reason; `?` after the bracket says that it is the host that
/// lacks something. The tests follow.
///
/// # Panics
/// When the list has another form.
pub fn exceptions(text: &str) -> BTreeMap<&str, Rc<Exception>> {
    let mut all = BTreeMap::new();
    let mut section = None;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some((signs, why)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            let signs: Vec<String> = signs.split('|').map(str::to_owned).collect();
            let host = why.starts_with('?');
            let why = why.trim_start_matches('?').trim().to_owned();
            assert!(!why.is_empty() && signs.iter().all(|sign| sign.len() > 3), "{line}");
            section = Some(Rc::new(Exception { signs, host, why }));
        } else {
            let section = section.clone().unwrap_or_else(|| panic!("no section before {line}"));
            assert!(all.insert(line, section).is_none(), "{line} is listed twice");
        }
    }
    all
}

/// What is wrong with outcomes, in words. `whole` says that all tests of the list were tried.
pub fn surprises(
    results: &[(Case, Outcome)],
    exceptions: &BTreeMap<&str, Rc<Exception>>,
    whole: bool,
) -> Vec<String> {
    let judged = results.iter().filter_map(|(case, outcome)| {
        surprise(case, outcome, exceptions.get(case.id.as_str()).map(Rc::as_ref))
    });
    let tried = |id: &str| results.iter().any(|(case, _)| case.id == id);
    let unknown = exceptions.keys().filter(|id| whole && !tried(id));
    judged.chain(unknown.map(|id| format!("{id} is listed but does not exist"))).collect()
}

/// What is wrong with an outcome.
fn surprise(case: &Case, outcome: &Outcome, exception: Option<&Exception>) -> Option<String> {
    let id = &case.id;
    match (outcome, exception) {
        (Outcome::Passed, Some(exception)) if !exception.host => {
            Some(format!("{id} passes but is listed: {}", exception.why))
        }
        (Outcome::Passed, _) => None,
        (Outcome::Never(what), _) => Some(format!("{id} {what}")),
        (Outcome::Not(said), None) => Some(format!("{id} does not pass: {}", reason(said))),
        (Outcome::Not(said), Some(exception)) => {
            let as_listed = exception.signs.iter().any(|sign| said.contains(sign));
            let said = reason(said);
            (!as_listed).then(|| format!("{id} is listed for another reason than: {said}"))
        }
    }
}

#[test]
fn an_exception_excuses_its_own_reason_only() {
    let list = "# note\n[no XRC|no domain] why\na.b\na.c\n[no GPU]? host\nd.e\n";
    let list = exceptions(list);
    let judge = |id: &str, outcome| {
        let case = Case { id: id.to_owned(), kind: Kind::Moves };
        surprise(&case, &outcome, list.get(id).map(Rc::as_ref)).is_none()
    };
    let said = |text: &str| Outcome::Not(text.to_owned());
    for id in ["a.b", "a.c"] {
        assert!(judge(id, said("skipped 'no XRC'")) && judge(id, said("skipped 'no domain'")));
        assert!(!judge(id, said("skipped 'no GPU'")) && !judge(id, Outcome::Passed));
        assert!(!judge(id, Outcome::Never("hangs".to_owned())));
    }
    assert!(judge("d.e", said("no GPU")) && judge("d.e", Outcome::Passed));
    assert!(judge("f.g", Outcome::Passed) && !judge("f.g", said("no XRC")));
}
