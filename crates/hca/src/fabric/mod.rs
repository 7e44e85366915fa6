//! What a port is on: the host's interfaces, an InfiniBand subnet or an Ethernet; and the
//! management datagrams and groups that belong to it.

pub(crate) mod gsi;
pub(crate) mod lan;
pub(crate) mod management;
pub(crate) mod membership;
pub mod multicast;
pub mod subnet;

use crate::fabric::lan::EthernetPort;
use crate::fabric::management::Management;

/// The network of a device's port, with what only a port there has.
pub enum Fabric<'a> {
    /// Interfaces of the host.
    Host,
    /// An InfiniBand subnet.
    Subnet(Management<'a>),
    /// An Ethernet.
    Ethernet(EthernetPort<'a>),
}
