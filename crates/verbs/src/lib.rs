//! The drop-in libibverbs.
