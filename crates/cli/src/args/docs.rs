//! The command line as documents: what `peerdma completions` and `peerdma man` print.

use super::Cli;
use crate::console::failure::{Context, Outcome};
use crate::console::style;
use clap::CommandFactory;
use std::io::{self, Write as _};

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "peerdma", &mut script);
    style::print(&script)
}

/// Prints the manual page, the subcommands' sections after it.
pub fn man() -> Outcome {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    render(&command, &mut page).what("cannot write the manual page")?;
    style::print(&page)
}

fn render(command: &clap::Command, page: &mut Vec<u8>) -> io::Result<()> {
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    examples(command, page)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let man = clap_mangen::Man::new(sub.clone());
        writeln!(page, ".SH \"PEERDMA {}\"", sub.get_name().to_uppercase())?;
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
        examples(sub, page)?;
    }
    writeln!(page, ".SH ENVIRONMENT")?;
    for (name, meaning) in ENVIRONMENT {
        writeln!(page, ".TP\n\\fB{name}\\fR\n{}", escape(meaning))?;
    }
    Ok(())
}

/// The variables that the library in a program reads, and what they mean.
const ENVIRONMENT: [(&str, &str); 13] = [
    ("PEERDMA_SYSFS", "the generated sysfs tree that the program sees; set by run and env"),
    ("PEERDMA_PLATFORM", "the platform, as --platform"),
    ("PEERDMA_MODEL", "what the device shows itself as, as --model: connectx"),
    ("PEERDMA_PACE", "the fraction of its rate that each PCIe link is paced to, as --pace"),
    (
        "PEERDMA_LINK",
        "how programs of this host reach each other, as --link: auto (default), local, roce",
    ),
    ("PEERDMA_TRACE", "the packet trace, as --trace"),
    (
        "PEERDMA_LOG",
        "1: tell on stderr what is refused, and why, as --log; open, which run and env set: tell \
         in one line why the device cannot be opened; anything else: tell nothing",
    ),
    (
        "PEERDMA_COUNTERS",
        "a file to which the device's counters and the bytes of every PCIe link and route are \
         appended when it is closed",
    ),
    (
        "PEERDMA_MEMLOCK",
        "enforce: `ulimit -l` limits what is registered, as with a device that pins pages; as \
         --memlock enforce",
    ),
    ("PEERDMA_DMABUF", "how regions hold a dma-buf: dynamic (default), pinned, pinned-revocable"),
    (
        "PEERDMA_PEER_DIRECT",
        "when ibv_reg_mr asks whether an address is a GPU's: after host memory (default), before, \
         off",
    ),
    (
        "PEERDMA_REREG_MR_FD",
        "off: ibv_reg_mr_fd is offered, ibv_rereg_mr_fd is not, as a provider may",
    ),
    (
        "PEERDMA_RECEIVE_BUFFER",
        "socket receive buffer to ask for, in bytes (default: as much as the system grants)",
    ),
];

/// A backslash is an escape to troff, and a hyphen is not a minus.
fn escape(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// What the help prints after the options: examples, which are indented and stay as they are, and
/// paragraphs.
fn examples(command: &clap::Command, page: &mut Vec<u8>) -> io::Result<()> {
    let Some(text) = command.get_after_help() else { return Ok(()) };
    writeln!(page, ".SH EXAMPLES")?;
    for line in text.to_string().lines().filter(|line| !line.starts_with("Example")) {
        // A dot or quote at the start of a line would be a request.
        let escaped = escape(line.trim_start());
        match line {
            "" => writeln!(page, ".PP")?,
            _ if line.starts_with(' ') => writeln!(page, ".nf\n\\&{escaped}\n.fi")?,
            _ => writeln!(page, "\\&{escaped}")?,
        }
    }
    Ok(())
}
