//! The function as PCI shows it, for the server of the vfio-user protocol.

use crate::function::connectx::{BAR_LEN, ConnectX, MSIX_PENDING, MSIX_TABLE, VECTORS};
use crate::layout::identity::{DEVICE, VENDOR};
use crate::machine::bus::{Bus, Dma};
use crate::object::shared::is_on_ethernet;
use pcie::Route;
use std::sync::Arc;
use vfio_user::{Bar, BarKind, Description, Function, Host, Msix, PciIdentity};

/// The registers of the firmware's gateway to its address spaces, which are not there: control,
/// counter, semaphore, address, data. Its driver finds that no space is supported, as the control
/// register's status stays 0.
const GATEWAY_REGISTERS: u8 = 20;
/// Ethernet controller, and InfiniBand controller.
const CLASS_ETHERNET: u32 = 0x02_0000;
const CLASS_INFINIBAND: u32 = 0x02_0700;

/// The function's place in a virtual machine, and that of its Data Direct function.
#[derive(Clone, Debug)]
pub struct Slots {
    /// The host that the function is served with, and the way of its bytes.
    pub own: (Host, Arc<Route>),
    /// Those of the Data Direct function.
    pub data_direct: Option<(Host, Arc<Route>)>,
}

impl Bus for Slots {
    fn dma(&self) -> Dma {
        dma(&self.own)
    }

    fn data_direct(&self) -> Option<Dma> {
        self.data_direct.as_ref().map(dma)
    }

    fn by_messages(&self) -> bool {
        let hosts = [Some(&self.own), self.data_direct.as_ref()];
        hosts.into_iter().flatten().any(|(host, _)| host.writes_by_messages())
    }

    fn interrupt(&self, vector: u16) {
        self.own.0.interrupt(vector);
    }
}

fn dma((host, route): &(Host, Arc<Route>)) -> Dma {
    Dma { memory: host.memory(), route: route.clone() }
}

impl Function for ConnectX {
    fn description(&self) -> Description {
        let kind = BarKind::Memory64 { prefetchable: true };
        let on_ethernet = is_on_ethernet(&self.shared.hca);
        let bar = Bar { size: BAR_LEN, kind, memory: None };
        Description {
            identity: PciIdentity {
                vendor: VENDOR,
                device: DEVICE,
                subsystem_vendor: VENDOR,
                subsystem: 0x0001,
                revision: 0,
                class: if on_ethernet { CLASS_ETHERNET } else { CLASS_INFINIBAND },
            },
            bars: [Some(bar), None, None, None, None, None],
            msix: Some(Msix { vectors: VECTORS, bar: 0, table: MSIX_TABLE, pending: MSIX_PENDING }),
            vendor_registers: GATEWAY_REGISTERS,
            serial: Some(self.guid()),
            ..Description::default()
        }
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        if bar == 0 {
            self.read(offset, data);
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        if bar == 0 {
            self.write(offset, data);
        }
    }

    fn takes_time(&self, bar: u8, offset: u64) -> bool {
        bar == 0 && ConnectX::is_doorbell(offset) && self.shared.bus.by_messages()
    }

    fn reset(&self) {
        ConnectX::reset(self);
    }
}
