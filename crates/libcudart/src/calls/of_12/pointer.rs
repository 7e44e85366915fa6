//! What is told of an address.

use crate::calls::pointer::{Attributes, attributes};
use crate::current::ready;
use crate::ffi::Out;

api! {
    fn cudaPointerGetAttributes(out: Out<Attributes>, addr: u64) {
        let out = out.checked()?;
        out.put(attributes(ready()?, addr)?)
    }
}
