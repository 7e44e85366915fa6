//! Memory keys: what a key stands over, and on whose behalf it is changed.

pub(crate) mod changer;
pub(crate) mod data_direct_key;
pub(crate) mod key_list;
pub(crate) mod memic;
pub(crate) mod mkey;
pub(crate) mod psv;
pub(crate) mod translation;
