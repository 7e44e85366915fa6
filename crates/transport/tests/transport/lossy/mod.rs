//! Networks that misbehave by a seed.

mod rc_lossy;
mod sweeps;
