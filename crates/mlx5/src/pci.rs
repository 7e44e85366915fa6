//! The function as PCI shows it, for the server of the vfio-user protocol.

use crate::bus::Bus;
use crate::function::{BAR_LEN, ConnectX, DEVICE, MSIX_PENDING, MSIX_TABLE, VECTORS, VENDOR};
use std::sync::Arc;
use umem::DmaSpace;
use vfio_user::{Bar, BarKind, Description, Function, Host, Msix, PciIdentity};

/// Of the firmware's gateway to its address spaces, of which we have none: control, counter, semaphore, address, data.
/// Its driver finds that no space is supported, as the control register's status stays 0.
const GATEWAY_REGISTERS: u8 = 20;
/// Infiniband controller.
const CLASS_INFINIBAND: u32 = 0x02_0700;

impl Bus for Host {
    fn memory(&self) -> Arc<dyn DmaSpace> {
        Host::memory(self)
    }

    fn interrupt(&self, vector: u16) {
        Host::interrupt(self, vector);
    }
}

impl Function for ConnectX {
    fn description(&self) -> Description {
        let kind = BarKind::Memory64 { prefetchable: true };
        let bar = Bar { size: BAR_LEN, kind, memory: None };
        Description {
            identity: PciIdentity {
                vendor: VENDOR,
                device: DEVICE,
                subsystem_vendor: VENDOR,
                subsystem: 0x0001,
                revision: 0,
                class: CLASS_INFINIBAND,
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

    fn reset(&self) {
        ConnectX::reset(self);
    }
}
