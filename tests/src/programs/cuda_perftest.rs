//! perftest with CUDA, which distributions build without: against the headers of the CUDA runtime's
//! wheel, and our `libcuda.so`.

use super::source::Source;
use crate::{Run, Wheels};
use std::path::PathBuf;
use std::sync::OnceLock;

const SOURCE: Source = Source {
    name: "perftest-with-cuda",
    archive: "p/perftest/perftest_25.01.0+0.80.orig.tar.gz",
    sha256: "54e86b131f0b06862b8b9cd692739737295463cfef467bdda5f5aa3dae8c5b05",
    headers: &[
        ("infiniband/verbs.h", "libibverbs-dev"),
        ("rdma/rdma_cma.h", "librdmacm-dev"),
        ("infiniband/umad.h", "libibumad-dev"),
        ("pci/pci.h", "libpci-dev"),
    ],
};

/// The programs.
#[derive(Clone, Debug)]
pub struct CudaPerftest(PathBuf);

impl CudaPerftest {
    /// The programs, built now if they are not yet.
    ///
    /// # Errors
    /// The reason why they cannot be had here. A test skips with it.
    pub fn built() -> Result<CudaPerftest, String> {
        let headers = Wheels::installed()?.cuda_headers().expect("the wheels have cuda.h");
        static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let script = format!(
            "cd source && ./autogen.sh\n\
             ./configure CUDA_H_PATH={0}/cuda.h CPPFLAGS=-I{0} LDFLAGS=-L$LIBCUDA\n\
             make -j2\n",
            headers.display(),
        );
        MADE.get_or_init(|| SOURCE.built(&script, &[])).clone().map(CudaPerftest)
    }

    /// A line of a program and its arguments, on the software HCA and a software GPU.
    pub fn run(&self, line: &str) -> Run {
        let folder = self.0.join("source");
        Run::hca(&format!("{}/{line}", folder.display())).option("--gpu").option("cuda")
    }
}
