//! libfabric with CUDA, and its own tests, fabtests: no distribution packages either.

use super::source::Source;
use crate::Run;
use std::path::PathBuf;
use std::sync::OnceLock;

const SOURCE: Source = Source {
    name: "fabtests",
    archive: "libf/libfabric/libfabric_2.1.0.orig.tar.xz",
    sha256: "1a66369772d5bb151737214af1c478993e969cf298e8f9ed369e7a2ab8d8c6df",
    headers: &[("infiniband/verbs.h", "libibverbs-dev"), ("rdma/rdma_cma.h", "librdmacm-dev")],
};
/// Providers that are left out, which have no part in what is tested.
const OTHERS: [&str; 15] = [
    "rxd", "efa", "psm2", "psm3", "opx", "usnic", "shm", "sm2", "mrail", "udp", "lpp", "ucx",
    "tcp", "sockets", "lnx",
];
/// Those that the tests run.
const PROGRAMS: [&str; 3] = ["fi_msg_pingpong", "fi_rma_bw", "fi_rdm_tagged_pingpong"];
/// What is read of CUDA's headers.
const CUDA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c/fabtests");

/// The programs.
#[derive(Clone, Debug)]
pub struct Fabtests {
    folder: PathBuf,
}

impl Fabtests {
    /// The programs, built now if they are not yet.
    ///
    /// # Errors
    /// The reason why they cannot be had here. A test skips with it.
    pub fn built() -> Result<Fabtests, String> {
        // Tried once: where there is no network, to find that out may take minutes.
        static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let made = MADE.get_or_init(|| SOURCE.built(&script(), &headers()));
        Ok(Fabtests { folder: made.clone()? })
    }

    /// A line of a program and its arguments, on the software HCA and a software GPU.
    pub fn run(&self, line: &str) -> Run {
        let folder = self.folder.join("source/fabtests/benchmarks");
        let run = Run::hca(&format!("{}/{line}", folder.display())).option("--gpu").option("cuda");
        run.env("LD_LIBRARY_PATH", self.folder.join("lib"))
    }
}

/// What is read of CUDA's headers.
fn headers() -> Vec<PathBuf> {
    ["cuda.h", "cuda_runtime.h", "nvml.h"].map(|name| PathBuf::from(CUDA).join(name)).into()
}

fn script() -> String {
    let without = OTHERS.map(|name| format!("--disable-{name}")).join(" ");
    let programs = PROGRAMS.map(|name| format!("benchmarks/{name}")).join(" ");
    format!(
        "here=$PWD\n\
         mkdir -p cuda/include && cp {CUDA}/*.h cuda/include\n\
         export CPPFLAGS=-I$here/cuda/include\n\
         cd source && ./autogen.sh\n\
         ./configure --prefix=$here --disable-static --with-cuda=$here/cuda --enable-cuda-dlopen \
                     {without}\n\
         make -j2 install\n\
         cd fabtests && ./autogen.sh\n\
         ./configure --prefix=$here --with-libfabric=$here --with-cuda=$here/cuda\n\
         make -j2 {programs}\n"
    )
}
