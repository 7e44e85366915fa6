//! The commands that put programs on the device: `run`, which starts one, and `env`, which prints
//! the settings for others to start.

pub mod env;
mod lookup;
mod reach;
pub mod run;
