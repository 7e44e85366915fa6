//! A look at the registry of this user and network namespace, without becoming a member.

use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style;
use hca::directory::Reader;
use registry::{Client, Error, Member, Role};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::sync::Arc;

/// The answer of a command that finds no member.
pub const NOBODY: &str = "No process of this user has a device open in this network namespace.";

/// A connection to the registry; nothing where nobody hosts one, so that nobody is a member.
pub fn registry() -> Outcome<Option<Arc<Client>>> {
    match Client::connect(Role::Observer) {
        Ok(client) => Ok(Some(client)),
        Err(Error::NoRegistry) => Ok(None),
        Err(error) => Err(Failure::new("cannot ask the registry").because(error)),
    }
}

/// A member, and its directory.
pub struct Seen {
    pub client: Arc<Client>,
    pub member: Member,
    pub reader: Reader,
}

/// A member whose directory cannot be read.
pub struct Unread {
    pub member: Member,
    /// Why.
    pub reason: String,
}

/// The members, by slot. One that ends meanwhile is none.
pub fn members() -> Outcome<Vec<Result<Seen, Unread>>> {
    let Some(client) = registry()? else { return Ok(Vec::new()) };
    let members = client.members().what("cannot list the members of the registry")?;
    let seen = |member: Member| {
        let reader = match client.directory(member.slot) {
            Ok(directory) => Reader::open(directory).map_err(unread),
            Err(Error::Unknown) => return None,
            Err(error) => Err(error.to_string()),
        };
        Some(match reader {
            Ok(reader) => Ok(Seen { client: client.clone(), member, reader }),
            Err(reason) => Err(Unread { member, reason }),
        })
    };
    Ok(members.into_iter().filter_map(seen).collect())
}

fn unread(errno: Errno) -> String {
    match errno {
        Errno::PROTO => "it is of another version of peerdma".to_owned(),
        Errno::PERM => "its directory could shrink while it is read".to_owned(),
        errno => format!("its directory cannot be mapped: {}", std::io::Error::from(errno)),
    }
}

impl Unread {
    /// The process as a JSON object.
    pub fn json(&self) -> Value {
        json!({
            "pid": self.member.pid,
            "command": self.member.comm,
            "device": self.member.device,
            "reason": self.reason,
        })
    }

    /// One line.
    pub fn line(&self) -> String {
        let Member { pid, comm, device, .. } = &self.member;
        topology::printable(&format!("{device} of process {pid} ({comm}): {}", self.reason))
    }

    /// The lines of several below what could be read of the others, on stderr.
    pub fn tell(unread: &[Unread]) {
        for unread in unread {
            style::errln(format_args!("not read: {}", unread.line()));
        }
    }
}
