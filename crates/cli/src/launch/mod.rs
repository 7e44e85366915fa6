//! The commands that put programs on the device: `run`, which starts one, and `env`, which prints
//! the settings for others to start.

pub mod cdi;
pub mod env;
mod lookup;
mod reach;
pub mod run;
