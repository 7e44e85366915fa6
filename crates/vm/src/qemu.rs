//! A QEMU that takes vfio-user functions: this machine's own from 10.1 on, else the newest that
//! Debian backports, unpacked and run with its own C library beside this machine's.

use crate::apt::{Apt, SUITES};
use crate::command::find_program;
use crate::error::{Error, Result};
use crate::store::Store;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Files that no machine of ours needs.
const SPARE: [&str; 4] = ["usr/share/doc", "usr/share/man", "usr/share/locale", "var"];

/// A QEMU for x86-64.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// Unpacked packages; none for this machine's own.
    root: Option<PathBuf>,
}

impl Qemu {
    /// This machine's own, whatever its version.
    ///
    /// # Errors
    /// It has none.
    pub fn own() -> Result<Qemu> {
        match find_program(PROGRAM) {
            Ok(_) => Ok(Qemu { root: None }),
            Err(_) => Err(Error::missing(
                format!("{PROGRAM} is not installed"),
                format!("install the package {PACKAGE}"),
            )),
        }
    }

    /// One that takes vfio-user functions. What has to be fetched is kept in `store`.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn with_vfio_user(store: &Store) -> Result<Qemu> {
        if let Ok(own) = Qemu::own()
            && own.takes_vfio_user()
        {
            return Ok(own);
        }
        let root = fetched(store).map_err(|error| {
            Error::missing(
                format!("no QEMU of 10.1 or later, which takes vfio-user functions: {error}"),
                "install a newer one",
            )
        })?;
        Ok(Qemu { root: Some(root) })
    }

    fn takes_vfio_user(&self) -> bool {
        let mut help = self.command();
        help.args(["-device", "vfio-user-pci,help"]).stdin(Stdio::null());
        // It succeeds, and complains on stderr, where it does not know the device.
        help.output().is_ok_and(|output| !output.stdout.is_empty())
    }

    /// The command that runs it, before its options.
    pub fn command(&self) -> Command {
        let Some(root) = &self.root else { return Command::new(PROGRAM) };
        let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(root.join(LIBRARIES));
        command.arg(root.join("usr/bin").join(PROGRAM));
        for data in ["qemu", "seabios"] {
            command.arg("-L").arg(root.join("usr/share").join(data));
        }
        command
    }
}

/// Debian's newest, fetched once.
fn fetched(store: &Store) -> Result<PathBuf> {
    store.keep("qemu", "fetching QEMU (40 MB)", |root| {
        let apt = Apt::of(&SUITES, &store.folder().join("newest-apt"))?;
        apt.unpack_all(PACKAGE, root)?;
        for spare in SPARE {
            let _ = fs::remove_dir_all(root.join(spare));
        }
        Ok(())
    })
}
