//! `peerdma ctl`: hot-unplug and replug of the HCAs' Data Direct functions, in programs that run.

use crate::args::{Ctl, CtlAction};
use crate::failure::{Context, Failure, Outcome};
use crate::observer;
use crate::style;
use hca::directory::Reader;
use pcie::Address;
use registry::{Client, Member};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// How long a process may take to do what it is asked.
const LIMIT: Duration = Duration::from_secs(2);

/// A device with a Data Direct function.
struct Row {
    client: Arc<Client>,
    member: Member,
    reader: Reader,
    function: Address,
}

/// Does what the arguments ask.
pub fn ctl(arguments: &Ctl) -> Outcome {
    let rows = observer::members(Row::of)?;
    match &arguments.action {
        None => list(&rows, arguments.json),
        Some(CtlAction::Unplug { which }) => each(&rows, which, false, arguments.json),
        Some(CtlAction::Replug { which }) => each(&rows, which, true, arguments.json),
    }
}

impl Row {
    /// `None` for a device without a Data Direct function.
    fn of(client: &Arc<Client>, member: Member) -> Option<Row> {
        let reader = Reader::open(client.directory(member.slot).ok()?).ok()?;
        let (function, _) = reader.data_direct()?;
        Some(Row { client: client.clone(), member, reader, function })
    }

    fn state(&self) -> &'static str {
        let plugged = self.reader.data_direct().is_some_and(|(_, plugged)| plugged);
        if plugged { "plugged" } else { "unplugged" }
    }

    fn is(&self, which: &str) -> bool {
        which == "all" || which == self.function.to_string() || which == self.member.pid.to_string()
    }

    /// Asks the process, and waits until it has done it.
    fn change(&self, plug: bool) -> Outcome<()> {
        let process = format!("{} of process {}", self.function, self.member.pid);
        let failure = format!("{process} stays {}", self.state());
        let kick = self.client.lookup(&hca::control_id(self.member.slot)).what(&failure)?;
        let asked = self.reader.ask_data_direct(plug);
        rustix::io::write(&kick, &1_u64.to_ne_bytes()).what(&failure)?;
        if !self.reader.wait_done(asked, LIMIT) {
            return Err(Failure::new(failure)
                .because(format_args!("the process did not answer within {} s", LIMIT.as_secs()))
                .remedy("let it run on, if it is stopped"));
        }
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "pid": self.member.pid,
            "command": self.member.comm,
            "device": self.member.device,
            "function": self.function.to_string(),
            "state": self.state(),
        })
    }
}

/// Acts on the functions that are meant.
fn each(rows: &[Row], which: &str, plug: bool, as_json: bool) -> Outcome {
    let meant: Vec<&Row> = rows.iter().filter(|row| row.is(which)).collect();
    if meant.is_empty() {
        return Err(Failure::new(format_args!("there is no Data Direct function of {which}"))
            .remedy("`peerdma ctl` lists them"));
    }
    let mut status = 0;
    for row in &meant {
        match row.change(plug) {
            Ok(()) if !as_json => {
                let (function, pid) = (row.function, row.member.pid);
                style::outln(format_args!("{function} of process {pid} {}", row.state()));
            }
            Ok(()) => {}
            Err(failure) => status = failure.report(),
        }
    }
    if as_json {
        style::json(
            &json!({ "functions": meant.iter().map(|row| row.json()).collect::<Vec<_>>() }),
        );
    }
    Ok(status)
}

fn list(rows: &[Row], as_json: bool) -> Outcome {
    if as_json {
        style::json(&json!({ "functions": rows.iter().map(Row::json).collect::<Vec<_>>() }));
        return Ok(0);
    }
    if rows.is_empty() {
        style::errln(format_args!("No process of this user has a Data Direct function here."));
        return Ok(0);
    }
    let heading = ["PID", "DEVICE", "FUNCTION", "STATE", "COMMAND"];
    let cells = |row: &Row| {
        vec![
            row.member.pid.to_string(),
            row.member.device.clone(),
            row.function.to_string(),
            row.state().to_owned(),
            row.member.comm.clone(),
        ]
    };
    style::show(style::table(&style::headed(heading, rows.iter().map(cells)), &[0]), 1);
    Ok(0)
}
