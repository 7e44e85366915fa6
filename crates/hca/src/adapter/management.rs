//! Queue pairs 0 and 1 as the whole device knows them: their numbers and keys, and who takes what
//! is for the manager of an InfiniBand subnet.

use wire::mad::MAD_LEN;

/// Number of QP 1, the general services interface.
pub(crate) const GSI_QPN: u32 = 1;
/// Well-known Q_Key of QP 1 (IBA 10.2.5).
pub(crate) const GSI_QKEY: u32 = 0x8001_0000;

/// A queue pair that has the same number on every port (IBA 3.9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ManagementInterface {
    /// QP 0.
    Subnet,
    /// QP 1.
    GeneralServices,
}

impl ManagementInterface {
    /// Number of its queue pair.
    pub fn qpn(self) -> u32 {
        self as u32
    }

    /// The one with this number.
    pub(crate) fn of(qpn: u32) -> Option<ManagementInterface> {
        [ManagementInterface::Subnet, ManagementInterface::GeneralServices]
            .into_iter()
            .find(|interface| interface.qpn() == qpn)
    }

    /// Q_Key of what is sent there. QP 0 knows none.
    pub(crate) fn qkey(self) -> u32 {
        match self {
            ManagementInterface::Subnet => 0,
            ManagementInterface::GeneralServices => GSI_QKEY,
        }
    }
}

/// A MAD that a port's manager takes.
#[derive(Clone, Debug)]
pub struct ManagementDatagram {
    /// The interface at which it arrived.
    pub interface: ManagementInterface,
    /// Whether it is for the subnet's manager; else it is for the port.
    pub to_manager: bool,
    /// LID of the port that sent it.
    pub source: u16,
    /// The datagram.
    pub mad: [u8; MAD_LEN],
}

/// Takes what is not for queue pairs. Called within a turn of progress: it must not wait, nor call
/// what waits for a turn.
pub trait ManagementSink: Send + Sync {
    /// A MAD arrived.
    fn mad(&self, mad: ManagementDatagram);
    /// A multicast packet came from a port whose GUID is not known; [`crate::Management::ports`]
    /// finds out. The packet is lost.
    fn stranger(&self);
}
