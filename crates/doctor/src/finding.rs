//! What the doctor says.

use pcie::Address;
use std::fmt;

/// A way to let a network adapter reach a GPU's memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mechanism {
    /// `ibv_reg_mr` on a GPU pointer, by a module that knows the GPU (nvidia-peermem).
    PeerDirect,
    /// `ibv_reg_dmabuf_mr` where the buffer stays where it is.
    PinnedDmaBuf,
    /// `ibv_reg_dmabuf_mr` where the buffer may move.
    DynamicDmaBuf,
    /// `mlx5dv_reg_dmabuf_mr` through the side DMA engine of a ConnectX-8.
    DataDirect,
    /// On-demand paging that reaches the GPU's pages in place.
    DevicePrivate,
    /// Address translation by the adapter itself.
    Ats,
    /// The software HCA of this project.
    SoftwareHca,
}

impl Mechanism {
    /// All, in the order of a report.
    pub const ALL: [Mechanism; 7] = [
        Mechanism::PeerDirect,
        Mechanism::PinnedDmaBuf,
        Mechanism::DynamicDmaBuf,
        Mechanism::DataDirect,
        Mechanism::DevicePrivate,
        Mechanism::Ats,
        Mechanism::SoftwareHca,
    ];

    /// A short name that does not change.
    pub fn id(self) -> &'static str {
        match self {
            Mechanism::PeerDirect => "peer-direct",
            Mechanism::PinnedDmaBuf => "dma-buf-pinned",
            Mechanism::DynamicDmaBuf => "dma-buf-dynamic",
            Mechanism::DataDirect => "data-direct",
            Mechanism::DevicePrivate => "device-private",
            Mechanism::Ats => "ats",
            Mechanism::SoftwareHca => "software-hca",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mechanism::PeerDirect => "Peer-Direct",
            Mechanism::PinnedDmaBuf => "dma-buf, pinned",
            Mechanism::DynamicDmaBuf => "dma-buf, dynamic",
            Mechanism::DataDirect => "Data Direct",
            Mechanism::DevicePrivate => "device-private peer-to-peer",
            Mechanism::Ats => "ATS",
            Mechanism::SoftwareHca => "software HCA",
        })
    }
}

/// Whether a condition holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ConditionState {
    /// It holds.
    Holds,
    /// It could not be read.
    Unknown,
    /// It does not hold.
    Fails,
}

impl ConditionState {
    /// What is known to be so, known not to be, or not known.
    pub(crate) fn of(known: Option<bool>) -> ConditionState {
        match known {
            Some(true) => ConditionState::Holds,
            Some(false) => ConditionState::Fails,
            None => ConditionState::Unknown,
        }
    }
}

/// One condition of a mechanism.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// What must be so.
    pub what: String,
    /// Whether it is.
    pub state: ConditionState,
    /// The file or register that tells, and its value.
    pub evidence: String,
    /// What to do where it does not hold or is not known; else empty.
    pub remedy: String,
}

impl Condition {
    /// A condition; `remedy` is dropped where it holds.
    pub(crate) fn new(
        what: impl Into<String>,
        state: ConditionState,
        evidence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Condition {
        let remedy = if state == ConditionState::Holds { String::new() } else { remedy.into() };
        let evidence = topology::printable(&evidence.into());
        Condition { what: what.into(), state, evidence, remedy: topology::printable(&remedy) }
    }
}

/// What follows from the conditions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// All hold.
    Works,
    /// None fails, and some could not be read.
    Unknown,
    /// One fails.
    DoesNot,
}

/// What is said of a mechanism, for a pair of devices or for the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// GPU and adapter; `None` for the host as a whole.
    pub pair: Option<(Address, Address)>,
    /// The conditions in the order in which they are met.
    pub conditions: Vec<Condition>,
}

impl Finding {
    /// What follows from the conditions.
    pub fn outcome(&self) -> Outcome {
        match self.conditions.iter().map(|condition| condition.state).max() {
            Some(ConditionState::Fails) => Outcome::DoesNot,
            Some(ConditionState::Unknown) => Outcome::Unknown,
            _ => Outcome::Works,
        }
    }

    /// The condition that decides: the first that fails, else the first that is unknown.
    pub fn decisive(&self) -> Option<&Condition> {
        let first = |state| self.conditions.iter().find(|condition| condition.state == state);
        first(ConditionState::Fails).or_else(|| first(ConditionState::Unknown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_outweighs_what_is_unknown() {
        let finding = |states: &[ConditionState]| Finding {
            mechanism: Mechanism::Ats,
            pair: None,
            conditions: states
                .iter()
                .map(|&s| Condition::new(format!("{s:?}"), s, "", "do"))
                .collect(),
        };
        use ConditionState::*;
        assert_eq!(finding(&[]).outcome(), Outcome::Works);
        assert_eq!(finding(&[Holds, Holds]).outcome(), Outcome::Works);
        assert_eq!(finding(&[Holds, Unknown]).outcome(), Outcome::Unknown);
        let mixed = finding(&[Unknown, Fails, Fails]);
        assert_eq!(mixed.outcome(), Outcome::DoesNot);
        assert_eq!(mixed.decisive().unwrap().what, "Fails");
        assert!(finding(&[Holds]).conditions[0].remedy.is_empty());
    }
}
