//! The folder in which things that were fetched or built are kept.

use crate::error::{At as _, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A folder for kernels, drivers and QEMUs, which several programs may share.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    say: fn(&str),
}

impl Store {
    /// The store in `folder`, made when it is first needed. `say` announces what takes long.
    pub fn at(folder: &Path, say: fn(&str)) -> Store {
        Store { folder: folder.to_owned(), say }
    }

    /// The folder of the store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder `name` in it. `make` fills it once, at the path that it is given; `doing` says
    /// what it does for that.
    pub(crate) fn keep(
        &self,
        name: &str,
        doing: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        fs::create_dir_all(&self.folder).at(&self.folder)?;
        let folder = self.folder.canonicalize().at(&self.folder)?;
        // One maker at a time, also among processes.
        let lock = folder.join("lock");
        let held = File::create(&lock).at(&lock)?;
        flock(&held, FlockOperation::LockExclusive).map_err(std::io::Error::from).at(&lock)?;
        let tree = folder.join(name);
        let complete = tree.join("complete");
        if !complete.is_file() {
            (self.say)(&format!("{doing} into {}, once", tree.display()));
            let _ = fs::remove_dir_all(&tree);
            make(&tree)?;
            File::create(&complete).at(&complete)?;
        }
        Ok(tree)
    }
}
