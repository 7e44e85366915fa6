//! `peerdma ps`: who has a device open, by the registry of this user and network namespace.

use super::observer::{self, NOBODY, Seen, Unread};
use crate::args::watch::Ps;
use crate::console::failure::Outcome;
use crate::console::style;
use hca::directory::Reader;
use registry::Member;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A member and what its directory says.
struct Row {
    member: Member,
    user: String,
    command: String,
    /// Or why it cannot be read.
    usage: Result<Usage, String>,
}

/// Sums over a member's shared directory.
struct Usage {
    queue_pairs: usize,
    /// Those of them that do without the wire.
    local_queue_pairs: usize,
    memory_regions: usize,
    registered_bytes: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// The device's, by the names of sysfs.
    counters: BTreeMap<&'static str, u64>,
}

/// Prints the list.
pub fn ps(arguments: &Ps) -> Outcome {
    let rows = rows()?;
    if arguments.json {
        style::json(&json!({ "processes": rows.iter().map(Row::json).collect::<Vec<_>>() }));
        return Ok(0);
    }
    if rows.is_empty() {
        style::errln(format_args!("{NOBODY}"));
        return Ok(0);
    }
    let heading =
        ["PID", "USER", "DEVICE", "SLOT", "QPS", "MRS", "MEMORY", "SENT", "RECEIVED", "COMMAND"];
    let table = style::headed(heading, rows.iter().map(Row::cells));
    style::show(style::cut(style::table(&table, &[0, 3, 4, 5, 6, 7, 8])), 1);
    Ok(0)
}

fn rows() -> Outcome<Vec<Row>> {
    Ok(observer::members()?.into_iter().map(Row::of).collect())
}

impl Usage {
    fn read(reader: &Reader) -> Usage {
        let (qps, keys) = (reader.qps(), reader.keys());
        let sum = |of: fn(&hca::directory::QpEntry) -> u64| {
            qps.iter().map(of).fold(0, u64::saturating_add)
        };
        Usage {
            queue_pairs: qps.len(),
            local_queue_pairs: qps.iter().filter(|qp| qp.goes_directly).count(),
            memory_regions: keys.len(),
            registered_bytes: keys.iter().map(|key| key.len).fold(0, u64::saturating_add),
            sent_bytes: sum(|qp| qp.tx_bytes),
            received_bytes: sum(|qp| qp.rx_bytes),
            counters: reader.counters().collect(),
        }
    }
}

impl Row {
    fn of(seen: Result<Seen, Unread>) -> Row {
        let (member, usage) = match seen {
            Ok(Seen { member, reader, .. }) => (member, Ok(Usage::read(&reader))),
            Err(Unread { member, reason }) => (member, Err(reason)),
        };
        Row { user: user_name(member.uid), command: command(&member), usage, member }
    }

    fn cells(&self) -> Vec<String> {
        let unknown = || "?".to_owned();
        let number = |of: fn(&Usage) -> String| self.usage.as_ref().map_or_else(|_| unknown(), of);
        vec![
            if self.member.pid > 0 { self.member.pid.to_string() } else { unknown() },
            self.user.clone(),
            self.member.device.clone(),
            self.member.slot.to_string(),
            number(|usage| usage.queue_pairs.to_string()),
            number(|usage| usage.memory_regions.to_string()),
            number(|usage| style::bytes(usage.registered_bytes)),
            number(|usage| style::bytes(usage.sent_bytes)),
            number(|usage| style::bytes(usage.received_bytes)),
            match &self.usage {
                Ok(_) => self.command.clone(),
                Err(reason) => format!("{} (not read: {reason})", self.command),
            },
        ]
    }

    fn json(&self) -> serde_json::Value {
        let joined = self.member.joined_at.duration_since(SystemTime::UNIX_EPOCH);
        let usage = self.usage.as_ref().ok();
        json!({
            "pid": self.member.pid,
            "uid": self.member.uid,
            "user": self.user,
            "command": self.command,
            "device": self.member.device,
            "guid": format!("{:016x}", self.member.guid),
            "slot": self.member.slot,
            "leader": self.member.leader,
            "joined_at": joined.map_or(0, |joined| joined.as_secs()),
            "queue_pairs": usage.map(|usage| usage.queue_pairs),
            "local_queue_pairs": usage.map(|usage| usage.local_queue_pairs),
            "memory_regions": usage.map(|usage| usage.memory_regions),
            "registered_bytes": usage.map(|usage| usage.registered_bytes),
            "sent_bytes": usage.map(|usage| usage.sent_bytes),
            "received_bytes": usage.map(|usage| usage.received_bytes),
            "counters": usage.map(|usage| &usage.counters),
            "unread": self.usage.as_ref().err(),
        })
    }
}

/// The command line, or the name that the registry has where the process is not ours to read.
pub fn command(member: &Member) -> String {
    let line = std::fs::read(format!("/proc/{}/cmdline", member.pid)).unwrap_or_default();
    let words =
        line.split(|&byte| byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy);
    let line = words.collect::<Vec<_>>().join(" ");
    let line = if line.is_empty() { member.comm.clone() } else { line };
    // A terminal must not be steered by somebody's argument.
    topology::printable(&line)
}

/// Name of a user by /etc/passwd, or the number.
fn user_name(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entry = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    });
    entry.unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_where_known() {
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(4_000_000_123), "4000000123");
    }
}
