//! Registering memory of this process on demand: nothing is brought in at first
//! (`ib_umem_odp_get`, `ib_umem_odp_alloc_implicit`).

use crate::memory::space::{Segment, process_space};
use crate::memory::translation::Translation;
use crate::region::backing::{Backing, OnDemand, PeerRoutes, Peers};
use crate::region::umem::Umem;
use crate::request::error::RegError;
use crate::request::rights::AccessFlags;
use crate::revoke::Shared;
use mm::{AddressSpace, Mirror, Pages, Reach, Sink, page_size};
use std::sync::Arc;

/// Bytes of a huge page (HPAGE_SHIFT on x86-64, and on aarch64 with 4 KiB pages).
const HUGE_PAGE: u64 = 2 << 20;

impl Umem {
    /// Registers `memory` on demand: the pages that are there are mapped, no other is brought in.
    /// Address 0 and length 2^64 - 1 are the whole address space, whose pages are mapped as they
    /// are used (an implicit registration).
    ///
    /// # Errors
    /// In this order: [`RegError::ImplicitIova`], [`RegError::ImplicitHuge`],
    /// [`RegError::OnDemandOverflow`], [`RegError::Pages`], [`RegError::Unreachable`].
    pub fn on_demand(
        space: &Arc<AddressSpace>,
        source: Arc<dyn Pages>,
        memory: Sink<'static>,
        iova: u64,
        access: AccessFlags,
        function: &pcie::Function,
        platform: &pcie::Platform,
    ) -> Result<Arc<Umem>, RegError> {
        let (addr, len) = (memory.addr(), memory.len());
        let huge = access.contains(AccessFlags::HUGETLB);
        let implicit = addr == 0 && len == u64::MAX;
        if implicit && iova != 0 {
            return Err(RegError::ImplicitIova);
        }
        if implicit && huge {
            return Err(RegError::ImplicitHuge);
        }
        let granule = if huge { HUGE_PAGE } else { page_size() };
        if !implicit {
            let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(granule));
            if end.ok_or(RegError::OnDemandOverflow)? == addr & !(granule - 1) {
                return Err(RegError::Pages(0));
            }
        }
        let route = platform.route(function, pcie::Target::HOST)?;
        let writable = access.wants_write();
        let (reach, ways) = ways(function, platform);
        let range = addr..addr.saturating_add(len);
        let devices = source.devices().map(process_space);
        let peers = devices.map(|memory| Peers { memory, ways });
        let mirror = Mirror::new(source, &range, granule, writable, reach);
        // watched before the pages are looked at: an unmap in between is not missed
        let registration = space.register(mirror.range(), mirror.clone())?;
        if !implicit {
            mirror.snapshot();
        }
        let segment = Segment::of_process(memory, route);
        let backing = Backing::OnDemand(OnDemand { _registration: registration, mirror, peers });
        let translation = Translation::new(vec![segment]);
        Ok(Arc::new(Umem::assemble(Shared::new(), vec![Some(translation)], writable, backing)))
    }
}

/// The GPUs whose memory `function` reaches, for a mirror, and the ways there.
fn ways(function: &pcie::Function, platform: &pcie::Platform) -> (Reach, Vec<PeerRoutes>) {
    let (mut addresses, mut routes) = (Vec::new(), Vec::new());
    for gpu in platform.with_role(pcie::Role::Gpu) {
        let target = pcie::Target::Function(gpu.address);
        if let Ok(route) = platform.route(function, target) {
            addresses.push(gpu.address);
            routes.push(PeerRoutes {
                route,
                translated: platform.translated_route(function, target),
            });
        }
    }
    let reach = move |device| {
        let number = addresses.iter().position(|address| *address == device)?;
        u16::try_from(number).ok()
    };
    (Box::new(reach), routes)
}
