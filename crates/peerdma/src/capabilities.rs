//! What a device's hardware offers beyond `ibv_query_device(3)`, as far as memory is concerned:
//! on-demand paging, whether a confidential guest's DMA bounces, and of a ConnectX the words of its
//! firmware.

use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi;
use libc::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use verbs_sys::{ibv_context, ibv_device_attr_ex};

/// What `ibv_query_device_ex(3)` says of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryAttr {
    /// Regions whose pages come when they are used (`IBV_ODP_SUPPORT`).
    pub on_demand: bool,
    /// What RC queue pairs may do with such regions: bits of `enum ibv_odp_transport_cap_bits`.
    pub on_demand_rc: u32,
    /// The machine is a guest with encrypted memory, and DMA goes by way of bounce buffers
    /// (`IB_UVERBS_DEVICE_CC_DMA_BOUNCE`): plain memory cannot be registered. Kernels before 7.3 do
    /// not say.
    pub bounces: bool,
}

/// What the firmware of a ConnectX offers, by its general capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirmwareCaps {
    /// `HCA_CAP.data_direct`.
    pub data_direct: bool,
    /// `HCA_CAP_2.query_vuid`.
    pub query_vuid: bool,
    /// `HCA_CAP.crossing_vhca_mkey`.
    pub crossing_vhca_mkey: bool,
    /// `HCA_CAP.ats`.
    pub ats: bool,
}

/// Bits within a group of capabilities (`mlx5_ifc_cmd_hca_cap_bits`,
/// `mlx5_ifc_cmd_hca_cap_2_bits`).
const ATS: usize = 0x461;
const CROSSING_VHCA_MKEY: usize = 0x5b2;
const DATA_DIRECT: usize = 0x752;
const QUERY_VUID: usize = 0x92;
/// Groups of capabilities.
const GENERAL: u8 = 0;
const GENERAL_2: u8 = 0x20;
/// `MLX5_CMD_OP_QUERY_HCA_CAP`, the length of its answer's head, and that of a group.
const QUERY_HCA_CAP: u16 = 0x100;
const HEAD: usize = 16;
const GROUP: usize = 4096;

type GeneralCmd = unsafe extern "C" fn(
    *mut ibv_context,
    *const c_void,
    libc::size_t,
    *mut c_void,
    libc::size_t,
) -> c_int;

/// libmlx5's function that passes a command to the firmware. The library stays loaded.
fn general_cmd() -> Result<GeneralCmd> {
    static LOADED: OnceLock<Option<GeneralCmd>> = OnceLock::new();
    let load = || {
        // SAFETY: a NUL-terminated name. The library's constructors run; it belongs to the
        // libibverbs in use.
        let handle = unsafe { libc::dlopen(c"libmlx5.so.1".as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: a live handle that is never closed, and a NUL-terminated name.
        let found = unsafe { libc::dlsym(handle, c"mlx5dv_devx_general_cmd".as_ptr()) };
        // SAFETY: the function of this name has the prototype of mlx5dv.h.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, GeneralCmd>(found) })
    };
    let missing = "this machine has no libmlx5 that passes commands on (rdma-core 22)";
    LOADED.get_or_init(load).ok_or(Error::NotSupported(missing))
}

impl Context {
    /// What the device says of registered memory.
    ///
    /// # Errors
    /// [`Error::NotSupported`] of a libibverbs older than `ibv_query_device_ex(3)`; else the
    /// call's.
    pub fn memory_attr(&self) -> Result<MemoryAttr> {
        const ODP_SUPPORT: u64 = 1;
        const CC_DMA_BOUNCE: u64 = 1 << 41;
        let context = self.inner.raw.as_ptr();
        // SAFETY: an open context of a libibverbs.
        let Some(query) = (unsafe { ffi::query_device_ex(context) }) else {
            return Err(Error::NotSupported("this libibverbs has no ibv_query_device_ex"));
        };
        let mut attr = MaybeUninit::<ibv_device_attr_ex>::zeroed();
        // SAFETY: the context is open, no input is given, and `attr` is as long as is said.
        let value = unsafe {
            query(context, std::ptr::null(), attr.as_mut_ptr(), size_of::<ibv_device_attr_ex>())
        };
        if value != 0 {
            let source = std::io::Error::from_raw_os_error(value);
            return Err(Error::Call { call: "ibv_query_device_ex", source });
        }
        // SAFETY: every bit pattern, the zeroes it began with included, is a value of the struct.
        let attr = unsafe { attr.assume_init() };
        Ok(MemoryAttr {
            on_demand: attr.odp_caps.general_caps & ODP_SUPPORT != 0,
            on_demand_rc: attr.odp_caps.rc_odp_caps,
            bounces: attr.device_cap_flags_ex & CC_DMA_BOUNCE != 0,
        })
    }

    /// What a ConnectX's firmware offers.
    ///
    /// # Errors
    /// [`Error::NotSupported`] without a libmlx5 that passes commands on; EOPNOTSUPP, or another
    /// one, for a device that is no ConnectX; EREMOTEIO where the firmware refuses.
    pub fn firmware_caps(&self) -> Result<FirmwareCaps> {
        let general = self.firmware_group(GENERAL)?;
        let second = self.firmware_group(GENERAL_2)?;
        Ok(FirmwareCaps {
            data_direct: bit(&general, DATA_DIRECT),
            query_vuid: bit(&second, QUERY_VUID),
            crossing_vhca_mkey: bit(&general, CROSSING_VHCA_MKEY),
            ats: bit(&general, ATS),
        })
    }

    /// A group of capabilities as it is in force.
    fn firmware_group(&self, group: u8) -> Result<Vec<u8>> {
        let command = general_cmd()?;
        let mut input = [0u8; HEAD];
        input[..2].copy_from_slice(&QUERY_HCA_CAP.to_be_bytes());
        // the group, and in the lowest bit that its current values are meant
        input[7] = group << 1 | 1;
        let mut answer = vec![0u8; HEAD + GROUP];
        // SAFETY: the context is open, and both buffers are as long as is said.
        let value = unsafe {
            command(
                self.inner.raw.as_ptr(),
                input.as_ptr().cast(),
                input.len(),
                answer.as_mut_ptr().cast(),
                answer.len(),
            )
        };
        let refused = (answer[0] != 0).then_some(libc::EREMOTEIO);
        match (value != 0).then_some(value).or(refused) {
            Some(errno) => {
                let source = std::io::Error::from_raw_os_error(errno);
                Err(Error::Call { call: "mlx5dv_devx_general_cmd", source })
            }
            None => Ok(answer.split_off(HEAD)),
        }
    }
}

/// A bit of a group: bits count from the highest of the first byte.
fn bit(group: &[u8], at: usize) -> bool {
    group.get(at / 8).is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_count_from_the_highest() {
        let mut group = vec![0; GROUP];
        group[0x752 / 8] = 0x20;
        assert!(bit(&group, DATA_DIRECT) && !bit(&group, DATA_DIRECT - 1));
        assert!(!bit(&[], ATS));
    }
}
