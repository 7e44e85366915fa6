//! A look at the registry of this user and network namespace, without becoming a member.

use crate::failure::{Context, Failure, Outcome};
use registry::{Client, Error, Member, Role};
use std::sync::Arc;

/// What a command says that finds no member.
pub const NOBODY: &str = "No process of this user has a device open in this network namespace.";

/// A connection to the registry; nothing where nobody hosts one, so that nobody is a member.
pub fn registry() -> Outcome<Option<Arc<Client>>> {
    match Client::connect(Role::Observer) {
        Ok(client) => Ok(Some(client)),
        Err(Error::NoRegistry) => Ok(None),
        Err(error) => Err(Failure::new("cannot ask the registry").because(error)),
    }
}

/// What `each` makes of the members.
pub fn members<T>(each: impl Fn(&Arc<Client>, Member) -> Option<T>) -> Outcome<Vec<T>> {
    let Some(client) = registry()? else { return Ok(Vec::new()) };
    let members = client.members().what("cannot list the members of the registry")?;
    Ok(members.into_iter().filter_map(|member| each(&client, member)).collect())
}
