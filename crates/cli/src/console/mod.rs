//! What a person sees of the program: text and JSON on stdout, messages on stderr, and how a
//! command that could not do its work says so. Every command is above this room, which knows none.

pub mod failure;
pub mod style;
