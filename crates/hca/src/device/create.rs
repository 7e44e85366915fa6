//! Where every object of a device is made, and what is checked before.

use super::Device;
use crate::adapter::event::{CompletionSink, CqNotify};
use crate::memory::advice::{AdviceError, advise};
use crate::memory::indirect::IndirectKey;
use crate::memory::key_space::{Below, KeyParts, KeySpace};
use crate::memory::mr::Mr;
use crate::memory::mw::Mw;
use crate::memory::pd::Pd;
use crate::objects::ah::AddressHandle;
use crate::objects::cq::Cq;
use crate::objects::qp::{Qp, QpInit};
use crate::objects::srq::{Srq, SrqAttr, SrqKind};
use crate::objects::xrc::{Xrcd, XrcdInit};
use std::sync::Arc;
use transport::queues::slots::QueueMemory;
use transport::values::{Access, AhAttr, IndirectInit, MwType, PdId, QpType, Sge};
use transport::{Error, Result, SharedReceive};
use umem::{Prefetch, Umem};

/// Handles are of one device, as they are of one file in the kernel.
const FOREIGN: Error = Error::Invalid("an object belongs to another device");

impl Device {
    /// A protection domain.
    ///
    /// # Errors
    /// [`Error::Lost`] when the device is gone.
    pub fn alloc_pd(&self) -> Result<Arc<Pd>> {
        self.alive()?;
        Ok(Pd::alloc())
    }

