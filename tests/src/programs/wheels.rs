//! Programs from Python wheels, in the virtual environment that `cargo xtask test` makes.

use crate::Run;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment.
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let folder = root.join("target/wheels");
        if folder.join("installed.txt").is_file() {
            return Ok(Wheels { folder });
        }
        Err("Python wheels are not installed (`cargo xtask test` fetches them)".to_owned())
    }

    /// The path of a program that a wheel brought, or of the environment's `python3`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// The folder of mpi4py's own tests.
    pub fn tests_of_mpi4py(&self) -> PathBuf {
        self.folder.join("mpi4py/test")
    }

    /// A program of `tests/tools` on the software HCA. It finds the CUDA runtime's wheel, which
    /// UCX loads without using it.
    pub fn run(&self, program: &str) -> Run {
        let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/tools");
        let run = Run::hca(&self.program("python3").display().to_string())
            .arg(Path::new(tools).join(program));
        let run = run.env("PYTHONDONTWRITEBYTECODE", "1");
        run.env("LD_LIBRARY_PATH", self.runtime().unwrap_or_default())
    }

    /// The folder of the CUDA runtime's libraries.
    fn runtime(&self) -> Option<OsString> {
        let versions = self.folder.join("lib").read_dir().ok()?.flatten();
        let found = versions.map(|version| {
            version.path().join("site-packages/nvidia/cuda_runtime/lib").into_os_string()
        });
        found.into_iter().find(|path| Path::new(path).is_dir())
    }
}
