//! The commands that print a text: `peerdma platform`, `completions` and `man`.

use crate::args::Cli;
use crate::failure::{Context, Outcome};
use clap::CommandFactory;
use std::io::{self, Write as _};

/// The platform of programs that are given no other.
const PLATFORM: &str = include_str!("../../pcie/src/default.toml");

/// Prints the default platform.
pub fn platform() -> Outcome {
    print(PLATFORM.as_bytes())
}

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "peerdma", &mut script);
    print(&script)
}

/// Prints the manual page, the subcommands' sections after it.
pub fn man() -> Outcome {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    render(&command, &mut page).what("cannot write the manual page")?;
    print(&page)
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
    Ok(())
}

/// What the help prints after the options, unfilled: the examples are laid out already.
fn examples(command: &clap::Command, page: &mut Vec<u8>) -> io::Result<()> {
    let Some(text) = command.get_after_help() else { return Ok(()) };
    writeln!(page, ".SH EXAMPLES\n.nf")?;
    for line in text.to_string().lines().filter(|line| !line.starts_with("Example")) {
        // A backslash is an escape to troff; a dot or quote at the start of a line a request.
        writeln!(page, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"))?;
    }
    writeln!(page, ".fi")
}

fn print(bytes: &[u8]) -> Outcome {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).what("cannot print"),
        _ => Ok(0),
    }
}
