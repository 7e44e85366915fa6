//! Finding a program as a shell does: on PATH unless its name has a slash.

use crate::console::failure::{Failure, Outcome};
use rustix::fs::Access;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The file that `name` means. Failures have a shell's exit status: 127 not found, 126 not
/// executable.
pub fn program(name: &OsStr) -> Outcome<PathBuf> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        if !path.exists() {
            return Err(Failure::new(format_args!("there is no {shown}"))
                .remedy("check the path")
                .status(127));
        }
        return if is_program(&path) { Ok(path) } else { Err(not_executable(&path)) };
    }
    let candidates = || {
        let path =
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        std::env::split_paths(&path).map(|folder| folder.join(name)).collect::<Vec<_>>()
    };
    let candidates = if name.is_empty() { Vec::new() } else { candidates() };
    if let Some(found) = candidates.iter().find(|path| is_program(path)) {
        return Ok(found.clone());
    }
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => Err(not_executable(path)),
        // Options end at the first word that is none, so a mistyped one is taken for the program.
        None if name.as_bytes().starts_with(b"-") => {
            Err(Failure::new(format_args!("{shown} is neither an option nor a program"))
                .because("no folder on PATH has it")
                .remedy("check how the option is written: --help lists all")
                .status(127))
        }
        None => Err(Failure::new(format_args!("program {shown:?} was not found"))
            .because("no folder on PATH has it")
            .remedy("install it, or give its path")
            .status(127)),
    }
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

fn not_executable(path: &Path) -> Failure {
    let failure = Failure::new(format_args!("{} is no program", path.display())).status(126);
    if path.is_dir() {
        return failure.because("it is a folder").remedy("name a file in it");
    }
    failure
        .because("this user may not execute it")
        .remedy(format_args!("chmod +x {}, or name another file", path.display()))
}
