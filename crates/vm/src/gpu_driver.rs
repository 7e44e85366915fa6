//! The guest's driver for the virtual GPU (`driver/`), built here for the guest's kernel.

use crate::error::{At as _, Error, Result};
use crate::headers::Headers;
use crate::kernel::{Kernel, Module};
use crate::store::Store;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

const NAME: &str = "peerdma_gpu";
const MODULE: &str = "peerdma_gpu.ko";
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

/// The driver for `kernel`: built once, and kept in `store`.
pub(crate) fn build(kernel: &Kernel, store: &Store) -> Result<Module> {
    let headers = kernel.headers(store)?;
    let name = name_in_store(&SOURCES, headers.fingerprint()?);
    let tree = store.keep(&name, "building the virtual GPU's driver", |tree| {
        fs::create_dir_all(tree).at(tree)?;
        build_into(tree, &headers)
    })?;
    let file = tree.join(MODULE);
    Ok(Module { name: NAME.to_owned(), bytes: fs::read(&file).at(&file)? })
}

/// Another one for each change of the sources, and of what they are built with.
fn name_in_store(sources: &[(&str, &str)], built_with: u64) -> String {
    let mut hash = DefaultHasher::new();
    (sources, built_with).hash(&mut hash);
    format!("gpu-driver-{:016x}", hash.finish())
}

/// Builds it in a folder that goes again, and leaves the module in `tree`.
fn build_into(tree: &Path, headers: &Headers) -> Result<()> {
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
    let built = folder.path().join(MODULE);
    fs::copy(&built, tree.join(MODULE)).at(&built).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_gives_another_name_in_the_store() {
        let name = name_in_store(&SOURCES, 1);
        assert_eq!(name, name_in_store(&SOURCES, 1));
        assert_ne!(name, name_in_store(&SOURCES, 2));
        for at in 0..SOURCES.len() {
            let mut sources = SOURCES;
            let changed = format!("{} ", sources[at].1);
            sources[at].1 = &changed;
            assert_ne!(name, name_in_store(&sources, 1), "{}", sources[at].0);
        }
    }
}
