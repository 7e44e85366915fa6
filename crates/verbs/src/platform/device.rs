//! The device list: the platform's HCAs, each at one address for the life of the process: librdmacm
//! compares addresses.

use crate::platform::place;
use hca::identity;
use std::ffi::c_char;
use std::sync::OnceLock;
use verbs_sys::{flags, ibv_device};

/// A device as programs hold it, and its GUID once somebody asked.
struct Listed {
    c: ibv_device,
    name: String,
    guid: OnceLock<u64>,
}

// SAFETY: the struct is never written after its creation, and its pointers are all null.
unsafe impl Send for Listed {}
// SAFETY: as above.
unsafe impl Sync for Listed {}

impl Listed {
    fn new(number: usize, name: &str) -> Listed {
        let uverbs = format!("uverbs{number}");
        let c = ibv_device {
            ops: [None; 2],
            node_type: flags::NODE_CA,
            transport_type: flags::TRANSPORT_IB,
            name: text(name),
            dev_name: text(&uverbs),
            dev_path: text(&format!("/sys/class/infiniband_verbs/{uverbs}")),
            ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
        };
        Listed { c, name: name.to_owned(), guid: OnceLock::new() }
    }

    fn guid(&self) -> u64 {
        *self.guid.get_or_init(|| identity::node_guid(&self.name))
    }

    fn as_c(&self) -> *mut ibv_device {
        std::ptr::from_ref(&self.c).cast_mut()
    }
}

/// All devices by number, from 0. Without a platform there is one, which cannot be opened.
fn listed() -> &'static [Listed] {
    static LISTED: OnceLock<Box<[Listed]>> = OnceLock::new();
    LISTED.get_or_init(|| match place::hcas() {
        Ok(hcas) => (0..).zip(hcas).map(|(number, hca)| Listed::new(number, &hca.name)).collect(),
        Err(_) => Box::new([Listed::new(0, identity::NAME)]),
    })
}

/// How many there are; their numbers are below.
pub fn count() -> usize {
    listed().len()
}

/// The device of a number, as programs hold it.
pub fn at(number: usize) -> *mut ibv_device {
    listed().get(number).map_or(std::ptr::null_mut(), Listed::as_c)
}

/// The number of a device that a program holds.
pub fn number_of(device: *mut ibv_device) -> Option<usize> {
    listed().iter().position(|listed| listed.as_c() == device)
}

/// The number of the device of a name.
pub fn number_named(name: &str) -> Option<usize> {
    listed().iter().position(|listed| listed.name == name)
}

/// The name of the device of a number.
pub fn name(number: usize) -> Option<&'static str> {
    listed().get(number).map(|listed| listed.name.as_str())
}

/// The GUID of the device of a number.
pub fn guid(number: usize) -> u64 {
    listed().get(number).map_or(0, Listed::guid)
}

/// A NUL-terminated array of `value`, cut to fit.
pub fn text<const N: usize>(value: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(value.bytes()).take(N - 1) {
        *to = from as c_char;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_always_terminated() {
        let short: [c_char; 4] = text("ab");
        assert_eq!(short, [b'a' as c_char, b'b' as c_char, 0, 0]);
        let cut: [c_char; 4] = text("abcdef");
        assert_eq!(cut, [b'a' as c_char, b'b' as c_char, b'c' as c_char, 0]);
    }
}
