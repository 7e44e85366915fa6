//! User memory (PRM "UMEM", `create_umem_in`): a program's pages, which its driver names to the
//! device once.

use crate::layout::head::Status;
use crate::machine::buffer::Buffer;
use crate::request::memory::CreateUmem;
use std::sync::Arc;
use umem::DmaSpace;

/// In a page's entry, besides that it may be read.
const WRITABLE: u64 = 2;

/// A program's pages.
pub(crate) struct UserMemory {
    memory: Arc<dyn DmaSpace>,
    pages: Arc<[u64]>,
    page_shift: u32,
    /// Where its first byte is in the first page.
    offset: u64,
    writable: bool,
}

impl UserMemory {
    pub(crate) fn new(
        memory: Arc<dyn DmaSpace>,
        request: &CreateUmem,
    ) -> Result<UserMemory, Status> {
        let page_shift = request.log_page_size + 12;
        let count = usize::try_from(request.num_of_mtt).map_err(|_| Status::BadInputLength)?;
        let list = request.mtt.get(..count).ok_or(Status::BadInputLength)?;
        let offset = request.page_offset;
        if list.is_empty() || offset >> page_shift != 0 {
            return Err(Status::BadParameter);
        }
        let pages = list.iter().map(|entry| entry & !0xfff).collect();
        let writable = list.iter().all(|entry| entry & WRITABLE != 0);
        Ok(UserMemory { memory, pages, page_shift, offset, writable })
    }

    /// Its bytes from `at` on.
    pub(crate) fn buffer(self: &Arc<UserMemory>, at: u64) -> Result<Buffer, Status> {
        let offset = self.offset.checked_add(at).ok_or(Status::BadParameter)?;
        let pages = (self.pages.clone(), self.page_shift);
        Ok(Buffer::over(self.memory.clone(), pages, offset, self.clone()))
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }
}
