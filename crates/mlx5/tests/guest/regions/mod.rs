//! Keys over every kind of memory that a function has.

mod data_direct;
mod device_memory;
mod keys;
mod page_faults;
