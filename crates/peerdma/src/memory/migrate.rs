//! Pages of host memory that move into a GPU's: what only peerdma's own libibverbs does.

use super::{HostBuffer, Mr, Region};
use crate::error::{Error, Result};

impl Mr<HostBuffer> {
    /// Moves the pages into the memory of a GPU of peerdma's platform, 0 being the first. The bytes
    /// stay at their addresses: a touch by the CPU brings a page home, and an on-demand region
    /// ([`Access::ON_DEMAND`](crate::Access::ON_DEMAND)) is served where it is. Answers how many
    /// moved.
    ///
    /// Errors: [`Error::NotSupported`] with any other library; EPERM without the right to
    /// userfaultfd, ENOMEM where the GPU is full, ENODEV without such a GPU.
    pub fn migrate_to_gpu(&self, gpu: u32) -> Result<u64> {
        let Some(migrate) = self.registration.pd.inner.context.inner.functions().migrate_to_gpu
        else {
            return Err(Error::NotSupported("only peerdma's libibverbs migrates memory to GPUs"));
        };
        // SAFETY: sysconf has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let len = self.memory.len().next_multiple_of(page);
        // SAFETY: the mapping is the buffer's own, to the end of its last page; its bytes stay as
        // they are.
        let moved = unsafe { migrate(gpu, self.memory.addr().as_ptr().cast(), len) };
        u64::try_from(moved).map_err(|_| Error::last("peerdma_migrate_to_gpu"))
    }
}
