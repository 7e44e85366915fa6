//! What commands, doorbells and requests work on: the HCA, the machine, and all objects.

use crate::keys::memic::Memic;
use crate::machine::budget::Budget;
use crate::machine::bus::Bus;
use crate::machine::report::Reports;
use crate::object::eq::Eqs;
use crate::object::objects::Objects;
use crate::object::page_fault::{self, Faults};
use crate::object::port::Port;
use crate::object::queue_memory::QueueMemory;
use hca::{Device, Fabric, PdId};
use std::sync::Arc;

/// What commands and doorbells work on.
pub(crate) struct Shared {
    pub(crate) hca: Arc<Device>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) eqs: Arc<Eqs>,
    pub(crate) objects: Objects,
    pub(crate) memic: Memic,
    pub(crate) faults: Arc<Faults>,
    pub(crate) port: Port,
    pub(crate) reports: Arc<Reports>,
    /// A domain that no object is in.
    pub(crate) no_pd: PdId,
    /// What the guest may make us remember.
    pub(crate) budget: Arc<Budget>,
}

impl Shared {
    /// Where commands find the queues that they name.
    pub(crate) fn queue_memory(&self) -> QueueMemory<'_> {
        QueueMemory::new(&*self.bus, &self.objects.user_memories)
    }

    /// Ends everything that commands made. When it returns nothing of that reaches the machine's
    /// memory any more.
    pub(crate) fn end_all(&self) {
        self.port.reset();
        self.eqs.clear();
        self.objects.clear(&self.hca);
        self.memic.reset();
        if let Fabric::Subnet(management) = self.hca.network() {
            management.leave_groups();
        }
        page_fault::ended(&self.hca, self.faults.clear());
    }
}

/// Whether the function is a network card, with RoCE, and no InfiniBand adapter.
pub(crate) fn is_on_ethernet(hca: &Device) -> bool {
    match hca.network() {
        Fabric::Ethernet(_) => true,
        Fabric::Host | Fabric::Subnet(_) => false,
    }
}
