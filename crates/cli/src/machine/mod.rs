//! The commands about a machine: `topo` draws it, `doctor` examines it, `platforms` lists those
//! that are ready-made. Beside them is what they share, and the demo with them: what to call a
//! function, and which adapter is near which GPU.

pub mod doctor;
mod fold;
mod names;
pub mod pairs;
pub mod platforms;
mod probe;
pub mod topo;
