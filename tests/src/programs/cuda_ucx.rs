//! UCX with CUDA, which distributions build without: against the headers of the wheels of CUDA's
//! runtime and NVML, and our libraries. Of UCX no more is built than its programs take to drive
//! verbs and GPUs.

use super::source::Source;
use crate::{Run, Wheels};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Debian 12's, which every mirror has that the other programs are fetched from. It registers
/// memory by its address only: dma-bufs came with 1.14.
const SOURCE: Source = Source {
    name: "ucx-with-cuda",
    archive: "u/ucx/ucx_1.13.1.orig.tar.xz",
    sha256: "1a88e09ca1b406c046a469c2ae271d2c330050b5664c0bcd9890e26c6ef09f3c",
    headers: &[("infiniband/verbs.h", "libibverbs-dev")],
};
/// What is left out, which has no part in what is tested.
const OTHERS: [&str; 14] = [
    "without-java",
    "without-go",
    "without-rocm",
    "without-ugni",
    "without-knem",
    "without-xpmem",
    "without-gdrcopy",
    "without-mpi",
    "without-fuse3",
    "without-rdmacm",
    "without-mlx5-dv",
    "without-bfd",
    "disable-numa",
    "disable-cma",
];
/// What nvcc brings of CUDA's headers.
const NVCC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c/ucx");

/// The programs.
#[derive(Clone, Debug)]
pub struct CudaUcx(PathBuf);

impl CudaUcx {
    /// The programs, built now if they are not yet.
    ///
    /// # Errors
    /// The reason why they cannot be had here. A test skips with it.
    pub fn built() -> Result<CudaUcx, String> {
        let wheels = Wheels::installed()?;
        let [cuda, nvml] = [wheels.cuda_headers(), wheels.nvml_headers()]
            .map(|headers| headers.expect("the wheels have headers").display().to_string());
        let files =
            ["cuda_runtime.h", "crt/host_defines.h"].map(|name| PathBuf::from(NVCC).join(name));
        static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        MADE.get_or_init(|| SOURCE.built(&script(&cuda, &nvml), &files)).clone().map(CudaUcx)
    }

    /// A line of a program and its arguments, on the software HCA and a software GPU.
    pub fn run(&self, line: &str) -> Run {
        let folder = self.0.join("bin");
        Run::hca(&format!("{}/{line}", folder.display())).option("--gpu").option("cuda")
    }
}

/// It is built as for a release. Its makefiles have options of their own, the last of which are
/// ours: compilers come with new warnings, and what is not measured need not be fast.
fn script(cuda: &str, nvml: &str) -> String {
    let without = OTHERS.map(|name| format!("--{name}")).join(" ");
    format!(
        "here=$PWD\n\
         mkdir cuda && cp -r {NVCC} cuda/include && ln -s $LIBCUDA cuda/lib\n\
         cd source && mv debian.upstream debian && ./autogen.sh\n\
         ./contrib/configure-release --prefix=$here --disable-static --with-verbs {without} \
             --with-cuda=$here/cuda CPPFLAGS=\"-I$here/cuda/include -I{cuda} -I{nvml}\"\n\
         for part in ucm ucs uct ucp tools/info tools/perf; do\n\
             make -j2 -C src/$part CFLAGS='-O1 -g0 -Wno-error' install\n\
         done\n\
         cd $here && rm -r source\n"
    )
}
