//! Two and more connection managers in virtual time, over a network that loses, repeats, delays and
//! reorders.
#![forbid(unsafe_code)]

mod adapters;
mod exact;
mod net;
mod random;
mod sidr;
mod stale;
