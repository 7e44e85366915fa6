//! The newest rdma-core's own suite, unmodified, in a root file system of Debian's sid. As sid is
//! another one every day, its root is made only where somebody asks for it, by
//! `cargo xtask lab --rdma-core`; elsewhere this is skipped.

use system::conformance::other_root::judge_generic_tests;
use system::{newest_debian, skip};

/// Generic tests that pass, of the 234 that rdma-core 65 has.
const LEAST_PASSES: usize = 217;

#[test]
fn generic_tests() {
    match newest_debian() {
        Ok(root) => judge_generic_tests(&root, LEAST_PASSES),
        Err(reason) => skip!("{reason}"),
    }
}
