//! The device list: the platform's HCAs, each at one address for the life of the process: librdmacm compares addresses.

use crate::abi::{flags, ibv_device};
use crate::ffi::{arg, pointer, quiet};
use crate::memory;
use hca::identity;
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

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
    LISTED.get_or_init(|| match memory::hcas() {
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

/// `ibv_get_device_list(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        crate::start();
        let devices = listed().iter().map(Listed::as_c);
        let list: Box<[*mut ibv_device]> = devices.chain([std::ptr::null_mut()]).collect();
        if !num.is_null() {
            // SAFETY: the program passes null or an integer to fill.
            unsafe { *num = c_int::try_from(count()).unwrap_or(c_int::MAX) };
        }
        Ok(Box::into_raw(list).cast())
    })
}

/// `ibv_free_device_list(3)`.
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        let list = std::ptr::slice_from_raw_parts_mut(list, count() + 1);
        // SAFETY: the program passes a list that `ibv_get_device_list` made, which is a box of this length.
        drop(unsafe { Box::from_raw(list) });
    }
}

/// `ibv_get_device_name(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    quiet(std::ptr::null(), || {
        // SAFETY: the program passes null or a device of the list.
        Ok(unsafe { arg(device) }?.name.as_ptr())
    })
}

/// `ibv_get_device_index(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    number_of(device).and_then(|number| c_int::try_from(number).ok()).unwrap_or(-1)
}

/// `ibv_get_device_guid(3)`: big-endian.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    number_of(device).map_or(0, |number| guid(number).to_be())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn the_list_is_null_terminated_and_its_pointers_are_stable() {
        let mut num = 0;
        // SAFETY: a live integer.
        let list = unsafe { ibv_get_device_list(&mut num) };
        assert_eq!(num, 1);
        // SAFETY: the list has two places.
        unsafe {
            assert_eq!(*list, at(0));
            assert!((*list.add(1)).is_null());
            let name = CStr::from_ptr(ibv_get_device_name(*list));
            assert_eq!(name.to_str(), Ok("peerdma0"));
            assert_eq!(ibv_get_device_guid(*list), guid(0).to_be());
            assert_eq!(ibv_get_device_index(std::ptr::null_mut()), -1);
            ibv_free_device_list(list);
            ibv_free_device_list(std::ptr::null_mut());
        }
    }

    #[test]
    fn text_is_always_terminated() {
        let short: [c_char; 4] = text("ab");
        assert_eq!(short, [b'a' as c_char, b'b' as c_char, 0, 0]);
        let cut: [c_char; 4] = text("abcdef");
        assert_eq!(cut, [b'a' as c_char, b'b' as c_char, b'c' as c_char, 0]);
    }
}
