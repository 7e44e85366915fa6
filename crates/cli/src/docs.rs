//! `peerdma completions` and `peerdma man`.

use crate::args::Cli;
use crate::failure::{Context, Outcome};
use clap::CommandFactory;
use std::io::{self, Write as _};

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "peerdma", &mut script);
    print(&script)
}

/// Prints the manual page, the subcommands' pages after it.
pub fn man() -> Outcome {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    clap_mangen::Man::new(command.clone())
        .render(&mut page)
        .what("cannot write the manual page")?;
    for sub in
        command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
    {
        let man = clap_mangen::Man::new(sub.clone());
        let title = format!(".SH \"PEERDMA {}\"\n", sub.get_name().to_uppercase());
        page.extend_from_slice(title.as_bytes());
        man.render_synopsis_section(&mut page)
            .and_then(|()| man.render_description_section(&mut page))
            .and_then(|()| man.render_options_section(&mut page))
            .what("cannot write the manual page")?;
    }
    print(&page)
}

fn print(bytes: &[u8]) -> Outcome {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).what("cannot print"),
        _ => Ok(0),
    }
}
