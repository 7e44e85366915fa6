//! `peerdma ctl`: hot-unplug and replug of the HCAs' Data Direct functions, in programs that run.

use super::observer::{self, Seen, Unread};
use crate::args::watch::{Ctl, CtlAction};
use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style;
use pcie::Address;
use serde_json::json;
use std::time::Duration;

/// How long a process may take to do what it is asked.
const LIMIT: Duration = Duration::from_secs(2);

/// A device with a Data Direct function.
struct Row {
    of: Seen,
    function: Address,
}

/// What there is.
struct Rows {
    known: Vec<Row>,
    /// Processes that may have such a function or not.
    unread: Vec<Unread>,
}

/// Does what the arguments ask.
pub fn ctl(arguments: &Ctl) -> Outcome {
    let rows = Rows::read()?;
    match &arguments.action {
        None => rows.list(arguments.json),
        Some(CtlAction::Unplug { which }) => rows.each(which, false, arguments.json),
        Some(CtlAction::Replug { which }) => rows.each(which, true, arguments.json),
    }
}

impl Row {
    /// `None` for a device without a Data Direct function.
    fn of(of: Seen) -> Option<Row> {
        let (function, _) = of.reader.data_direct()?;
        Some(Row { of, function })
    }

    fn state(&self) -> &'static str {
        let plugged = self.of.reader.data_direct().is_some_and(|(_, plugged)| plugged);
        if plugged { "plugged" } else { "unplugged" }
    }

    fn is(&self, which: &str) -> bool {
        which == "all"
            || which == self.function.to_string()
            || which == self.of.member.pid.to_string()
    }

    /// Asks the process, and waits until it has done it.
    fn change(&self, plug: bool) -> Outcome<()> {
        let process = format!("{} of process {}", self.function, self.of.member.pid);
        let failure = format!("{process} stays {}", self.state());
        let kick = self.of.client.lookup(&hca::control_id(self.of.member.slot)).what(&failure)?;
        let asked = self.of.reader.ask_data_direct(plug);
        rustix::io::write(&kick, &1_u64.to_ne_bytes()).what(&failure)?;
        if !self.of.reader.wait_done(asked, LIMIT) {
            return Err(Failure::new(failure)
                .because(format_args!("the process did not answer within {} s", LIMIT.as_secs()))
                .remedy("let it run on, if it is stopped"));
        }
        Ok(())
    }

    fn cells(&self) -> Vec<String> {
        let member = &self.of.member;
        vec![
            member.pid.to_string(),
            member.device.clone(),
            self.function.to_string(),
            self.state().to_owned(),
            member.comm.clone(),
        ]
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "pid": self.of.member.pid,
            "command": self.of.member.comm,
            "device": self.of.member.device,
            "function": self.function.to_string(),
            "state": self.state(),
        })
    }
}

impl Rows {
    fn read() -> Outcome<Rows> {
        let mut rows = Rows { known: Vec::new(), unread: Vec::new() };
        for seen in observer::members()? {
            match seen {
                Ok(seen) => rows.known.extend(Row::of(seen)),
                Err(unread) => rows.unread.push(unread),
            }
        }
        Ok(rows)
    }

    /// Acts on the functions that are meant.
    fn each(&self, which: &str, plug: bool, as_json: bool) -> Outcome {
        let meant: Vec<&Row> = self.known.iter().filter(|row| row.is(which)).collect();
        let may_be_meant = |unread: &&Unread| {
            which == "all" || which == unread.member.pid.to_string() || meant.is_empty()
        };
        let unread: Vec<&Unread> = self.unread.iter().filter(may_be_meant).collect();
        if meant.is_empty() && unread.is_empty() {
            return Err(match which {
                "all" => Failure::new("no process of this user has a Data Direct function here")
                    .remedy("start a program on a platform with one (--platform grace)"),
                _ => Failure::new(format_args!("there is no Data Direct function of {which}"))
                    .remedy("`peerdma ctl` lists them"),
            });
        }
        let mut status = 0;
        for row in &meant {
            match row.change(plug) {
                Ok(()) if !as_json => {
                    let (function, pid) = (row.function, row.of.member.pid);
                    style::outln(format_args!("{function} of process {pid} {}", row.state()));
                }
                Ok(()) => {}
                Err(failure) => status = failure.report(),
            }
        }
        for unread in unread {
            let what = format!("cannot see whether there is a function of {which} in a process");
            status = Failure::new(what).because(unread.line()).report();
        }
        if as_json {
            self.json(meant.into_iter());
        }
        Ok(status)
    }

    fn json<'a>(&self, rows: impl Iterator<Item = &'a Row>) {
        style::json(&json!({
            "functions": rows.map(Row::json).collect::<Vec<_>>(),
            "unread": self.unread.iter().map(Unread::json).collect::<Vec<_>>(),
        }));
    }

    fn list(&self, as_json: bool) -> Outcome {
        if as_json {
            self.json(self.known.iter());
            return Ok(0);
        }
        if self.known.is_empty() && self.unread.is_empty() {
            style::errln(format_args!("No process of this user has a Data Direct function here."));
        }
        if !self.known.is_empty() {
            let heading = ["PID", "DEVICE", "FUNCTION", "STATE", "COMMAND"];
            let cells = self.known.iter().map(Row::cells);
            style::show(style::table(&style::headed(heading, cells), &[0]), 1);
        }
        Unread::tell(&self.unread);
        Ok(0)
    }
}
