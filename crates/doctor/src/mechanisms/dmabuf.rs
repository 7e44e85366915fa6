//! dma-buf: `ibv_reg_dmabuf_mr`, of a buffer that stays and of one that may move.

use super::Pair;
use crate::conditions::{
    configured, core_registers, has, imports, pages_on_demand, rdma_device, reaches, release,
    setting, unencrypted,
};
use crate::exporter::{self, Maker};
use crate::importer::{self, Mode};
use crate::{Condition, ConditionState, Version};

impl Pair<'_> {
    pub(super) fn pinned(&self) -> Vec<Condition> {
        let mut conditions = core_registers(self.facts, self.nic);
        conditions.extend([
            rdma_device(self.facts, self.nic),
            unencrypted(self.facts, self.nic, false),
            imports(self.facts, self.nic),
            exporter::exports_pinned(self.facts, self.gpu),
        ]);
        conditions.extend(self.peer_memory());
        conditions.extend(self.fences());
        self.proven(conditions)
    }

    pub(super) fn dynamic(&self) -> Vec<Condition> {
        let mut conditions = core_registers(self.facts, self.nic);
        conditions.extend([
            rdma_device(self.facts, self.nic),
            unencrypted(self.facts, self.nic, false),
            self.imports_dynamic(),
            configured(self.facts, "INFINIBAND_ON_DEMAND_PAGING"),
            pages_on_demand(self.facts, self.nic),
        ]);
        match self.gpu.driver.as_deref() {
            Some("vfio-pci") => conditions.extend(exporter::vfio_exports(self.facts, self.nic)),
            _ => conditions.push(exporter::moves(self.facts, self.gpu)),
        }
        // from 7.1 on there is no such setting
        if has(self.facts, Version(7, 1), Version(7, 1)) != ConditionState::Holds {
            conditions.push(configured(self.facts, "DMABUF_MOVE_NOTIFY"));
        }
        conditions.push(self.fault_is_served());
        conditions.extend(self.peer_memory());
        conditions
    }

    /// What lets an exporter answer with device memory instead of the host's.
    fn peer_memory(&self) -> Vec<Condition> {
        let mut conditions = Vec::new();
        // NVIDIA's driver judges for itself
        if exporter::maker(self.gpu) != Maker::Nvidia {
            conditions.push(configured(self.facts, "PCI_P2PDMA"));
        }
        conditions.push(exporter::shown_by_bar(self.gpu));
        conditions.push(reaches(self.facts, self.machine, self.gpu, self.nic));
        conditions
    }

    /// How a program learns that the GPU is done with a buffer; one that asks the GPU's own library
    /// needs it not.
    fn fences(&self) -> Option<Condition> {
        let what =
            "fences of a buffer for programs that ask for them (DMA_BUF_IOCTL_EXPORT_SYNC_FILE)";
        Some(Condition::new(what, ConditionState::Holds, setting(self.facts, "SYNC_FILE")?, ""))
    }

    /// What a buffer that was registered proves is not in doubt; one that was not is the answer.
    fn proven(&self, mut conditions: Vec<Condition>) -> Vec<Condition> {
        let what = "a buffer of this GPU was registered with this adapter";
        match self.facts.registered(self.gpu, self.nic) {
            None => conditions.extend(self.unexported()),
            Some(Ok(bytes)) => {
                for condition in
                    conditions.iter_mut().filter(|c| c.state == ConditionState::Unknown)
                {
                    condition.state = ConditionState::Holds;
                    condition.remedy.clear();
                }
                let evidence = format!("`ibv_reg_dmabuf_mr` took {bytes} bytes");
                conditions.push(Condition::new(what, ConditionState::Holds, evidence, ""));
            }
            Some(Err(why)) => {
                let remedy =
                    "the conditions above that do not hold, or are not known, are where to look";
                conditions.push(Condition::new(what, ConditionState::Fails, why.clone(), remedy));
            }
        }
        conditions
    }

    /// Why a buffer was asked for and none came.
    fn unexported(&self) -> Option<Condition> {
        let way = if exporter::maker(self.gpu) == Maker::Nvidia { "cuda" } else { "drm" };
        let said = self.facts.unexported.iter().filter(|(name, _)| name == way);
        let said: Vec<&str> = said.map(|(_, why)| why.as_str()).collect();
        let remedy = "the conditions above that do not hold, or are not known, are where to look";
        let condition = || {
            let what = "a buffer of this GPU was exported to be registered";
            Condition::new(
                what,
                ConditionState::Unknown,
                format!("{way}: {}", said.join("; ")),
                remedy,
            )
        };
        (!said.is_empty()).then(condition)
    }

    /// Before 7.2 the driver made the queue of faults only for a process with an on-demand region.
    fn fault_is_served(&self) -> Condition {
        let state = match has(self.facts, Version(7, 2), Version(5, 12)) {
            ConditionState::Fails => ConditionState::Unknown,
            state => state,
        };
        Condition::new(
            "a fault after a move is served (kernel 7.2)",
            state,
            release(self.facts),
            "register one on-demand region in the process first (IBV_ACCESS_ON_DEMAND), or use 7.2 \
             or later",
        )
    }

    fn imports_dynamic(&self) -> Condition {
        let what = "the adapter's driver lets a registered buffer move (mlx5 does)";
        match importer::of(self.nic) {
            Some(driver) if driver.mode == Mode::Dynamic => {
                Condition::new(what, ConditionState::Holds, format!("driver {}", driver.driver), "")
            }
            Some(driver) => Condition::new(
                what,
                ConditionState::Fails,
                format!("driver {} pins or takes none", driver.driver),
                "use the pinned way, or a ConnectX",
            ),
            None => Condition::new(
                what,
                ConditionState::Unknown,
                "driver unknown",
                "run the doctor on the host",
            ),
        }
    }
}
