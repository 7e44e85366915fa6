//! Programs of others, as far as finding or calling them takes more than a name.

mod fabtests;
mod mpi;
mod ucx;
mod wheels;

pub use fabtests::Fabtests;
pub use mpi::Mpi;
pub use ucx::{UCX_PERFTEST_ENV, lacks_ucx, ucx_perftest};
pub use wheels::Wheels;
