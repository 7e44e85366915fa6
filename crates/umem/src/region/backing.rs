//! What keeps the memory of a registration: one of five, each with what belongs to it and nothing
//! else.

use crate::memory::space::DmaSpace;
use crate::peer::hold::PeerHold;
use dmabuf::Attachment;
use std::sync::Arc;

/// Where the memory of a registration comes from. The fields of each go in the order they stand in.
pub(crate) enum Backing {
    /// Pages of this process that stay resident.
    User { registration: mm::Registration, _pinned: mm::Pinned },
    /// Pages of this process that are brought in as they are used.
    OnDemand(OnDemand),
    /// A dma-buf, which may move.
    DmaBuf(Attachment),
    /// Memory that a Peer-Direct client claimed; it attached a dma-buf of its own.
    Peer { attachment: Arc<Attachment>, _hold: Arc<PeerHold> },
    /// Segments that somebody else keeps.
    Fixed,
}

/// Pages of this process that are brought in as they are used.
pub(crate) struct OnDemand {
    pub(crate) _registration: mm::Registration,
    pub(crate) mirror: Arc<mm::Mirror>,
    /// Where pages may be in other devices' memories.
    pub(crate) peers: Option<Peers>,
}

/// Other devices' memories in which pages of an on-demand registration may be.
pub(crate) struct Peers {
    /// All of these memories.
    pub(crate) memory: Arc<dyn DmaSpace>,
    /// The routes there, by the numbers that the mirror has.
    pub(crate) ways: Vec<PeerRoutes>,
}

/// The routes to another device's memory.
pub(crate) struct PeerRoutes {
    pub(crate) route: Arc<pcie::Route>,
    /// The route of translated requests, where they take another one.
    pub(crate) translated: Option<Arc<pcie::Route>>,
}

impl Backing {
    /// The mirror of pages that are brought in as they are used.
    #[inline]
    pub(crate) fn mirror(&self) -> Option<&Arc<mm::Mirror>> {
        match self {
            Backing::OnDemand(OnDemand { mirror, .. }) => Some(mirror),
            _ => None,
        }
    }

    /// The dma-buf that the memory is in.
    #[inline]
    pub(crate) fn attachment(&self) -> Option<&Attachment> {
        match self {
            Backing::DmaBuf(attachment) => Some(attachment),
            Backing::Peer { attachment, .. } => Some(attachment),
            Backing::User { .. } | Backing::OnDemand(_) | Backing::Fixed => None,
        }
    }

    /// Whether the end of its mapping is noticed however the program ends it.
    pub(crate) fn is_watched(&self) -> bool {
        match self {
            Backing::User { registration, .. } => registration.is_watched(),
            _ => true,
        }
    }
}
