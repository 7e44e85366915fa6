//! PCIe: who can reach whom, by which path, at what cost.
#![forbid(unsafe_code)]
// SKELETON: the memory room's owner builds this out.

/// How one PCIe function reaches a target; counts the bytes that take it.
#[derive(Debug)]
pub struct Route;
