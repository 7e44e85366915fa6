//! `peerdma run`: a program on the software HCA.

use super::{lookup, reach};
use crate::args::launch::{Net, Run};
use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style::{self, Paint};
use crate::process::own_network;
use crate::process::supervise::{self, Supervisor};
use crate::surroundings::{settings, tree};
use std::io;
use std::process::Command;

/// Runs the program. Returns only when it could not be started.
pub fn run(arguments: &Run) -> Outcome {
    let Some((name, rest)) = arguments.program.split_first() else {
        return Err(Failure::new("no program is named").status(2));
    };
    if arguments.net == Net::Private {
        own_network::enter()?;
    }
    let path = lookup::program(name)?;
    warn(&path);

    // Held back from here on, a signal cannot end the launcher before it has cleaned up.
    let supervisor = Supervisor::begin().what("cannot hold signals back")?;
    let (session, lib) = settings::begin(&arguments.device)?;
    let tree = session.path().join("sysfs");
    tree::write(&arguments.device, &tree)?;

    let mut command = Command::new(&path);
    std::os::unix::process::CommandExt::arg0(&mut command, name);
    command.env_remove(own_network::ORIGIN);
    command.args(rest).envs(settings::variables(&arguments.device, &lib, &tree)?);
    let mut child = supervisor
        .spawn(&mut command, session.note()?)
        .map_err(|error| not_started(&path, &error))?;
    let end = supervisor.wait(&mut child).what("cannot wait for the program")?;
    drop(session);
    supervise::end_like(end)
}

/// Says on stderr when the program will not see the device.
fn warn(path: &std::path::Path) {
    let reach = reach::inspect(path);
    let Some(obstacle) = reach.obstacle else { return };
    let through = if reach.binary == path {
        String::new()
    } else {
        format!(" (started by {})", path.display())
    };
    style::errln(format_args!(
        "{} {}{through} will not see the device: {obstacle}",
        Paint::Warning.over("peerdma: warning:"),
        reach.binary.display(),
    ));
    style::errln(format_args!("  {} {}", Paint::Good.over("to do:"), obstacle.remedy()));
}

fn not_started(path: &std::path::Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format_args!("cannot start {}", path.display())).because(error);
    match error.kind() {
        io::ErrorKind::NotFound => {
            failure.remedy("check the interpreter in its first line").status(127)
        }
        io::ErrorKind::PermissionDenied => {
            failure.remedy("make it executable for this user").status(126)
        }
        _ => failure.remedy("use a program for this machine").status(126),
    }
}
