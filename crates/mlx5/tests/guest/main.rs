//! The function against a driver that is simulated: one that knows what it does, and one that means no good.

mod data_direct;
mod device_memory;
mod doorbells;
mod driver;
mod dump;
mod ethernet;
mod hostile;
mod keys;
mod memory;
mod moderation;
mod page_faults;
mod support;
mod tags;
mod turns;
mod users;
