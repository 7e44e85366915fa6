//! Memory keys: what each stands for, and every check of one.
//!
//! [`KeyTable`] is the table of one device. What a place of it holds is in `region`, `window`,
//! `indirect` and `stacked`; `resolve` checks accesses and hands out a [`MemRef`], and `bind`,
//! `configure` and `stack` change what keys stand for.

mod bind;
mod configure;
mod indirect;
mod mem_ref;
mod region;
mod resolve;
mod rights;
mod signed;
mod signed_memory;
mod span;
mod stack;
mod stacked;
mod table;
mod window;

pub use bind::BindError;
pub use indirect::ConfigureError;
pub use mem_ref::MemRef;
pub use region::Mkey;
pub use rights::KeyError;
pub(crate) use rights::check_rights;
pub use signed::{BadSignature, SignatureSink, Signed};
pub(crate) use signed_memory::{Alarm, Watcher};
pub use stack::StackInit;
pub use table::{KeyTable, MAX_KEYS, place_of};
