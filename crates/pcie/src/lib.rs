//! PCIe: who can reach whom, by which path, at what cost.
//!
//! A [`Machine`] is a tree of host bridges, ports and functions; a [`Platform`] is a machine that
//! software devices live in, and hands out the [`Route`]s they take, which count their bytes. The
//! room promises Linux's own decision about peer-to-peer DMA, with the reason, and that what is not
//! known is said to be unknown, never taken for off. It reads no hardware.
//!
//! Start at [`verdict`], the decision about a pair of functions, and at [`Platform::load`] with
//! [`Platform::route`] for what the engine does with it.
#![forbid(unsafe_code)]

mod address;
mod beside;
mod config_acs;
mod isolation;
mod kernel;
mod label;
mod link;
mod machine;
mod pace;
mod platform;
mod published;
mod ready_made;
mod route;
mod share;
mod verdict;

pub use address::{Address, BadAddress};
pub use beside::{GpuLink, GpuLinkEnd, GpuLinkKind, Sockets};
pub use config_acs::{
    AcsSetting, BadConfigAcs, CannotConfigure, ConfigAcs, config_acs_works, without_redirect,
};
pub use isolation::iommu_groups;
pub use kernel::{Kernel, NEWEST_READ, Version};
pub use label::{Label, labels};
pub use link::{Link, LinkId, NoSuchLink};
pub use machine::{
    Acs, AcsBits, Below, Cpu, Function, HostBridge, Kind, Machine, Role, Shown, TreeError,
};
pub use pace::{owed, owes_more};
pub use platform::{Platform, PlatformError};
pub use published::{PublishedRoute, RouteTable, published};
pub use ready_made::{READY_MADE, ReadyMade};
pub use route::{Route, RoutePlan, Target, Unreachable, route_plan};
pub use share::{Flow, share};
pub use verdict::{MapType, Verdict, verdict};
