//! Peer-Direct: `ibv_reg_mr` of a GPU's pointer, by a module that knows the GPU.

use super::Pair;
use crate::conditions::{carries, rdma_device, unencrypted};
use crate::exporter::{self, Maker};
use crate::{Condition, ConditionState};

impl Pair<'_> {
    pub(super) fn peer_direct(&self) -> Vec<Condition> {
        vec![
            rdma_device(self.facts, self.nic),
            unencrypted(self.facts, self.nic, true),
            self.peer_core(),
            self.peer_client(),
            self.lockable(),
            exporter::shown_by_bar(self.gpu),
            carries(self.machine, self.gpu, self.nic),
        ]
    }

    fn peer_core(&self) -> Condition {
        let (state, evidence) = match (&self.facts.memory_peers, self.facts.sysfs) {
            (Some(_), _) => (ConditionState::Holds, "/sys/kernel/mm/memory_peers exists"),
            (None, true) => (ConditionState::Fails, "/sys/kernel/mm/memory_peers is absent"),
            (None, false) => (ConditionState::Unknown, "the source does not tell"),
        };
        Condition::new(
            "the kernel's RDMA core takes peer memory clients (no released kernel does)",
            state,
            evidence,
            "install NVIDIA's DOCA-OFED, whose RDMA core does; or use dma-buf, which needs no \
             patch",
        )
    }

    fn peer_client(&self) -> Condition {
        let what = "a peer memory client knows the GPU";
        let version = self.facts.peermem.as_ref();
        let loaded = version.map(|_| true).or_else(|| self.facts.module("nvidia_peermem"));
        let loaded_as = version.map_or_else(String::new, |version| format!(" {version}"));
        let clients = self.facts.memory_peers.as_deref().unwrap_or_default();
        let evidence = match clients {
            [] => "no client in /sys/kernel/mm/memory_peers".to_owned(),
            clients => format!("/sys/kernel/mm/memory_peers: {}", clients.join(", ")),
        };
        if exporter::maker(self.gpu) != Maker::Nvidia {
            let state = if clients.is_empty() && self.facts.sysfs {
                ConditionState::Fails
            } else {
                ConditionState::Unknown
            };
            return Condition::new(
                what,
                state,
                evidence,
                "use dma-buf: this GPU's maker has no client of its own any more",
            );
        }
        if clients.iter().any(|client| client.starts_with("nv_mem")) {
            return Condition::new(what, ConditionState::Holds, evidence, "");
        }
        match loaded {
            Some(true) => Condition::new(
                what,
                ConditionState::Fails,
                format!(
                    "{evidence}, though nvidia_peermem{loaded_as} is loaded: it was built without \
                     the peer symbols"
                ),
                "install DOCA-OFED first, then rebuild the NVIDIA modules against it",
            ),
            Some(false) => Condition::new(
                what,
                ConditionState::Fails,
                format!("{evidence}; nvidia_peermem is not loaded"),
                "modprobe nvidia-peermem",
            ),
            None => Condition::new(
                what,
                ConditionState::Unknown,
                "/proc/modules could not be read",
                "modprobe nvidia-peermem",
            ),
        }
    }

    /// The memory counts as locked before any peer is asked.
    fn lockable(&self) -> Condition {
        let (state, evidence) = match self.facts.locked_bytes {
            Some(None) => (ConditionState::Holds, "no limit".to_owned()),
            Some(Some(bytes)) => {
                (ConditionState::Unknown, format!("RLIMIT_MEMLOCK {} KiB", bytes >> 10))
            }
            None => (ConditionState::Unknown, "/proc/self/limits could not be read".to_owned()),
        };
        Condition::new(
            "the user may lock as much memory as it registers",
            state,
            evidence,
            "ulimit -l unlimited (in /etc/security/limits.conf, LimitMEMLOCK= of the unit, \
             --ulimit memlock=-1 of the container)",
        )
    }
}
