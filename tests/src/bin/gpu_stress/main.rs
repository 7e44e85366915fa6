//! GPU memory under everything at once: one process owns buffers, moves them, revokes them and
//! frees them at random; three others register each and write, read and add to it through each
//! other's regions.
//!
//! Every byte is accounted for. A buffer has a counter, which all add to, and a stripe for each
//! user, which only this user writes; the user keeps a model of its stripe and compares what it
//! reads. In the end the owner reads the buffer and compares all stripes and the sum. What may go
//! wrong is known too: after a revoke each user gets an access error, nobody else does, and no byte
//! changes any more.
#![forbid(unsafe_code)]

mod owner;
mod random;
mod user;

use anyhow::{Context, Result, bail};

/// Processes that use the buffers.
const USERS: usize = 3;
/// Where the stripes begin; the counter is before.
const STRIPES: u64 = 4096;

/// A user's stripe of a buffer.
fn stripe(user: usize, len: u64) -> std::ops::Range<u64> {
    let each = (len - STRIPES) / USERS as u64;
    let start = STRIPES + each * user as u64;
    start..start + each
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| -> Result<u64> {
        arguments.get(at).context("too few arguments")?.parse().context("no number")
    };
    match arguments.first().map(String::as_str) {
        Some("owner") => owner::run(number(1)?, number(2)?),
        Some("user") => user::run(number(1)? as usize, number(2)?),
        _ => bail!("gpu_stress owner SECONDS SEED"),
    }
}
