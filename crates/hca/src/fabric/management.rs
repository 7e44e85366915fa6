//! Management of an InfiniBand subnet ([`crate::Network::Subnet`]): which datagrams are for its
//! manager, and the way to answer.
//!
//! What comes for the manager's LID, and what is asked of the port itself at QP 0, a
//! [`ManagementSink`] takes; answers to what a front end's queue pair asked go to that.

use crate::adapter::Adapter;
use crate::adapter::management::{
    GSI_QKEY, ManagementDatagram, ManagementInterface, ManagementSink,
};
use crate::adapter::network::Subnet;
use crate::fabric::gsi::Gsi;
use crate::fabric::subnet::{MANAGER_LID, address_of_lid, lid_of_address, manager_of};
use link::{Datagram, Path};
use std::net::IpAddr;
use std::sync::Arc;
use transport::Result;
use wire::mad::{MAD_LEN, field, method};
use wire::{Operation, Service};

/// The port of a device on a subnet: see [`Device::management`](crate::Device::management).
pub struct Management<'a> {
    pub(crate) adapter: &'a Adapter,
    pub(crate) subnet: &'a Subnet,
    pub(crate) gsi: &'a Gsi,
}

impl Management<'_> {
    /// Who manages the subnet for this port. The first call decides.
    pub fn set_sink(&self, sink: Arc<dyn ManagementSink>) {
        let _ = self.subnet.sink.set(sink);
    }

    /// Takes a datagram for QP 0 or 1 that no queue pair shall see; says whether it was one.
    pub(crate) fn take(&self, interface: ManagementInterface, datagram: &Datagram<'_>) -> bool {
        let Some(sink) = self.subnet.sink.get() else { return false };
        let opcode = datagram.headers.bth.opcode;
        let fits = opcode.service == Service::Ud && opcode.operation == Operation::Send;
        let keyed = interface == ManagementInterface::Subnet
            || datagram.headers.deth.is_some_and(|deth| deth.qkey == GSI_QKEY);
        let to_manager = datagram.dst == IpAddr::V4(manager_of(self.adapter.slot()));
        let Ok(mad) = <&[u8; MAD_LEN]>::try_from(datagram.payload) else { return to_manager };
        let asks =
            interface == ManagementInterface::Subnet && mad[field::METHOD] & method::RESPONSE == 0;
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

    /// Sends an answer of the manager's, or of this port's, to the interface of the port at `lid`.
    /// It is as unreliable as any datagram.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) when there is no source port,
    /// [`Error::Lost`](crate::Error::Lost) when the device is gone.
    pub fn answer(
        &self,
        from_manager: bool,
        interface: ManagementInterface,
        lid: u16,
        mad: &[u8; MAD_LEN],
    ) -> Result<()> {
        let from = if from_manager { MANAGER_LID } else { self.adapter.slot() };
        self.send_in_subnet(interface, address_of_lid(from), address_of_lid(lid), mad)
    }

    /// Tells the manager of the port at `lid` something.
    ///
    /// # Errors
    /// As [`Management::answer`].
    pub fn tell_manager_of(&self, lid: u16, mad: &[u8; MAD_LEN]) -> Result<()> {
        let own = address_of_lid(self.adapter.slot());
        self.send_in_subnet(ManagementInterface::GeneralServices, own, manager_of(lid), mad)
    }

    fn send_in_subnet(
        &self,
        interface: ManagementInterface,
        src: std::net::Ipv4Addr,
        dst: std::net::Ipv4Addr,
        mad: &[u8; MAD_LEN],
    ) -> Result<()> {
        self.adapter.alive()?;
        let path = Path {
            src: src.into(),
            dst: dst.into(),
            scope_id: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            ethernet: None,
        };
        self.gsi.send(self.adapter, interface, path, mad)
    }
}
