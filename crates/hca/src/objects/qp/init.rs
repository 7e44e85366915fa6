//! What a queue pair is created from, and the stores that are set aside for its requests.

use crate::adapter::management::ManagementInterface;
use crate::objects::cq::Cq;
use crate::objects::rss::Rss;
use crate::objects::srq::Srq;
use crate::objects::xrc::Xrcd;
use link::FrameBatch;
use std::sync::Arc;
use transport::keys::SignatureSink;
use transport::queues::slots::QueueMemory;
use transport::values::*;
use transport::{CustomWork, Error, Result, SharedReceive, Shelf};

/// What a QP is created from.
#[derive(Clone)]
pub struct QpInit {
    /// Transport type.
    pub qp_type: QpType,
    /// Completions of sends; none on the receiving half of XRC.
    pub send_cq: Option<Arc<Cq>>,
    /// Completions of receives; none on XRC.
    pub recv_cq: Option<Arc<Cq>>,
    /// Domain of the receiving half of XRC.
    pub xrcd: Option<Arc<Xrcd>>,
    /// Receives come from here instead of an own queue.
    pub srq: Option<Arc<Srq>>,
    /// Receives come from a queue of its own that the front end keeps.
    pub receives: Option<Arc<dyn SharedReceive>>,
    /// Does what only the front end knows ([`SendOp::Custom`]).
    pub custom: Option<Arc<dyn CustomWork>>,
    /// Hears of block signatures that are bad.
    pub signatures: Option<Arc<dyn SignatureSink>>,
    /// It is this one to its peers; of datagrams only.
    pub management: Option<ManagementInterface>,
    /// It takes no datagram that it sent to a group itself.
    pub blocks_own_multicast: bool,
    /// Queue sizes wanted.
    pub cap: QpCap,
    /// Every send raises a completion.
    pub sq_sig_all: bool,
    /// Where its queues live, of [`QueueMemory::bytes_of_qp`]; `None` = in the engine's own memory.
    pub memory: Option<QueueMemory>,
    /// Memory for all that `cap` allows is set aside at once, so that posting and sending ask for
    /// none. Otherwise it grows with the requests: for a front end that keeps its programs'
    /// requests itself.
    pub set_aside: bool,
    /// Frames are spread over work queues instead; only of raw packets, without other queues.
    pub rss: Option<Rss>,
}

impl QpInit {
    /// Nothing but the type: no queues, and no room in any.
    pub fn new(qp_type: QpType) -> QpInit {
        QpInit {
            qp_type,
            send_cq: None,
            recv_cq: None,
            xrcd: None,
            srq: None,
            receives: None,
            custom: None,
            signatures: None,
            management: None,
            blocks_own_multicast: false,
            cap: QpCap::default(),
            sq_sig_all: false,
            memory: None,
            set_aside: true,
            rss: None,
        }
    }

    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        self.send_cq.iter().chain(&self.recv_cq)
    }
}

/// Stores of the lists and bytes that requests bring along.
pub(super) struct Shelves {
    pub(super) gathers: Shelf<[Sge; 2]>,
    pub(super) inline: Shelf<[u8; 32]>,
    pub(super) scatters: Shelf<[Sge; 2]>,
}

impl Shelves {
    pub(super) fn new(init: &QpInit) -> Result<Shelves> {
        let cap = &init.cap;
        // What lies in the program's memory needs a store only until it is there.
        let waiting = |requests: u32| match init.memory {
            Some(_) => 2,
            None if init.set_aside => requests as usize + 2,
            None => 0,
        };
        let (sends, receives) = (waiting(cap.max_send_wr), waiting(cap.max_recv_wr));
        Ok(Shelves {
            gathers: Shelf::new(sends, cap.max_send_sge as usize)?,
            inline: Shelf::new(sends, cap.max_inline_data as usize)?,
            scatters: Shelf::new(receives, cap.max_recv_sge as usize)?,
        })
    }
}

/// Room for raw packets on their way out, on a queue pair of these.
pub(super) fn frame_batch(is_raw: bool) -> Result<Vec<FrameBatch>> {
    const FRAMES: &str = "no memory for frames";
    let mut batches = Vec::new();
    if is_raw {
        batches.try_reserve_exact(1).map_err(|_| Error::NoMemory(FRAMES))?;
        batches.push(FrameBatch::new().map_err(|_| Error::NoMemory(FRAMES))?);
    }
    Ok(batches)
}
