//! The device list. There is one device, at one address for the life of the process: librdmacm compares addresses.

use crate::abi::{flags, ibv_device};
use crate::ffi::{arg, pointer, quiet};
use hca::identity;
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

/// Name of the uverbs node, as sysfs shows it too.
const UVERBS: &str = "uverbs0";
/// Index that the kernel would give an RDMA device.
const DEVICE_INDEX: c_int = 0;

struct Static(ibv_device);

// SAFETY: the struct is never written after its creation, and its pointers are all null.
unsafe impl Send for Static {}
// SAFETY: as above.
unsafe impl Sync for Static {}

/// The device, as programs hold it.
pub fn the_device() -> *mut ibv_device {
    static DEVICE: OnceLock<Static> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        Static(ibv_device {
            ops: [None; 2],
            node_type: flags::NODE_CA,
            transport_type: flags::TRANSPORT_IB,
            name: text(identity::NAME),
            dev_name: text(UVERBS),
            dev_path: text(&format!("/sys/class/infiniband_verbs/{UVERBS}")),
            ibdev_path: text(&format!("/sys/class/infiniband/{}", identity::NAME)),
        })
    });
    std::ptr::from_ref(&device.0).cast_mut()
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
        let list = Box::new([the_device(), std::ptr::null_mut()]);
        if !num.is_null() {
            // SAFETY: the program passes null or an integer to fill.
            unsafe { *num = 1 };
        }
        Ok(Box::into_raw(list).cast())
    })
}

/// `ibv_free_device_list(3)`.
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: the program passes a list that `ibv_get_device_list` made, which is a box of this type.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
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
    if device == the_device() { DEVICE_INDEX } else { -1 }
}

/// `ibv_get_device_guid(3)`: big-endian.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    if device == the_device() { guid().to_be() } else { 0 }
}

/// The GUID, computed once.
pub fn guid() -> u64 {
    static GUID: OnceLock<u64> = OnceLock::new();
    *GUID.get_or_init(identity::node_guid)
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
            assert_eq!(*list, the_device());
            assert!((*list.add(1)).is_null());
            let name = CStr::from_ptr(ibv_get_device_name(*list));
            assert_eq!(name.to_str(), Ok("peerdma0"));
            assert_eq!(ibv_get_device_guid(*list), guid().to_be());
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
