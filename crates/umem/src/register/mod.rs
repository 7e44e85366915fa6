//! Making registrations, of every kind of memory. The order of the checks is the kernel's.

pub mod check;
pub(crate) mod clients;
mod dmabuf;
mod on_demand;
mod pages;
mod user;
