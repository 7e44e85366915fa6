//! Options of an id, as `rdma_set_option(3)` names them.

use super::request::Command;
use crate::base::ffi::{Errno, INVALID, Res};
use crate::ucma::layout::{self, Fields, PATH_DATA_LEN, PATH_FLAGS, parse_path_data};
use cma::IdOption;

/// Longest value of an option that is looked at: a few paths.
const MAX_OPTION_LEN: usize = 16 * PATH_DATA_LEN;

impl Command<'_> {
    pub(super) fn set_option(&self) -> Res<()> {
        let bytes = self.read::<24>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(8))?;
        let (level, name, len) = (fields.u32(12), fields.u32(16), fields.u32(20) as usize);
        if len > MAX_OPTION_LEN {
            return Err(INVALID);
        }
        let mut value = vec![0; len];
        // SAFETY: the command names the place of the value.
        unsafe { layout::read_into(fields.u64(0), &mut value) }?;
        let option = option(level, name, &value)?;
        self.with(|cma| cma.set_option(key, option))?;
        if matches!(option, IdOption::ReuseAddr(_) | IdOption::AfOnly(_)) {
            let sharing = self.with(|cma| cma.sharing(key))?;
            self.service.with_ports(|ports, claims| ports.share(key, sharing, claims));
        }
        Ok(())
    }
}

fn option(level: u32, name: u32, value: &[u8]) -> Res<IdOption> {
    let flag = || -> Res<bool> {
        let value: [u8; 4] = value.try_into().map_err(|_| INVALID)?;
        Ok(i32::from_ne_bytes(value) != 0)
    };
    let byte = || -> Res<u8> {
        let [value] = value else { return Err(INVALID) };
        Ok(*value)
    };
    match (level, name) {
        (0, 0) => Ok(IdOption::Tos(byte()?)),
        (0, 1) => Ok(IdOption::ReuseAddr(flag()?)),
        (0, 2) => Ok(IdOption::AfOnly(flag()?)),
        (0, 3) => Ok(IdOption::AckTimeout(byte()?)),
        (1, 1) => {
            if !value.len().is_multiple_of(PATH_DATA_LEN) {
                return Err(INVALID);
            }
            let paths = value.chunks_exact(PATH_DATA_LEN).map(parse_path_data);
            let found = paths.into_iter().find(|(flags, _)| *flags == PATH_FLAGS);
            Ok(IdOption::Path(found.ok_or(INVALID)?.1))
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}
