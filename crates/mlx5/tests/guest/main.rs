//! The function against a driver that is simulated: one that knows what it does, and one that means
//! no good.

mod addresses;
mod doorbells;
mod driver;
mod dump;
mod ethernet;
mod hostile;
mod memory;
mod moderation;
mod regions;
mod registers;
mod support;
mod tags;
mod turns;
mod users;
