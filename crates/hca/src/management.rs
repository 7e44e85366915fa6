//! Management of an InfiniBand subnet ([`crate::Network::Subnet`]): which datagrams are for its manager, and the way to answer.
//!
//! What comes for the manager's LID, and what is asked of the port itself at QP 0, a [`ManagementSink`] takes; answers to what a
//! front end's queue pair asked go to that.

use crate::device::Device;
use crate::gsi::{ManagementInterface, QKEY};
use crate::membership::Memberships;
use crate::subnet::{MANAGER_LID, address_of_lid, lid_of_address, manager_of};
use link::{Datagram, Path};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use transport::{Error, Result};
use wire::mad::MAD_LEN;
use wire::{Operation, Service};

/// In a MAD's method: it answers (IBA 13.4.5).
const RESPONSE: u8 = 0x80;
const METHOD: usize = 3;

/// A MAD that a port's manager takes.
#[derive(Clone, Debug)]
pub struct ManagementDatagram {
    /// Where it arrived.
    pub interface: ManagementInterface,
    /// Whether it is for the subnet's manager; else it is for the port.
    pub to_manager: bool,
    /// LID of the port that sent it.
    pub source: u16,
    /// The datagram.
    pub mad: [u8; MAD_LEN],
}

/// Takes what is not for queue pairs. Called within a turn of progress: it must not wait, nor call what waits for a turn.
pub trait ManagementSink: Send + Sync {
    /// A MAD arrived.
    fn mad(&self, mad: ManagementDatagram);
    /// A multicast packet came from a port whose GUID is not known; [`Device::subnet_ports`] finds out. The packet is lost.
    fn stranger(&self);
}

/// What only a port of a subnet has.
#[derive(Default)]
pub(crate) struct Subnet {
    pub(crate) sink: OnceLock<Arc<dyn ManagementSink>>,
    pub(crate) memberships: Memberships,
}

impl Device {
    pub(crate) fn on_subnet(&self) -> Result<&Subnet> {
        self.subnet.as_ref().ok_or(Error::Invalid("the port is on no InfiniBand subnet"))
    }

    /// Who manages the subnet for this port. The first call decides.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network.
    pub fn set_management_sink(&self, sink: Arc<dyn ManagementSink>) -> Result<()> {
        let _ = self.on_subnet()?.sink.set(sink);
        Ok(())
    }

    /// Takes a datagram for QP 0 or 1 that no queue pair shall see; says whether it was one.
    pub(crate) fn take_management(
        &self,
        interface: ManagementInterface,
        datagram: &Datagram<'_>,
    ) -> bool {
        let Some(sink) = self.subnet.as_ref().and_then(|subnet| subnet.sink.get()) else {
            return false;
        };
        let opcode = datagram.headers.bth.opcode;
        let fits = opcode.service == Service::Ud && opcode.operation == Operation::Send;
        let keyed = interface == ManagementInterface::Subnet
            || datagram.headers.deth.is_some_and(|deth| deth.qkey == QKEY);
        let to_manager = datagram.dst == IpAddr::V4(manager_of(self.slot()));
        let Ok(mad) = <&[u8; MAD_LEN]>::try_from(datagram.payload) else { return to_manager };
        let asks = interface == ManagementInterface::Subnet && mad[METHOD] & RESPONSE == 0;
        if !to_manager && !asks {
            return false;
        }
        if let Some(source) = lid_of_address(datagram.src)
            && fits
            && keyed
        {
            sink.mad(ManagementDatagram { interface, to_manager, source, mad: *mad });
        }
        true
    }

    /// Sends an answer of the manager's, or of this port's, to the interface of the port at `lid`. It is as unreliable as any
    /// datagram.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network, [`Error::System`] when there is no source port, [`Error::Lost`] when the device
    /// is gone.
    pub fn answer_management(
        &self,
        from_manager: bool,
        interface: ManagementInterface,
        lid: u16,
        mad: &[u8; MAD_LEN],
    ) -> Result<()> {
        let from = if from_manager { MANAGER_LID } else { self.slot() };
        self.send_in_subnet(interface, address_of_lid(from), address_of_lid(lid), mad)
    }

    /// Tells the manager of the port at `lid` something.
    ///
    /// # Errors
    /// As [`Device::answer_management`].
    pub fn tell_manager_of(&self, lid: u16, mad: &[u8; MAD_LEN]) -> Result<()> {
        let own = address_of_lid(self.slot());
        self.send_in_subnet(ManagementInterface::GeneralServices, own, manager_of(lid), mad)
    }

    fn send_in_subnet(
        &self,
        interface: ManagementInterface,
        src: std::net::Ipv4Addr,
        dst: std::net::Ipv4Addr,
        mad: &[u8; MAD_LEN],
    ) -> Result<()> {
        self.alive()?;
        self.on_subnet()?;
        let path = Path {
            src: src.into(),
            dst: dst.into(),
            scope_id: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            ethernet: None,
        };
        self.send_mad_by(interface, path, mad)
    }
}
