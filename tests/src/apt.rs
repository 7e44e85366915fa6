//! Packages by apt: of this machine's own sources, or of other Debian releases from the same mirror. They are fetched and
//! unpacked somewhere; nothing is installed, and this machine's own lists stay as they are.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// Packages that an [`Apt`] needs.
pub const PROGRAMS: [&str; 3] = ["apt-get", "apt-cache", "dpkg-deb"];

/// Seconds that one call of apt-get may take.
const LIMIT_S: &str = "300";

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

    /// Debian's `suites`, such as `trixie-backports`, the last of which is preferred. Lists are fetched now, into `folder`.
    ///
    /// # Errors
    /// This machine has no Debian mirror, or the mirror cannot be reached.
    pub fn of(suites: &[&str], folder: &Path) -> Result<Apt> {
        let mirror =
            mirror().context("this machine takes no packages from a Debian mirror (see apt)")?;
        for part in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(folder.join(part))?;
        }
        let folder = folder.canonicalize()?;
        let sources: String =
            suites.iter().map(|suite| format!("deb {mirror} {suite} main\n")).collect();
        std::fs::write(folder.join("sources.list"), sources)?;
        let folder = folder.display();
        let preferred = suites.last().context("no suite")?;
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
        let apt = Apt { options: options.to_vec() };
        let said = run(apt.command("apt-get").args(["update", "-q"]))?;
        if let Some(line) = said.lines().find(|line| line.starts_with("Err:")) {
            bail!("Debian's mirror cannot be reached: {line}");
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
        let said = run(self.command("apt-cache").args(["depends", package]))?;
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
        let downloads = tempfile::tempdir()?;
        let mut fetch = self.command("apt-get");
        run(fetch.current_dir(downloads.path()).args(["download", "-q"]).args(packages))?;
        std::fs::create_dir_all(tree)?;
        for entry in std::fs::read_dir(downloads.path())? {
            run(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(tree))?;
        }
        Ok(())
    }
}

/// Where this machine takes its own Debian packages from.
pub(crate) fn mirror() -> Option<String> {
    let format = "$(ORIGIN) $(LABEL) $(REPO_URI)";
    let targets =
        Command::new("apt-get").args(["indextargets", "--format", format]).output().ok()?;
    let targets = String::from_utf8_lossy(&targets.stdout).into_owned();
    targets.lines().find_map(|line| line.strip_prefix("Debian Debian ")).map(str::to_owned)
}

/// Runs a command that must succeed; what it prints.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", words(command), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command without the settings that every call has.
fn words(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>();
    let words = words.iter().filter(|word| *word != "-o" && !word.contains("::"));
    let words = words.map(|word| word.as_ref()).collect::<Vec<_>>().join(" ");
    format!("{} {words}", command.get_program().to_string_lossy())
}
