//! Suites that run beside others, one after the other in a thread of their own: most tests of the
//! system wait more than they compute. What each says is kept until it has ended, and printed
//! whole.

use super::list::Suite;
use crate::totals::Outcome;
use anyhow::Result;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::thread::Scope;

/// One that has ended: what it said, and what came of it.
pub struct Ended {
    pub suite: &'static Suite,
    pub said: String,
    pub outcome: Result<Outcome>,
}

/// Starts them. Each comes when it has ended.
pub fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    root: &'scope Path,
    install: bool,
    suites: Vec<&'static Suite>,
    ended: Sender<Ended>,
) {
    scope.spawn(move || run(root, install, &suites, &ended));
}

fn run(root: &Path, install: bool, suites: &[&'static Suite], ended: &Sender<Ended>) {
    for suite in suites {
        let mut said = String::new();
        let outcome = suite.run(root, install, &mut |line| {
            said.push_str(line);
            said.push('\n');
        });
        if ended.send(Ended { suite, said, outcome }).is_err() {
            return;
        }
    }
}
