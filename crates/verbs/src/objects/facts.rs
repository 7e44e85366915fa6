//! What a context remembers of a memory region, for calls that name it again.

use umem::AccessFlags;

/// What a `struct ibv_mr` stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Program memory.
    User,
    /// A dma-buf.
    DmaBuf,
    /// A dma-buf that the Data Direct function reaches.
    DataDirect,
    /// Device memory.
    Device,
    /// The null region.
    Null,
    /// A region of another context, named by `ibv_import_mr`.
    Imported,
}

/// What `ibv_rereg_mr` and `ibv_import_mr` ask about a region.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub kind: Kind,
    pub pd: hca::PdId,
    pub iova: u64,
    pub length: u64,
    pub access: AccessFlags,
}
