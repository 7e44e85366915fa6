//! Programs from Python wheels, in the virtual environments that `cargo xtask` makes.

use crate::Run;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// An environment.
#[derive(Clone, Debug)]
pub struct Wheels {
    folder: PathBuf,
}

impl Wheels {
    /// The environment, if it is complete.
    ///
    /// # Errors
    /// The reason why not. A test skips with it.
    pub fn installed() -> Result<Wheels, String> {
        let missing = "Python wheels are not installed (`cargo xtask test` fetches them)";
        Wheels::at("wheels").ok_or_else(|| missing.to_owned())
    }

    /// The environment with PyTorch and NIXL, which `cargo xtask lab --pytorch` makes.
    ///
    /// # Errors
    /// It is not there. A test skips with that.
    pub fn with_pytorch() -> Result<Wheels, String> {
        let missing = "PyTorch is not installed (`cargo xtask lab --pytorch` fetches it)";
        Wheels::at("pytorch").ok_or_else(|| missing.to_owned())
    }

    /// An environment below `target`, if it is complete.
    fn at(name: &str) -> Option<Wheels> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let folder = root.join("target").join(name);
        folder.join("installed.txt").is_file().then_some(Wheels { folder })
    }

    /// The path of a program that a wheel brought, or of the environment's `python3`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// The folder of mpi4py's own tests.
    pub fn tests_of_mpi4py(&self) -> PathBuf {
        self.folder.join("mpi4py/test")
    }

    /// A program of `tests/tools` on the software HCA.
    pub fn run(&self, program: &str) -> Run {
        let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/tools");
        let run = Run::hca(&self.program("python3").display().to_string())
            .arg(Path::new(tools).join(program));
        run.env("PYTHONDONTWRITEBYTECODE", "1")
    }

    /// The same for a program that wants UCX by the names that distributions give it. UCXX's own
    /// wheel of UCX is built without InfiniBand, so it gets the one in NIXL's, under its names.
    ///
    /// # Panics
    /// When that is not there.
    pub fn run_with_ucx(&self, program: &str, names: &Path) -> Run {
        let libraries = self.packages("nixl_cu12.libs").expect("NIXL's libraries");
        link_by_name(&libraries, names, "libuc");
        let modules = names.join("ucx");
        fs::create_dir(&modules).expect("a folder for modules");
        link_by_name(&libraries.join("ucx"), &modules, "lib");
        let places = [names.as_os_str(), libraries.as_os_str()];
        self.run(program).env("LD_LIBRARY_PATH", places.join(OsStr::new(":")))
    }

    /// The folder of CUDA's headers.
    pub(super) fn cuda_headers(&self) -> Option<PathBuf> {
        self.packages("nvidia/cuda_runtime/include")
    }

    /// The folder of CUDA 13's headers.
    ///
    /// # Errors
    /// The reason why there is none. A test skips with it.
    pub(crate) fn cuda13_headers(&self) -> Result<PathBuf, String> {
        self.packages("nvidia/cu13/include").ok_or_else(|| lacks("CUDA 13's headers"))
    }

    /// NVIDIA's `libcudart.so` of CUDA 12 or 13.
    ///
    /// # Errors
    /// The reason why it is not there. A test skips with it.
    pub fn runtime(&self, version: u32) -> Result<PathBuf, String> {
        let folder = if version == 12 { "nvidia/cuda_runtime/lib" } else { "nvidia/cu13/lib" };
        let name = format!("libcudart.so.{version}");
        let library = self.packages(folder).map(|folder| folder.join(&name));
        library.filter(|library| library.is_file()).ok_or_else(|| lacks(&name))
    }

    /// The folder of NVML's header.
    pub(super) fn nvml_headers(&self) -> Option<PathBuf> {
        self.packages("nvidia/nvml_dev/include")
    }

    /// A folder among the installed packages.
    fn packages(&self, folder: &str) -> Option<PathBuf> {
        let versions = self.folder.join("lib").read_dir().ok()?.flatten();
        let mut found = versions.map(|version| version.path().join("site-packages").join(folder));
        found.find(|path| path.is_dir())
    }
}

/// Why something is not there though wheels are: another list of them is installed.
fn lacks(what: &str) -> String {
    format!("Python wheels are not installed with {what} (`cargo xtask test` fetches them)")
}

/// Links in `to` the libraries in `from` whose names begin so, as `NAME.so` and `NAME.so.0`:
/// `libucs-14c218c5.so.0.0.0`, too, is `libucs`.
fn link_by_name(from: &Path, to: &Path, begins: &str) {
    for file in from.read_dir().expect("libraries").flatten() {
        let name = file.file_name().into_string().unwrap_or_default();
        let Some((stem, _)) = name.split_once(".so") else { continue };
        if stem.starts_with(begins) {
            let plain = stem.split_once('-').map_or(stem, |(plain, _)| plain);
            for ending in [".so", ".so.0"] {
                symlink(file.path(), to.join(format!("{plain}{ending}"))).expect("a link");
            }
        }
    }
}
