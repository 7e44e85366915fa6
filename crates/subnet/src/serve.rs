//! The thread that asks and answers: a device's turns of progress must not wait for the registry,
//! as it does.

use crate::Mad;
use crate::administrator::{Administrator, asks_to_join};
use crate::view::{Groups, Refused, View};
use hca::{
    Device, Fabric, Management, ManagementDatagram, ManagementInterface, ManagementSink, Membership,
};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Instant;
use wire::mad::{Header, class, method, sa};

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

/// Manages the subnet for the port of `device`, and tells the other ports' managers of it. Ends
/// with the device.
///
/// # Errors
/// The device is on no InfiniBand subnet, or there is no thread to be had.
pub fn serve(device: &Arc<Device>) -> io::Result<()> {
    let (sender, events) = sync_channel(WAITING);
    device.management().map_err(io::Error::other)?.set_sink(Arc::new(Sink(sender)));
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
    loop {
        let arrived = match next(events, administrator.next_deadline()) {
            Ok(arrived) => arrived,
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some(device) = device.upgrade() else { return };
        let Fabric::Subnet(management) = device.network() else { return };
        for (port, again) in administrator.on_timeout(Instant::now()) {
            let interface = ManagementInterface::GeneralServices;
            let _ = management.answer(true, interface, port, &again);
        }
        let Some(arrived) = arrived else {
            let _ = management.ports();
            continue;
        };
        for answer in answers(device.slot(), &management, &mut administrator, &arrived) {
            let ManagementDatagram { interface, to_manager, source, .. } = arrived;
            // Who asked asks again.
            let _ = management.answer(to_manager, interface, source, &answer);
        }
    }
}

/// What arrives next, until `deadline`.
fn next(
    events: &Receiver<Option<ManagementDatagram>>,
    deadline: Option<Instant>,
) -> Result<Option<ManagementDatagram>, RecvTimeoutError> {
    match deadline {
        None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
    }
}

/// The answers to a datagram. There is none while another port joins a group and this one wants to:
/// who asked asks again.
fn answers(
    own: u16,
    management: &Management<'_>,
    administrator: &mut Administrator,
    arrived: &ManagementDatagram,
) -> Vec<Mad> {
    let mut answer = |ports| {
        let view = View { own, ports };
        match arrived.interface {
            ManagementInterface::Subnet => {
                let answer = view.answer_smp(arrived.source, arrived.to_manager, &arrived.mad);
                answer.into_iter().collect()
            }
            ManagementInterface::GeneralServices => {
                let mut groups = PortGroups(management);
                administrator.hear(&view, &mut groups, arrived.source, &arrived.mad, Instant::now())
            }
        }
    };
    let answered = if asks_to_join(&arrived.mad) {
        management.joining(answer)
    } else {
        management.ports().ok().map(&mut answer)
    };
    answered.unwrap_or_default()
}

/// Tells every other port's manager that this port is there: a report of the subnet's, whose only
/// use is that they look.
fn announce(device: &Device) {
    let header = Header {
        class: class::SUBNET_ADMINISTRATION,
        class_version: sa::VERSION,
        method: method::REPORT,
        attribute: sa::attribute::NOTICE,
        ..Header::default()
    };
    let report: Mad = header.alone();
    let Fabric::Subnet(management) = device.network() else { return };
    let ports = management.ports().unwrap_or_default();
    for port in ports.iter().filter(|port| port.lid != device.slot()) {
        let _ = management.tell_manager_of(port.lid, &report);
    }
}

/// The groups that the port is in.
struct PortGroups<'a>(&'a Management<'a>);

impl Groups for PortGroups<'_> {
    fn join(&mut self, membership: Membership) -> Result<(), Refused> {
        self.0.join_group(membership).map_err(|_| Refused)
    }

    fn leave(&mut self, mgid: [u8; 16]) {
        self.0.leave_group(mgid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ipoib_broadcast;
    use hca::subnet::FIRST_MULTICAST_LID;
    use hca::{DeviceAttr, DeviceConfig, Network};
    use registry::{Client, Options, Role};
    use std::collections::HashMap;
    use wire::field::{be16, put};
    use wire::mad::field;
    use wire::mad::sa::McMemberRecord;

    /// MGID, PortGID, Q_Key, traffic class, P_Key, service level, flow label, join state.
    const COMPONENTS: u64 = 0b1_0011_0000_1100_0111;

    fn port(name: &str, options: &Options) -> Arc<Device> {
        mm::guard::install();
        Device::open(DeviceConfig {
            attr: DeviceAttr::new(name, 1),
            comm: "test".into(),
            registry: Client::connect_at(Role::Member, options).unwrap(),
            mtu_bytes: None,
            network: Network::Subnet,
            trace: None,
            neighbours: false,
            receive_buffer_bytes: None,
        })
        .unwrap()
    }

    /// What a port gets that asks to join, and perhaps make, a group.
    fn joins(device: &Device, mgid: [u8; 16]) -> Option<u16> {
        let Fabric::Subnet(management) = device.network() else { panic!("no subnet") };
        let own = management.ports().unwrap();
        let own = own.iter().find(|port| port.lid == device.slot()).unwrap();
        let header = Header {
            class: class::SUBNET_ADMINISTRATION,
            class_version: sa::VERSION,
            method: method::SET,
            attribute: sa::attribute::MULTICAST_MEMBER,
            ..Header::default()
        };
        let member = McMemberRecord {
            mgid,
            port_gid: hca::subnet::gid_of_guid(own.guid),
            pkey: hca::DEFAULT_PKEY,
            join_state: 1,
            ..McMemberRecord::parse(&[])
        };
        let mut mad: Mad = header.alone();
        put(&mut mad, sa::field::COMPONENT_MASK, &COMPONENTS.to_be_bytes());
        put(&mut mad, sa::field::DATA, &member.emit());
        let interface = ManagementInterface::GeneralServices;
        let arrived =
            ManagementDatagram { interface, to_manager: true, source: device.slot(), mad };
        let answers = answers(device.slot(), &management, &mut Administrator::default(), &arrived);
        let answer = answers.first()?;
        assert_eq!(be16(answer, field::STATUS), 0);
        Some(McMemberRecord::parse(&answer[sa::field::DATA]).mlid)
    }

    /// Two groups whose GIDs lead to one LID.
    fn two_of_one_lid() -> [[u8; 16]; 2] {
        let view = View { own: 0, ports: Vec::new() };
        let mut known = HashMap::new();
        for number in 0..=u16::MAX {
            let mut mgid = [0xff; 16];
            mgid[14..].copy_from_slice(&number.to_be_bytes());
            let before = view.free_mlid(mgid).and_then(|mlid| known.insert(mlid, mgid));
            if let Some(other) = before {
                return [other, mgid];
            }
        }
        panic!("no two groups of one LID");
    }

    fn two_ports() -> (Arc<Device>, Arc<Device>) {
        let port_number =
            std::net::UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let name_suffix = Some(format!("subnet-{port_number}"));
        let options = Options { port: port_number, name_suffix };
        (port("one", &options), port("other", &options))
    }

    #[test]
    fn groups_made_at_the_same_time_have_a_lid_each() {
        let (one, other) = two_ports();
        let [mine, theirs] = two_of_one_lid();
        let Fabric::Subnet(management) = one.network() else { panic!("no subnet") };
        let amid = management.joining(|_| joins(&other, theirs));
        assert_eq!(amid, Some(None), "no group is made while a port makes one");
        let lids = [joins(&one, mine).unwrap(), joins(&other, theirs).unwrap()];
        assert!(lids.iter().all(|lid| *lid > FIRST_MULTICAST_LID));
        assert_ne!(lids[0], lids[1]);
        assert_eq!(joins(&other, mine), Some(lids[0]), "who joins a group finds it at its LID");
    }
    #[test]
    fn who_stood_still_while_it_joined_is_in_no_group_that_others_did_not_see() {
        let (one, other) = two_ports();
        let [mine, theirs] = two_of_one_lid();
        let Fabric::Subnet(management) = one.network() else { panic!("no subnet") };
        let is_in = || {
            let ports = management.ports().unwrap();
            ports.into_iter().find(|port| port.lid == one.slot()).unwrap().memberships
        };
        let mut before = None;
        let amid = management.joining(|ports| {
            let view = View { own: one.slot(), ports };
            let membership = Membership {
                mgid: mine,
                mlid: view.free_mlid(mine).unwrap(),
                join_state: 1,
                ..ipoib_broadcast()
            };
            management.join_group(membership).unwrap();
            before = Some(membership);
            // As long as this does not go on, others wait, but not for ever.
            let begin = Instant::now();
            while joins(&other, theirs).is_none() {
                assert!(begin.elapsed() < 3 * registry::JOINING_LEASE, "the other waits for ever");
            }
        });
        assert_eq!((amid, is_in()), (None, vec![]), "it was in {before:?}");
        joins(&one, mine).unwrap();
        assert_eq!(is_in().len(), 1);
    }
}
