//! The guest's driver for the virtual GPU (`driver/`), built here for the guest's kernel.

use crate::error::{At as _, Error, Result};
use crate::kernel::{Kernel, Module};
use crate::store::Store;
use std::fs;

const NAME: &str = "peerdma_gpu";
/// The driver's sources. The header is what programs include too.
const SOURCES: [(&str, &str); 9] = [
    ("Kbuild", include_str!("../driver/Kbuild")),
    ("pgpu.h", include_str!("../driver/pgpu.h")),
    ("peerdma_gpu_drm.h", include_str!("../driver/peerdma_gpu_drm.h")),
    ("drv.c", include_str!("../driver/drv.c")),
    ("engine.c", include_str!("../driver/engine.c")),
    ("place.c", include_str!("../driver/place.c")),
    ("buffer.c", include_str!("../driver/buffer.c")),
    ("dma_buf.c", include_str!("../driver/dma_buf.c")),
    ("private.c", include_str!("../driver/private.c")),
];

/// Builds the driver for `kernel`.
pub(crate) fn build(kernel: &Kernel, store: &Store) -> Result<Module> {
    let headers = kernel.headers(store)?;
    let folder = tempfile::tempdir().doing("a temporary folder")?;
    for (name, text) in SOURCES {
        let file = folder.path().join(name);
        fs::write(&file, text).at(&file)?;
    }
    headers.build(folder.path()).map_err(|error| {
        Error::missing(
            format!("the virtual GPU's driver cannot be built: {error}"),
            "use a machine without one (--gpu-memory 0)",
        )
    })?;
    let file = folder.path().join(format!("{NAME}.ko"));
    Ok(Module { name: NAME.to_owned(), bytes: fs::read(&file).at(&file)? })
}
