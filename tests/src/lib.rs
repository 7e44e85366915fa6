//! What the whole-system tests stand on: programs we did not write, run on the software HCA, each
//! with a time limit.
//!
//! A test that cannot run here says why with [`skip!`], which the test command counts. A program
//! runs in a network of the test program's own unless it is given another. Namespaces, users and
//! the lab's guest are made for one test and gone with it.
#![forbid(unsafe_code)]

mod c;
mod capture;
pub mod conformance;
mod connectx;
mod container;
mod counters;
mod debian;
pub mod gpu_guest;
pub mod lab;
#[cfg(test)]
mod listed;
mod meeting;
mod namespace;
mod neighbours;
mod programs;
mod rows;
mod run;

pub use c::{
    c_example, c_library, c_plugin, c_program, c_program_with, cuda13_program, fabric_program,
    gloo_program,
};
pub use capture::{Capture, Packets};
pub use connectx::serve_connectx;
pub use container::Container;
pub use counters::{Counters, of_gpus};
pub use debian::{beside_suite, make_newest_debian, newest_debian, next_debian, suite};
pub use meeting::{converse, done, listening, listens, pair, perftest_came_early, port};
pub use namespace::{Namespace, veth_pair};
pub use neighbours::link_to_neighbours;
pub use programs::{
    CudaPerftest, CudaUcx, Fabtests, Mpi, UCX_PERFTEST_ENV, Wheels, cuda_libraries, lacks_ucx,
    ucx_perftest,
};
pub use rows::{judged, rows};
pub use run::{
    FIRST_GPU, Finished, Run, Running, User, gpu_memory, library_with_defects, peerdma, shared_dir,
};
pub use test_support::{has, is_root, note_skip, skip};
pub use vm::apt::Apt;
