//! This process and its children: the signals that reach them, how they end, and the network
//! namespace that they are in.

pub mod own_network;
pub mod supervise;
