//! The device list as programs ask for it (ibv_get_device_list(3)).

use crate::base::ffi::{arg, pointer, quiet};
use crate::edge::start::start;
use crate::platform::device;
use std::ffi::{c_char, c_int};
use verbs_sys::ibv_device;

/// `ibv_get_device_list(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        start();
        let devices = (0..device::count()).map(device::at);
        let list: Box<[*mut ibv_device]> = devices.chain([std::ptr::null_mut()]).collect();
        if !num.is_null() {
            // SAFETY: the program passes null or an integer to fill.
            unsafe { *num = c_int::try_from(device::count()).unwrap_or(c_int::MAX) };
        }
        Ok(Box::into_raw(list).cast())
    })
}

/// `ibv_free_device_list(3)`.
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        let list = std::ptr::slice_from_raw_parts_mut(list, device::count() + 1);
        // SAFETY: the program passes a list that `ibv_get_device_list` made, which is a box of this
        // length.
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
    device::number_of(device).and_then(|number| c_int::try_from(number).ok()).unwrap_or(-1)
}

/// `ibv_get_device_guid(3)`: big-endian.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    device::number_of(device).map_or(0, |number| device::guid(number).to_be())
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
            assert_eq!(*list, device::at(0));
            assert!((*list.add(1)).is_null());
            let name = CStr::from_ptr(ibv_get_device_name(*list));
            assert_eq!(name.to_str(), Ok("peerdma0"));
            assert_eq!(ibv_get_device_guid(*list), device::guid(0).to_be());
            assert_eq!(ibv_get_device_index(std::ptr::null_mut()), -1);
            ibv_free_device_list(list);
            ibv_free_device_list(std::ptr::null_mut());
        }
    }
}