    /// A memory region over a registration.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when no key is left.
    pub fn reg_mr(
        &self,
        pd: &Arc<Pd>,
        umem: Arc<Umem>,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>> {
        self.alive()?;
        Mr::new(&self.adapter, pd, umem, iova, access)
    }

    /// A memory window.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when no key is left.
    pub fn alloc_mw(&self, pd: &Arc<Pd>, mw_type: MwType) -> Result<Arc<Mw>> {
        self.alive()?;
        Mw::new(&self.adapter, pd, mw_type)
    }

    /// An indirect key that is free.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more entries than [`MAX_KEY_ENTRIES`](crate::MAX_KEY_ENTRIES),
    /// [`Error::NoMemory`] when no key is left.
    pub fn create_indirect_key(
        &self,
        pd: &Arc<Pd>,
        init: IndirectInit,
    ) -> Result<Arc<IndirectKey>> {
        self.alive()?;
        IndirectKey::new(&self.adapter, pd, init)
    }

    /// Memory that `parts` lists, in keys of the device.
    pub fn key_space<P: KeyParts>(&self, parts: P, below: Below) -> KeySpace<P> {
        KeySpace::new(Arc::downgrade(&self.adapter), parts, below)
    }

    /// Follows advice about `ranges`, in order. With `wait` an error ends it and is reported;
    /// without, only keys and rights are, all of them before anything is done, and what fails later
    /// is dropped.
    ///
    /// # Errors
    /// See [`AdviceError`].
    pub fn advise(
        &self,
        pd: PdId,
        how: Prefetch,
        ranges: &[Sge],
        wait: bool,
    ) -> std::result::Result<(), AdviceError> {
        advise(self.keys(), pd, how, ranges, wait)
    }

    /// A completion queue of at least `cqe` entries.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `cqe` is 0 or above the limit, [`Error::NoMemory`] when the system
    /// has none for it.
    pub fn create_cq(&self, cqe: u32, notify: Option<Arc<dyn CqNotify>>) -> Result<Arc<Cq>> {
        self.create_cq_in(cqe, notify, None, true)
    }

    /// A completion queue in memory that the front end provides, of [`QueueMemory::bytes_of_cq`].
    /// Its completions carry the time where they are `timed`.
    ///
    /// # Errors
    /// As [`Device::create_cq`].
    pub fn create_cq_in(
        &self,
        cqe: u32,
        notify: Option<Arc<dyn CqNotify>>,
        memory: Option<QueueMemory>,
        timed: bool,
    ) -> Result<Arc<Cq>> {
        self.alive()?;
        self.check_cq(cqe)?;
        Cq::new(&self.owner()?, cqe, notify, memory, timed)
    }

    /// A completion queue that keeps nothing: each completion goes to `sink` at once. [`Cq::poll`]
    /// finds none there.
    ///
    /// # Errors
    /// [`Error::Lost`] when the device is gone.
    pub fn create_cq_to(&self, sink: Arc<dyn CompletionSink>) -> Result<Arc<Cq>> {
        self.alive()?;
        Ok(Cq::handing_over(&self.owner()?, sink))
    }

    /// A shared receive queue, in `memory` of [`QueueMemory::bytes_of_srq`] if the front end
    /// provides it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a size is out of the device's limits, [`Error::NoMemory`] when the
    /// system has none for it.
    pub fn create_srq(
        &self,
        pd: &Arc<Pd>,
        attr: SrqAttr,
        kind: SrqKind,
        memory: Option<QueueMemory>,
    ) -> Result<Arc<Srq>> {
        self.alive()?;
        self.check_srq(&attr)?;
        if kind.cq().is_some_and(|cq| !cq.is_of(self)) {
            return Err(FOREIGN);
        }
        self.check_tags(&kind)?;
        let attr = SrqAttr { limit: 0, max_sge: attr.max_sge.max(1), ..attr };
        Srq::new(&self.adapter, &self.xrc, pd, attr, kind, memory, None)
    }

    /// A shared receive queue whose requests the front end keeps: `source` hands them out. Its
    /// limit is the front end's too.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the size of a matching list is out of limits.
    pub fn create_srq_over(
        &self,
        pd: &Arc<Pd>,
        kind: SrqKind,
        source: Arc<dyn SharedReceive>,
    ) -> Result<Arc<Srq>> {
        self.alive()?;
        self.check_tags(&kind)?;
        Srq::new(&self.adapter, &self.xrc, pd, SrqAttr::default(), kind, None, Some(source))
    }

    fn check_tags(&self, kind: &SrqKind) -> Result<()> {
        let SrqKind::TagMatching(_, cap) = kind else { return Ok(()) };
        let tags = (1..=self.attr().max_num_tags).contains(&cap.max_num_tags);
        if !tags || cap.max_ops > self.attr().max_tag_ops {
            return Err(Error::Invalid("size of the matching list out of range"));
        }
        Ok(())
    }

    /// An XRC domain.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is there and shall be new, EAGAIN when it is not and shall not be
    /// made.
    pub fn open_xrcd(&self, init: XrcdInit) -> Result<Arc<Xrcd>> {
        self.alive()?;
        self.xrc.open(init)
    }

    /// A queue pair in the RESET state.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a size is out of limits or an object belongs to another domain,
    /// [`Error::NoMemory`] when no number is free or the system has no memory for the queues,
    /// [`Error::System`] when an interface for raw packets is not to be had.
    pub fn create_qp(&self, pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Qp>> {
        self.alive()?;
        self.check_qp(&init)?;
        let owner = self.owner()?;
        let frame_port = match init.qp_type {
            QpType::RawPacket => Some(self.frames().port()?),
            _ => None,
        };
        let management = init.management;
        let mut table = self.qps.write();
        let place = table.free_place().ok_or(Error::NoMemory("all QP numbers are in use"))?;
        let number = self.qps.number_at(place);
        // The management queue pair has its appointments beside them.
        self.adapter.timers.set_aside(table.used() + 2)?;
        let qp = Qp::new(&owner, &self.xrc, number, pd, init, frame_port)?;
        table.insert(qp.clone());
        drop(table);
        if let Some(interface) = management {
            self.gsi.serve_by(interface, &qp);
        }
        Ok(qp)
    }

    /// Sets `count` queue pair numbers aside, one after the other, which no queue pair has or gets;
    /// gives the first.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when so many are not free beside each other.
    pub fn set_qp_numbers_aside(&self, count: usize) -> Result<u32> {
        self.alive()?;
        let mut table = self.qps.write();
        let first = table.set_aside(count).ok_or(Error::NoMemory("too few QP numbers are free"))?;
        Ok(self.qps.number_at(first))
    }

    /// Ends what [`Device::set_qp_numbers_aside`] did; other numbers stay as they are.
    pub fn give_qp_numbers_back(&self, first: u32, count: usize) {
        let mut table = self.qps.write();
        table.give_back(first, count);
    }

    /// An address handle.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a wrong port, GID index or missing GRH.
    pub fn create_ah(&self, pd: &Arc<Pd>, attr: &AhAttr) -> Result<Arc<AddressHandle>> {
        self.alive()?;
        AddressHandle::new(&self.adapter, pd, *attr)
    }

    /// Whether the device can make a completion queue of `cqe` entries.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the size is out of the device's limits.
    pub fn check_cq(&self, cqe: u32) -> Result<()> {
        if cqe == 0 || cqe > self.attr().max_cqe {
            return Err(Error::Invalid("completion queue size out of range"));
        }
        Ok(())
    }

    /// Whether the device can make a shared receive queue like this.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a size is out of the device's limits.
    pub fn check_srq(&self, attr: &SrqAttr) -> Result<()> {
        if attr.max_wr == 0 || attr.max_wr > self.attr().max_srq_wr {
            return Err(Error::Invalid("size of the shared receive queue out of range"));
        }
        if attr.max_sge > self.attr().max_srq_sge {
            return Err(Error::Invalid("too many scatter entries"));
        }
        Ok(())
    }

    /// Whether the device can make a QP like this.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a size is out of the device's limits or the service does not go with
    /// it.
    pub fn check_qp(&self, init: &QpInit) -> Result<()> {
        let foreign = init.cqs().any(|cq| !cq.is_of(self))
            || init.srq.as_ref().is_some_and(|srq| !srq.is_of(&self.adapter))
            || init.xrcd.as_ref().is_some_and(|xrcd| !xrcd.is_of(&self.xrc));
        if foreign {
            return Err(FOREIGN);
        }
        let cap = init.cap;
        if cap.max_send_wr > self.attr().max_qp_wr
            || cap.max_recv_wr > self.attr().max_qp_wr
            || cap.max_send_sge > self.attr().max_sge
            || cap.max_recv_sge > self.attr().max_sge
            || cap.max_inline_data > self.attr().max_inline_data
        {
            return Err(Error::Invalid("a queue size is above the device's limit"));
        }
        if init.management.is_some() && init.qp_type != QpType::Ud {
            return Err(Error::Invalid("QP 0 and QP 1 are of datagrams"));
        }
        if init.srq.is_some() && init.receives.is_some() {
            return Err(Error::Invalid("a queue pair receives from one queue"));
        }
        if init.srq.is_some() && init.qp_type == QpType::Uc {
            return Err(Error::Invalid("UC does not receive from a shared queue"));
        }
        if init.qp_type != QpType::Rc && init.srq.as_ref().is_some_and(|srq| srq.matches_tags()) {
            return Err(Error::Invalid("only RC receives from a queue that matches tags"));
        }
        Ok(())
    }
}
