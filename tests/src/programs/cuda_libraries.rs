//! The libraries of `--gpu cuda` as files, for linkers and for who compares them with NVIDIA's.

use crate::Run;
use std::path::PathBuf;

/// The folder that programs find them in.
///
/// # Panics
/// When there is none.
pub fn cuda_libraries() -> PathBuf {
    let asked = Run::hca("sh -c").arg("echo $LD_LIBRARY_PATH").option("--gpu").option("cuda");
    let places = asked.finish().ok().stdout;
    let mut places = places.trim().split(':');
    places.find(|place| place.ends_with("/cuda")).expect("a folder of libcuda").into()
}
