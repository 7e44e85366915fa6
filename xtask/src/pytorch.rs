//! PyTorch's CUDA wheel on the software GPU. With NVIDIA's libraries, without which it is not even
//! imported, it takes 2.4 GB to fetch and 4.5 GB on disk, so `cargo xtask test` leaves it out: the
//! tests of it are skipped where nobody asked for it here.

use crate::{lab_tests, wheels};
use anyhow::Result;

/// What importing PyTorch takes, at the versions that it names, and NIXL. What else it depends on
/// compiles programs of kernels, which are not executed here.
const WHEELS: &[&str] = &[
    "torch==2.6.0",
    "nvidia-cublas-cu12==12.4.5.8",
    "nvidia-cuda-cupti-cu12==12.4.127",
    "nvidia-cuda-runtime-cu12==12.4.127",
    "nvidia-cudnn-cu12==9.1.0.70",
    "nvidia-cufft-cu12==11.2.1.3",
    "nvidia-curand-cu12==10.3.5.147",
    "nvidia-cusparse-cu12==12.3.1.170",
    "nvidia-cusparselt-cu12==0.6.2",
    "nvidia-nccl-cu12==2.21.5",
    "nvidia-nvjitlink-cu12==12.4.127",
    "typing-extensions==4.16.0",
    "numpy==2.4.6",
    "nixl-cu12==1.5.1",
];

/// Runs the tests of PyTorch, and installs it before where it is missing; true when they passed.
///
/// # Errors
/// When it cannot be installed, or the tests cannot be run.
pub fn run() -> Result<bool> {
    wheels::install("pytorch", WHEELS, |_| Ok(()))?;
    lab_tests::run("cuda_programs", "pytorch")
}
