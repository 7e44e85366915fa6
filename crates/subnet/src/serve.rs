//! The thread that asks and answers: a device's turns of progress must not wait for the registry, as it does.

use crate::Mad;
use crate::administrator::Administrator;
use crate::bytes::{header, method, put};
use crate::view::{Groups, Refused, View};
use hca::{Device, ManagementDatagram, ManagementInterface, ManagementSink, Membership};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};

const STACK_BYTES: usize = 256 << 10;
/// Datagrams that wait; more are lost, as datagrams may be.
const WAITING: usize = 256;

/// Wakes the thread for a datagram, or because somebody is there whom nobody knows.
struct Sink(SyncSender<Option<ManagementDatagram>>);

impl ManagementSink for Sink {
    fn mad(&self, mad: ManagementDatagram) {
        let _ = self.0.try_send(Some(mad));
    }

    fn stranger(&self) {
        let _ = self.0.try_send(None);
    }
}

/// Manages the subnet for the port of `device`, and tells the other ports' managers of it. Ends with the device.
///
/// # Errors
/// The device is on no InfiniBand subnet, or there is no thread to be had.
pub fn serve(device: &Arc<Device>) -> io::Result<()> {
    let (sender, events) = sync_channel(WAITING);
    device.set_management_sink(Arc::new(Sink(sender))).map_err(io::Error::other)?;
    let device = Arc::downgrade(device);
    engine_thread::spawn(c"peerdma-subnet", STACK_BYTES, move || run(&device, &events))?;
    Ok(())
}

fn run(device: &Weak<Device>, events: &Receiver<Option<ManagementDatagram>>) {
    if let Some(device) = device.upgrade() {
        announce(&device);
    }
    let mut administrator = Administrator::default();
    // The sender is the device's.
    while let Ok(arrived) = events.recv() {
        let Some(device) = device.upgrade() else { return };
        let Ok(ports) = device.subnet_ports() else { continue };
        let Some(arrived) = arrived else { continue };
        let view = View { own: device.slot(), ports };
        let answers = match arrived.interface {
            ManagementInterface::Subnet => {
                let answer = view.answer_smp(arrived.source, arrived.to_manager, &arrived.mad);
                answer.into_iter().collect()
            }
            ManagementInterface::GeneralServices => {
                let mut groups = &*device;
                administrator.hear(&view, &mut groups, arrived.source, &arrived.mad)
            }
        };
        for answer in answers {
            let ManagementDatagram { interface, to_manager, source, .. } = arrived;
            // Who asked asks again.
            let _ = device.answer_management(to_manager, interface, source, &answer);
        }
    }
}

/// Tells every other port's manager that this port is there: a report of the subnet's, whose only use is that they look.
fn announce(device: &Device) {
    const NOTICE: u16 = 0x02;
    let mut report: Mad = [0; 256];
    put(&mut report, 0, &[1, 0x03, 2, method::REPORT]);
    put(&mut report, header::ATTRIBUTE, &NOTICE.to_be_bytes());
    let ports = device.subnet_ports().unwrap_or_default();
    for port in ports.iter().filter(|port| port.lid != device.slot()) {
        let _ = device.tell_manager_of(port.lid, &report);
    }
}

impl Groups for &Device {
    fn join(&mut self, membership: Membership) -> Result<(), Refused> {
        self.join_group(membership).map_err(|_| Refused)
    }

    fn leave(&mut self, mgid: [u8; 16]) {
        let _ = self.leave_group(mgid);
    }
}
