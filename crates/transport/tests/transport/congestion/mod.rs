//! Networks that are too slow for what they are to carry, or that lose some of it.

mod loss;
mod many;
mod notifications;
