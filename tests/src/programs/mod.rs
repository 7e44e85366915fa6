//! Programs of others, as far as finding or calling them takes more than a name.

mod cuda_libraries;
mod cuda_perftest;
mod cuda_ucx;
mod fabtests;
mod mpi;
mod source;
mod ucx;
mod wheels;

pub use cuda_libraries::cuda_libraries;
pub use cuda_perftest::CudaPerftest;
pub use cuda_ucx::CudaUcx;
pub use fabtests::Fabtests;
pub use mpi::Mpi;
pub use ucx::{UCX_PERFTEST_ENV, lacks_ucx, ucx_perftest};
pub use wheels::Wheels;
