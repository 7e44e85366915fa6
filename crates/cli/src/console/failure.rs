//! What a command answers when it cannot do its work: what happened, why, what to do, and the exit
//! status.

use super::style::{self, Paint};
use std::fmt::Display;

/// Result of a command: the exit status, or a failure.
pub type Outcome<T = u8> = Result<T, Failure>;

/// A command that could not do its work.
#[derive(Debug)]
pub struct Failure {
    what: String,
    why: Vec<String>,
    remedy: Option<String>,
    status: u8,
    port_taken: bool,
}

impl Failure {
    /// A failure described by what happened; exit status 1.
    pub fn new(what: impl Display) -> Failure {
        Failure {
            what: what.to_string(),
            why: Vec::new(),
            remedy: None,
            status: 1,
            port_taken: false,
        }
    }

    /// Adds a reason.
    pub fn because(mut self, why: impl Display) -> Failure {
        self.why.push(why.to_string());
        self
    }

    /// Says what to do.
    pub fn remedy(mut self, remedy: impl Display) -> Failure {
        self.remedy = Some(remedy.to_string());
        self
    }

    /// Says that UDP port 4791 is another user's.
    pub fn port_taken(mut self, taken: bool) -> Failure {
        self.port_taken = taken;
        self
    }

    /// Whether UDP port 4791 is another user's.
    pub fn is_port_taken(&self) -> bool {
        self.port_taken
    }

    /// Sets the exit status.
    pub fn status(mut self, status: u8) -> Failure {
        self.status = status;
        self
    }

    /// Prints it on stderr and answers the exit status.
    pub fn report(&self) -> u8 {
        // Each of the three may quote a stranger's file or process.
        let what = topology::printable(&self.what);
        style::errln(format_args!("{} {what}", Paint::Error.over("peerdma: error:")));
        for why in &self.why {
            let mut lines = why.trim_end().lines().map(topology::printable);
            let first = lines.next().unwrap_or_default();
            style::errln(format_args!("  {} {first}", Paint::Dim.over("because:")));
            for line in lines {
                style::errln(format_args!("           {line}"));
            }
        }
        if let Some(remedy) = self.remedy.as_deref().map(topology::printable) {
            style::errln(format_args!("  {} {remedy}", Paint::Good.over("to do:")));
        }
        self.status
    }

    /// What happened and why, as one line, and what to do: for where another process reports it.
    pub fn into_parts(self) -> (String, Option<String>) {
        let what = std::iter::once(self.what).chain(self.why).collect::<Vec<_>>().join(": ");
        (what, self.remedy)
    }
}

/// Turns an error into a failure that says what was being done.
pub trait Context<T> {
    /// Adds what happened; the error becomes the reason.
    fn what(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn what(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| Failure::new(what).because(error))
    }
}

/// A verbs failure brings its own remedy.
pub fn verbs(error: peerdma::Error) -> Failure {
    Failure::new(&error).remedy(error.remedy())
}
