//! Keys stacked on the Data Direct function, in the key table.

use crate::values::Access;
use crate::values::PdId;
use std::sync::Arc;
use umem::Umem;

/// A key whose addresses are those the Data Direct function puts on the bus (access mode PA,
/// length64).
pub(crate) struct Physical {
    pub(super) pd: PdId,
    pub(super) access: Access,
}

/// A key over DMA addresses under a [`Physical`] key (access mode KSM).
pub(crate) struct Ksm {
    pub(super) pd: PdId,
    pub(super) iova: u64,
    pub(super) access: Access,
    pub(super) physical: u32,
    /// The attached memory; none once the function is gone.
    pub(super) memory: Option<Arc<Umem>>,
}

/// A program's key over a [`Ksm`] key (access mode CROSSING); its addresses begin at 0.
pub(crate) struct Crossing {
    pub(super) pd: PdId,
    pub(super) access: Access,
    pub(super) target: u32,
    pub(super) len: u64,
}
