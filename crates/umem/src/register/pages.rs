//! How many pages a registration is of, and how many it may be of.

use crate::request::error::RegError;
use mm::page_size;

/// Pages that `[start, start + len)` touches, or why they cannot be counted (`ib_umem_num_pages`
/// and the checks around it).
pub(crate) fn pages(start: u64, len: u64) -> Result<u64, RegError> {
    let page = page_size();
    let end = start
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(page))
        .ok_or(RegError::Overflow)?;
    Ok((end - (start & !(page - 1))) / page)
}

pub(crate) fn check_pages(pages: u64) -> Result<(), RegError> {
    if pages == 0 || pages > u64::from(u32::MAX) { Err(RegError::Pages(pages)) } else { Ok(()) }
}
