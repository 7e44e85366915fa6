//! Packages by apt: of this machine's own sources, or of other Debian releases from the same
//! mirror. They are fetched and unpacked somewhere; nothing is installed, and this machine's own
//! lists stay as they are.

use crate::command::{find_program, run, run_text};
use crate::error::{At as _, Error, Result};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Debian releases that newer kernels and QEMUs come from, the preferred one last.
pub const SUITES: [&str; 2] = ["trixie", "trixie-backports"];

/// Packages that an [`Apt`] needs.
pub const PROGRAMS: [&str; 3] = ["apt-get", "apt-cache", "dpkg-deb"];

/// Seconds that one call of apt-get may take.
const LIMIT_S: &str = "900";

/// Where packages come from.
#[derive(Debug)]
pub struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// This machine's own sources.
    pub fn own() -> Apt {
        Apt { options: Vec::new() }
    }

    /// Debian's `suites`, such as `trixie-backports`, the last of which is preferred. Lists are
    /// fetched now, into `folder`.
    ///
    /// # Errors
    /// This machine has no Debian mirror, or the mirror cannot be reached.
    pub fn of(suites: &[&str], folder: &Path) -> Result<Apt> {
        Apt::of_processor(suites, None, folder)
    }

    /// The same for a processor, as Debian names it; `None` for this machine's.
    ///
    /// # Errors
    /// As [`Apt::of`].
    pub fn of_processor(suites: &[&str], processor: Option<&str>, folder: &Path) -> Result<Apt> {
        check()?;
        let mirror = mirror().ok_or_else(|| {
            Error::missing("this machine takes no packages from a Debian mirror", "see apt")
        })?;
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).at(folder)?;
        }
        let folder = folder.canonicalize().at(folder)?;
        let sources: String =
            suites.iter().map(|suite| format!("deb {mirror} {suite} main\n")).collect();
        fs::write(folder.join("sources.list"), sources).at(&folder)?;
        let folder = folder.display();
        let preferred = suites.last().copied().unwrap_or_default();
        let options = [
            format!("Dir::Etc::sourcelist={folder}/sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={folder}/lists"),
            "Dir::State::status=/dev/null".to_owned(),
            format!("Dir::Cache={folder}/cache"),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::http::Timeout=15".to_owned(),
            format!("APT::Default-Release={preferred}"),
        ];
        let mut apt = Apt { options: options.to_vec() };
        if let Some(name) = processor {
            let both = ["Architecture", "Architectures"].map(|what| format!("APT::{what}={name}"));
            apt.options.extend(both);
        }
        let said = run_text(apt.command("apt-get").args(["update", "-q"]))?;
        if let Some(line) = said.lines().find(|line| line.starts_with("Err:")) {
            let what = format!("Debian's mirror cannot be reached: {line}");
            return Err(Error::missing(what, "see whether the network is there"));
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args([LIMIT_S, program]).stdin(Stdio::null());
        self.options.iter().for_each(|option| {
            command.args(["-o", option]);
        });
        command
    }

    /// Names of the packages that a package depends on itself.
    ///
    /// # Errors
    /// The package is not known.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let said = run_text(self.command("apt-cache").args(["depends", package]))?;
        let names = said.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Whether there is such a package.
    pub fn knows(&self, package: &str) -> bool {
        let show = run(self.command("apt-cache").args(["show", package]));
        show.is_ok_and(|said| !said.is_empty())
    }

    /// Fetches packages and unpacks them into `tree`, over what is there.
    ///
    /// # Errors
    /// A package cannot be had.
    pub fn unpack(&self, packages: &[String], tree: &Path) -> Result<()> {
        let downloads = tempfile::tempdir().doing("a temporary folder")?;
        let mut fetch = self.command("apt-get");
        run(fetch.current_dir(downloads.path()).args(["download", "-q"]).args(packages))?;
        unpack_folder(downloads.path(), tree)
    }

    /// Fetches a package and all that it needs, as if nothing were installed, and unpacks them into
    /// `tree`. Only for releases other than this machine's ([`Apt::of`]).
    ///
    /// # Errors
    /// A package cannot be had.
    pub fn unpack_all(&self, package: &str, tree: &Path) -> Result<()> {
        let downloads = tempfile::tempdir().doing("a temporary folder")?;
        let partial = downloads.path().join("partial");
        fs::create_dir(&partial).at(&partial)?;
        let mut fetch = self.command("apt-get");
        fetch.arg("-o").arg(format!("Dir::Cache::archives={}", downloads.path().display()));
        let lone = ["Debug::NoLocking=true", "APT::Install-Recommends=false"];
        lone.iter().for_each(|option| {
            fetch.args(["-o", option]);
        });
        run(fetch.args(["install", "--download-only", "-y", "-q", package]))?;
        unpack_folder(downloads.path(), tree)
    }
}

/// Unpacks every package in a folder.
fn unpack_folder(folder: &Path, tree: &Path) -> Result<()> {
    fs::create_dir_all(tree).at(tree)?;
    for entry in fs::read_dir(folder).at(folder)?.flatten() {
        let file = entry.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(file).arg(tree))?;
        }
    }
    Ok(())
}

/// Whether this machine has what an [`Apt`] needs.
pub(crate) fn check() -> Result<()> {
    match PROGRAMS.into_iter().find(|program| find_program(program).is_err()) {
        None => Ok(()),
        Some(missing) => Err(Error::missing(
            format!("{missing} is not installed"),
            "only Debian and its kin have it",
        )),
    }
}

/// Where this machine takes its own Debian packages from.
pub fn mirror() -> Option<String> {
    let format = "$(ORIGIN) $(LABEL) $(REPO_URI)";
    let targets =
        Command::new("apt-get").args(["indextargets", "--format", format]).output().ok()?;
    let targets = String::from_utf8_lossy(&targets.stdout).into_owned();
    targets.lines().find_map(|line| line.strip_prefix("Debian Debian ")).map(str::to_owned)
}
