//! Migrating a program's memory to a GPU and back: what CUDA's managed memory, or a kernel's SVM
//! calls, are for. Declared in `include/peerdma.h`.

use crate::base::ffi::{Errno, INVALID, Res, contained, set_errno};
use crate::drm;
use crate::edge::start;
use crate::platform::place;
use mm::{MigrateError, PrivateMemory};
use std::ffi::{c_uint, c_void};
use std::ops::Range;

impl From<MigrateError> for Errno {
    fn from(error: MigrateError) -> Errno {
        crate::log!("{error}");
        Errno(error.errno())
    }
}

/// The pages moved, or −1 with errno set.
fn answer(moved: Res<u64>) -> isize {
    match moved {
        Ok(pages) => isize::try_from(pages).unwrap_or(isize::MAX),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

fn range(addr: *mut c_void, length: usize) -> Res<Range<u64>> {
    let start = addr as u64;
    let end = start.checked_add(length as u64).ok_or(INVALID)?;
    Ok(start..end)
}

/// `ssize_t peerdma_migrate_to_gpu(unsigned int gpu, void *addr, size_t length)`
pub extern "C" fn peerdma_migrate_to_gpu(gpu: c_uint, addr: *mut c_void, length: usize) -> isize {
    answer(contained(|| {
        let range = range(addr, length)?;
        mm::guard::install();
        // rights that change, and forks, must be heard of
        start::set_callbacks();
        crate::engine::fork::watch();
        let device = drm::gpu_at(place::gpu_number(gpu)?)?.private_pages();
        let private = PrivateMemory::process().map_err(MigrateError::from)?;
        Ok(private.migrate(&range, &device)?)
    }))
}

/// `ssize_t peerdma_migrate_to_host(void *addr, size_t length)`
pub extern "C" fn peerdma_migrate_to_host(addr: *mut c_void, length: usize) -> isize {
    answer(contained(|| {
        let range = range(addr, length)?;
        let page = mm::page_size();
        if range.is_empty() || !range.start.is_multiple_of(page) || !range.end.is_multiple_of(page)
        {
            return Err(INVALID);
        }
        Ok(PrivateMemory::running().map_or(0, |private| private.home(&range)))
    }))
}
