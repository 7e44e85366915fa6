//! The folder in which fetched things are kept.

use crate::error::{At as _, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::Path;

/// Makes the folder if it is not there; as long as the value lives nobody else changes what is in it, of other processes
/// neither.
pub(crate) fn lock(store: &Path) -> Result<File> {
    fs::create_dir_all(store).at(store)?;
    let path = store.join("lock");
    let file = File::create(&path).at(&path)?;
    flock(&file, FlockOperation::LockExclusive).map_err(std::io::Error::from).at(&path)?;
    Ok(file)
}
