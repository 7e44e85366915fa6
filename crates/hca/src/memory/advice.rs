//! Advice about memory that will be used (`ibv_advise_mr(3)`): pages of on-demand regions are
//! mapped ahead of their use.

use transport::keys::{KeyTable, Mkey};
use transport::values::PdId;
use transport::values::Sge;
use umem::Prefetch;

/// Why advice is refused; each kind is one errno (`get_prefetchable_mr` and `pagefault_mr` of
/// `mlx5/odp.c`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdviceError {
    /// The key names nothing whose pages come on demand (ENOENT).
    #[error("not the key of an on-demand or dma-buf region")]
    NotPaged,
    /// The key is that of a memory window (EINVAL).
    #[error("not the key of a region")]
    NotRegion,
    /// The region belongs to another protection domain, or may not be written (EPERM).
    #[error("the region is not this domain's, or not for writing")]
    Denied,
    /// The range leaves the region, or has no page for this access (EFAULT).
    #[error("the range leaves the region, or no page is there for this access")]
    Range,
}

/// Follows advice about `ranges`, as [`Device::advise`](crate::Device::advise) says.
///
/// # Errors
/// See [`AdviceError`].
pub(crate) fn advise(
    keys: &KeyTable,
    pd: PdId,
    how: Prefetch,
    ranges: &[Sge],
    wait: bool,
) -> Result<(), AdviceError> {
    if wait {
        return ranges
            .iter()
            .try_for_each(|range| prefetch(&prefetchable(keys, pd, how, range.lkey)?, how, range));
    }
    let regions: Vec<Mkey> = ranges
        .iter()
        .map(|range| prefetchable(keys, pd, how, range.lkey))
        .collect::<Result<_, _>>()?;
    for (region, range) in regions.iter().zip(ranges) {
        if prefetch(region, how, range).is_err() {
            break;
        }
    }
    Ok(())
}

fn prefetchable(keys: &KeyTable, pd: PdId, how: Prefetch, key: u32) -> Result<Mkey, AdviceError> {
    let Some(region) = keys.get(key) else {
        let window = keys.is_window(key);
        return Err(if window { AdviceError::NotRegion } else { AdviceError::NotPaged });
    };
    if !region.umem.is_on_demand() && !region.umem.is_dmabuf() {
        return Err(AdviceError::NotPaged);
    }
    if region.pd != pd || how == Prefetch::Write && !region.umem.writable() {
        return Err(AdviceError::Denied);
    }
    Ok(region)
}

fn prefetch(region: &Mkey, how: Prefetch, range: &Sge) -> Result<(), AdviceError> {
    let offset = range.addr.checked_sub(region.iova).ok_or(AdviceError::Range)?;
    region.umem.prefetch(offset, range.length.into(), how).map_err(|_| AdviceError::Range)
}
