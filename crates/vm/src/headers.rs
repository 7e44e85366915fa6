//! What modules are built against: the newest kernel's headers and build programs, as unpacked
//! packages, and this machine's compiler.
//!
//! The build programs are of the kernel's release, and so is the C library that they need: each is
//! run by a script of its name with the loader from beside it. The compiler may be another than the
//! kernel's; options that only a newer one has are left out.

use crate::apt::{Apt, SUITES};
use crate::command::{find_program, run, run_text};
use crate::error::{At as _, Error, Result};
use crate::store::Store;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the build programs need besides.
const LIBRARIES: [&str; 4] = ["libc6", "libelf1t64", "zlib1g", "libzstd1"];
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
const COMPILER: &str = "gcc";
/// Settings that name what a compiler of this machine may lack, or that need its release's pahole.
const SETTINGS: [&str; 4] = [
    "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=",
    "CONFIG_CC_OPT_INLINE_MEMSET=",
    "CONFIG_DEBUG_INFO_BTF_MODULES=",
    "KCFLAGS=-Wno-attributes",
];

/// A kernel's headers.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    tree: PathBuf,
    version: String,
}

impl Headers {
    /// Those of the kernel `version` of Debian's, such as `7.3.4+deb13-amd64`, kept in `store`.
    pub(crate) fn fetched(store: &Store, version: &str) -> Result<Headers> {
        for program in [COMPILER, "make"] {
            find_program(program)?;
        }
        let doing = "fetching the kernel's headers (15 MB)";
        let tree = store.keep("newest-headers", doing, |tree| {
            let apt = Apt::of(&SUITES, &store.folder().join("newest-apt"))?;
            let common = version.rsplit_once('-').map_or(version, |(common, _)| common);
            let own = [
                format!("linux-headers-{version}"),
                format!("linux-headers-{common}-common"),
                format!("linux-kbuild-{common}"),
            ];
            if let Some(gone) = own.iter().find(|package| !apt.knows(package)) {
                let kernel = store.folder().join("newest-kernel");
                return Err(Error::missing(
                    format!("{gone} is no longer on the mirror"),
                    format!("remove {} to have a newer kernel", kernel.display()),
                ));
            }
            let packages: Vec<String> =
                own.into_iter().chain(LIBRARIES.map(str::to_owned)).collect();
            apt.unpack(&packages, tree)?;
            with_loader(&tree.canonicalize().at(tree)?, &format!("usr/lib/linux-kbuild-{common}"))
        })?;
        let headers = Headers { tree, version: version.to_owned() };
        if headers.output().is_dir() {
            return Ok(headers);
        }
        Err(Error::missing(
            format!("{} has headers of another kernel", headers.tree.display()),
            "remove it",
        ))
    }

    fn output(&self) -> PathBuf {
        self.tree.join("usr/src").join(format!("linux-headers-{}", self.version))
    }

    /// A number of what a module that is built against them depends on besides its sources: the
    /// kernel, what it exports in which form, its settings and ours, and the compiler.
    pub(crate) fn fingerprint(&self) -> Result<u64> {
        let mut hash = DefaultHasher::new();
        (&self.version, SETTINGS).hash(&mut hash);
        for name in ["Module.symvers", ".config"] {
            let file = self.output().join(name);
            fs::read(&file).at(&file)?.hash(&mut hash);
        }
        run_text(Command::new(COMPILER).arg("--version"))?.hash(&mut hash);
        Ok(hash.finish())
    }

    /// Builds the module whose sources and `Kbuild` lie in `folder`.
    pub(crate) fn build(&self, folder: &Path) -> Result<()> {
        let common = self.version.rsplit_once('-').map_or(&*self.version, |(common, _)| common);
        let source = self.tree.join("usr/src").join(format!("linux-headers-{common}-common"));
        let mut make = Command::new("make");
        make.arg("-C").arg(source).args(["-s", "-j2", "modules"]).args(SETTINGS);
        make.arg(format!("CC={COMPILER}"));
        make.arg(format!("KBUILD_OUTPUT={}", self.output().display()));
        make.arg(format!("M={}", folder.display()));
        // What a caller that is make itself has set means something else here.
        for variable in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "CFLAGS", "LDFLAGS", "ARCH", "V"] {
            make.env_remove(variable);
        }
        run(&mut make).map(drop)
    }
}

/// Has every program in `folder` run with the loader and the libraries of `tree`.
fn with_loader(tree: &Path, folder: &str) -> Result<()> {
    let (loader, libraries) = (tree.join(LOADER), tree.join(LIBRARY_FOLDER));
    let script = format!(
        "#!/bin/sh\nexec '{}' --library-path '{}' --argv0 \"$0\" \"$0.elf\" \"$@\"\n",
        loader.display(),
        libraries.display()
    );
    let mut folders = vec![tree.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).at(&folder)?.flatten() {
            let (path, kind) = (entry.path(), entry.file_type().at(&entry.path())?);
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && fs::read(&path).at(&path)?.starts_with(b"\x7fELF") {
                let mut program = path.clone().into_os_string();
                program.push(".elf");
                fs::rename(&path, &program).at(&path)?;
                fs::write(&path, &script).at(&path)?;
                fs::set_permissions(&path, Permissions::from_mode(0o755)).at(&path)?;
            }
        }
    }
    Ok(())
}
