//! Which way between a GPU's memory and a network adapter works on a host, which does not, and why.
//!
//! [`examine`] looks at a file tree that is `/`, of this machine or captured, and answers one
//! [`Finding`] for each mechanism and pair. A finding is a list of conditions in the order in which
//! a registration would meet them, each with its evidence; the first that fails is the reason. A
//! condition that could not be read is unknown, and so is what rests on it: never *off*.
//!
//! The conditions and their sources: Linux `drivers/infiniband`, `drivers/pci/p2pdma.c`, the
//! exporters' drivers, and Documentation/admin-guide/kernel-parameters.txt for the remedies.
#![forbid(unsafe_code)]

mod acs;
mod conditions;
mod confidential;
mod exporter;
mod facts;
mod finding;
mod importer;
mod mechanisms;
mod probe;

pub use facts::Facts;
pub use finding::{Condition, ConditionState, Finding, Mechanism, Outcome};
pub use mechanisms::examine;
pub use pcie::Version;
pub use probe::{FirmwareCaps, OnDemand, PROBES, Probe};
