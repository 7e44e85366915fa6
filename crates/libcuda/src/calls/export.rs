//! Memory for other devices: dma-bufs of address ranges (`cuMemGetHandleForAddressRange`).

use crate::ffi::Out;
use cuda::memory::{self, Range};
use cuda::sys::page_size;
use cuda::{Driver, Error, log};
use std::os::fd::IntoRawFd;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: u32 = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`: every mapping here is one by PCIe.
const PCIE: u64 = 1;

/// Why there is no dma-buf of more than the memory that a range begins in: one of several
/// allocations, which CUDA has, is not built; anything else is wrong.
fn beyond(driver: &Driver, first: &Range, addr: u64, bytes: u64) -> Error {
    if !memory::is_mapped_on(driver, first, addr.saturating_add(bytes)) {
        return Error::INVALID_VALUE;
    }
    log::say_once("a dma-buf of addresses that several mappings fill is not built");
    Error::NOT_SUPPORTED
}

api! {
    fn cuMemGetHandleForAddressRange(
        handle: Out<i32>, addr: u64, bytes: u64, kind: u32, flags: u64,
    ) {
        let (driver, handle, page) = (Driver::get()?, handle.checked()?, page_size());
        let wrong = kind != DMA_BUF_FD || flags & !PCIE != 0;
        if wrong || bytes == 0 || !addr.is_multiple_of(page) || !bytes.is_multiple_of(page) {
            return Err(Error::INVALID_VALUE);
        }
        let range = driver.space.at(addr).ok_or(Error::INVALID_VALUE)?;
        let device = range.device().ok_or(Error::NOT_SUPPORTED)?;
        let start = device.offset + (addr - range.start);
        // the whole page that an allocation ends in is its own
        let end = range.len.next_multiple_of(page) - (addr - range.start);
        if bytes > end {
            return Err(beyond(driver, &range, addr, bytes));
        }
        handle.put(device.physical.export_part(start, bytes)?.into_raw_fd())
    }
}
