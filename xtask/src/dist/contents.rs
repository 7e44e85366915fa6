//! What is in a package: the program, beside it the libraries that it carries (so that nothing is
//! unpacked into a user's cache), headers, the manual page, completions and licences. The program
//! itself says what most of them are; it is asked where nothing of this machine reaches it.

use super::compress::Compressor;
use super::files::Files;
use super::licences;
use super::target::Target;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Shells, and where each looks for completions.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/peerdma"),
    ("fish", "share/fish/vendor_completions.d/peerdma.fish"),
    ("zsh", "share/zsh/site-functions/_peerdma"),
];
/// Files of the source tree.
const SOURCES: [(&str, &str); 4] = [
    ("crates/verbs/include/peerdma.h", "include/peerdma.h"),
    ("crates/verbs/include/peerdma/mr_fd.h", "include/peerdma/mr_fd.h"),
    ("LICENSE-APACHE", "share/doc/peerdma/LICENSE-APACHE"),
    ("LICENSE-MIT", "share/doc/peerdma/LICENSE-MIT"),
];
const PAGE: &str = "share/man/man1/peerdma.1";
const OTHERS: &str = "share/doc/peerdma/THIRD-PARTY";
/// Where Debian has what is elsewhere in an archive that people unpack. Its copyright file has the
/// licences.
const DEBIAN: [(&str, &str); 7] = [
    ("share/zsh/site-functions/", "usr/share/zsh/vendor-completions/"),
    ("share/bash-completion/", "usr/share/bash-completion/"),
    ("share/fish/", "usr/share/fish/"),
    (OTHERS, "usr/share/doc/peerdma/THIRD-PARTY"),
    ("bin/", "usr/bin/"),
    ("lib/", "usr/lib/"),
    ("include/", "usr/include/"),
];

/// The files of an archive that is unpacked anywhere, or below `/usr/local`.
///
/// # Errors
/// The program does not run, or a file is missing.
pub fn portable(tree: &Path, program: &Path, target: Target) -> Result<Files> {
    let mut files = Files::default();
    files.executable("bin/peerdma", std::fs::read(program).context("the program")?);
    let scratch = program.with_file_name("unpacked");
    let libraries = unpacked(program, target, &scratch)?;
    files.libraries("lib/peerdma", &libraries)?;
    std::fs::remove_dir_all(&scratch)?;
    files.text(PAGE, said(program, target, &["man"], &scratch)?);
    for (shell, place) in SHELLS {
        files.text(place, said(program, target, &["completions", shell], &scratch)?);
    }
    for (from, to) in SOURCES {
        files.text(to, std::fs::read(tree.join(from)).context(from)?);
    }
    files.text(OTHERS, licences::of_others(tree, target.triple())?);
    Ok(files)
}

/// The same as Debian has it.
///
/// # Errors
/// A file is missing.
pub fn debian(tree: &Path, portable: &Files) -> Result<Files> {
    let mut files = portable.moved(&DEBIAN);
    let page = Compressor::Gzip.compress(portable.content(PAGE)?)?;
    files.text(&format!("usr/{PAGE}.gz"), page);
    files.text("usr/share/doc/peerdma/copyright", copyright(tree)?);
    Ok(files)
}

/// In Debian's machine-readable form. The text of the Apache licence is on every Debian system.
fn copyright(tree: &Path) -> Result<String> {
    let mit = std::fs::read_to_string(tree.join("LICENSE-MIT")).context("LICENSE-MIT")?;
    let holder = mit.lines().find_map(|line| line.strip_prefix("Copyright (c) "));
    let holder = holder.context("LICENSE-MIT names no holder")?;
    let paragraphs = mit.split_once("Permission").context("LICENSE-MIT has no permission")?.1;
    let text: String = format!("Permission{paragraphs}")
        .lines()
        .map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") })
        .collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: peerdma\n\
         Source: {}\n\
         Comment: THIRD-PARTY beside this file has the terms of what is linked.\n\n\
         Files: *\n\
         Copyright: {holder}\n\
         License: Expat or Apache-2.0\n\n\
         License: Expat\n{text}\n\
         License: Apache-2.0\n \
         On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n",
        env!("CARGO_PKG_REPOSITORY")
    ))
}

/// The folder of libraries that the program makes in a cache of its own.
fn unpacked(program: &Path, target: Target, scratch: &Path) -> Result<PathBuf> {
    if scratch.exists() {
        std::fs::remove_dir_all(scratch)?;
    }
    std::fs::create_dir_all(scratch)?;
    said(program, target, &["env"], scratch)?;
    let caches = std::fs::read_dir(scratch.join("peerdma"))?.flatten();
    let folders: Vec<PathBuf> = caches.map(|entry| entry.path().join("lib")).collect();
    ensure!(folders.len() == 1 && folders[0].is_dir(), "the program unpacked {folders:?}");
    Ok(folders[0].clone())
}

/// What the program prints, with a cache of its own.
fn said(program: &Path, target: Target, arguments: &[&str], cache: &Path) -> Result<Vec<u8>> {
    let mut command: Command = target.command(program);
    command.args(arguments).env_clear().env("XDG_CACHE_HOME", cache);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "peerdma {}: {error}", arguments.join(" "));
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn the_copyright_file_names_holder_and_both_licences() {
        let text = copyright(tree()).unwrap();
        assert!(text.contains("\nCopyright: ") && text.contains("\n Permission is hereby granted"));
        assert!(text.contains("License: Expat or Apache-2.0"));
        let lines = text.lines().skip_while(|line| *line != "License: Expat").skip(1);
        let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
        assert!(paragraph.iter().all(|line| line.starts_with(' ')), "{paragraph:?}");
    }

    #[test]
    fn debian_has_every_file_in_its_place() {
        let mut files = Files::default();
        files.executable("bin/peerdma", vec![1]);
        files.executable("lib/peerdma/libibverbs.so.1", vec![2]);
        files.text(PAGE, "page");
        files.text(OTHERS, "terms");
        for (_, place) in SHELLS.iter().chain(&SOURCES) {
            files.text(place, "text");
        }
        let debian = debian(tree(), &files).unwrap();
        let paths: Vec<&str> = debian.entries().map(|(path, _)| path).collect();
        assert_eq!(
            paths,
            [
                "usr/bin/peerdma",
                "usr/include/peerdma.h",
                "usr/include/peerdma/mr_fd.h",
                "usr/lib/peerdma/libibverbs.so.1",
                "usr/share/bash-completion/completions/peerdma",
                "usr/share/doc/peerdma/THIRD-PARTY",
                "usr/share/doc/peerdma/copyright",
                "usr/share/fish/vendor_completions.d/peerdma.fish",
                "usr/share/man/man1/peerdma.1.gz",
                "usr/share/zsh/vendor-completions/_peerdma",
            ]
        );
    }
}
