//! Fuzz targets: every parser of bytes that come from outside, as plain functions.
//!
//! A target takes any bytes and panics when a promise of the parser is broken. The same functions
//! are run two ways:
//! - briefly and everywhere, by the test `bounded` (`cargo test --package peerdma-fuzz`);
//! - at length and guided by coverage (`cargo +nightly fuzz run --features libfuzzer TARGET`).
//!
//! To add one: a module here per crate, a function in it, a line in [`TARGETS`], and a program of
//! three lines in `fuzz_targets/` with its `[[bin]]` in `Cargo.toml`. Seeds are inputs that reach
//! deep; mutation starts from them.
#![forbid(unsafe_code)]

pub mod dmabuf;
pub mod hca;
pub mod link;
mod memfd;
pub mod mlx5;
pub mod pcie;
pub mod registry;
pub mod shm;
mod steps;
pub mod subnet;
pub mod topology;
pub mod vfio_user;
pub mod wire;

/// One parser under test.
pub struct Target {
    /// The name of its program in `fuzz_targets/`.
    pub name: &'static str,
    /// Runs it once.
    pub run: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "headers_parse", run: wire::headers_parse, seeds: wire::header_seeds },
    Target { name: "icrc_check", run: wire::icrc_check, seeds: wire::icrc_seeds },
    Target { name: "control_block", run: dmabuf::control_block, seeds: dmabuf::control_seeds },
    Target { name: "directory", run: hca::directory, seeds: hca::directory_seeds },
    Target { name: "neighbour", run: hca::neighbour, seeds: hca::neighbour_seeds },
    Target { name: "rings", run: hca::rings, seeds: hca::ring_seeds },
    Target { name: "ring_writer", run: shm::ring_writer, seeds: shm::ring_writer_seeds },
    Target { name: "passes", run: shm::passes, seeds: shm::passes_seeds },
    Target { name: "netlink", run: link::netlink, seeds: link::netlink_seeds },
    Target { name: "platform", run: pcie::platform, seeds: pcie::platform_seeds },
    Target { name: "machine", run: topology::machine, seeds: topology::machine_seeds },
    Target { name: "registry_messages", run: registry::messages, seeds: registry::message_seeds },
    Target { name: "vfio_user_message", run: vfio_user::message, seeds: vfio_user::message_seeds },
    Target { name: "connectx_commands", run: mlx5::commands, seeds: mlx5::command_seeds },
    Target { name: "subnet_mads", run: subnet::mads, seeds: subnet::mad_seeds },
    Target { name: "frame_parse", run: wire::frame_parse, seeds: wire::frame_seeds },
    Target { name: "mad_parse", run: wire::mad_parse, seeds: wire::mad_seeds },
    Target { name: "grh_parse", run: wire::grh_parse, seeds: wire::grh_seeds },
];
