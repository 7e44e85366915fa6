//! Which queue pair a packet is for, and the group's members that a multicast packet is for. What
//! is for nobody is dropped and counted.

use crate::adapter::management::{GSI_QPN, ManagementInterface};
use crate::adapter::network::{Attached, Subnet};
use crate::adapter::rings::Row;
use crate::device::Device;
use crate::fabric::Fabric;
use crate::fabric::multicast::MULTICAST_QPN;
use crate::fabric::subnet::{gid_of_guid, lid_of_address, lid_of_group};
use crate::objects::qp::{InARow, Qp, Visit};
use link::{Batch, Datagram, ip_of_gid};
use smallvec::SmallVec;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use transport::{Count, Counter, Routing, Rx};

impl Device {
    pub(super) fn dispatch(
        &self,
        datagram: &Datagram<'_>,
        now: Instant,
        batch: &mut Batch,
        touched: &mut Vec<Arc<Qp>>,
        endings: &mut u32,
    ) {
        self.note_packets(1, datagram.payload.len());
        let counters = self.directory();
        let qpn = datagram.headers.bth.dest_qp;
        let interface = ManagementInterface::of(qpn);
        if let (Some(interface), Fabric::Subnet(management)) = (interface, self.network())
            && management.take(interface, datagram)
        {
            return;
        }
        let management = interface.and_then(|interface| self.gsi.qp(interface));
        if qpn == GSI_QPN && management.is_none() {
            return self.gsi.receive(&self.adapter, datagram, now);
        }
        if !self.takes(datagram.dst) {
            return counters.count(Counter::RxDropped, 1);
        }
        if qpn == MULTICAST_QPN {
            return self.dispatch_multicast(datagram, now, batch, touched, endings);
        }
        let rx = rx_of(datagram, self.routing());
        self.hand_out(&rx, management, now, batch, touched, endings);
    }

    /// Hands a queue pair of the program's what came for it by a ring. `has_time` says whether it
    /// may answer after so many bytes of payload.
    pub(super) fn visit(
        &self,
        row: &mut Row<'_>,
        (now, has_time): (Instant, &dyn Fn(usize) -> bool),
        batch: &mut Batch,
        touched: &mut Vec<Arc<Qp>>,
        endings: &mut u32,
    ) -> Visit {
        let qpn = row.dest_qp();
        let special = ManagementInterface::of(qpn).is_some() || qpn == MULTICAST_QPN;
        let qp = if special { None } else { self.touched(None, qpn, touched) };
        let Some(index) = qp else {
            let mut visit = Visit::default();
            row.each(&mut |rx| {
                visit.packets += 1;
                visit.bytes += rx.payload_len();
                true
            });
            self.note_packets(visit.packets, visit.bytes);
            self.directory().count(Counter::RxDropped, visit.packets as u64);
            return visit;
        };
        // Nearly always that of the packet before.
        let mut taken_at = None;
        let mut takes = |at: IpAddr| {
            if taken_at != Some(at) && self.takes(at) {
                taken_at = Some(at);
            }
            taken_at == Some(at)
        };
        let packets = InARow {
            now,
            has_time,
            begins_with_request: row.begins_with_request(),
            next: &mut |f| {
                row.each(&mut |rx| {
                    if takes(rx.dst) {
                        return f(rx);
                    }
                    self.note_packets(1, rx.payload_len());
                    self.directory().count(Counter::RxDropped, 1);
                    true
                });
                row.was_all()
            },
        };
        let visit = touched[index].receive_row(&self.adapter, packets, batch, endings);
        if visit.answered {
            touched.swap_remove(index);
        }
        self.note_packets(visit.packets, visit.bytes);
        visit
    }

    fn note_packets(&self, packets: usize, payload: usize) {
        self.directory().count(Counter::RcvdPackets, packets as u64);
        self.directory().count(Counter::RcvdBytes, payload as u64);
    }

    /// Gives a packet to its queue pair.
    fn hand_out(
        &self,
        rx: &Rx<'_>,
        management: Option<Arc<Qp>>,
        now: Instant,
        batch: &mut Batch,
        touched: &mut Vec<Arc<Qp>>,
        endings: &mut u32,
    ) {
        match self.touched(management, rx.headers.bth.dest_qp, touched) {
            Some(index) => touched[index].receive(&self.adapter, rx, now, batch, endings),
            None => self.directory().count(Counter::RxDropped, 1),
        }
    }

    /// Where among the queue pairs that were touched the one is that packets to `qpn` are for.
    fn touched(
        &self,
        management: Option<Arc<Qp>>,
        qpn: u32,
        touched: &mut Vec<Arc<Qp>>,
    ) -> Option<usize> {
        // A train is of one QP, so the last one touched is nearly always the one.
        let known = touched.iter().rposition(|qp| qp.number() == qpn);
        known.or_else(|| {
            touched.push(management.or_else(|| self.qps.find(qpn))?);
            Some(touched.len() - 1)
        })
    }

    /// What brings packets to one queue pair.
    fn routing(&self) -> Routing {
        match self.adapter.network {
            Attached::Subnet(_) => Routing::Lid,
            Attached::Host | Attached::Ethernet(_) => Routing::Ip,
        }
    }

    /// Each member of the group takes the packet, but for its sender if that one does not want it.
    fn dispatch_multicast(
        &self,
        datagram: &Datagram<'_>,
        now: Instant,
        batch: &mut Batch,
        touched: &mut Vec<Arc<Qp>>,
        endings: &mut u32,
    ) {
        let mut taken = false;
        for (group, routing) in self.groups_of(datagram) {
            for qp in self.groups.members(group) {
                taken = true;
                if qp.init().blocks_own_multicast && self.is_sender(&qp, datagram) {
                    continue;
                }
                qp.receive(&self.adapter, &rx_of(datagram, routing), now, batch, endings);
                if touched.iter().all(|known| known.number() != qp.number()) {
                    touched.push(qp);
                }
            }
        }
        if !taken {
            self.directory().count(Counter::RxDropped, 1);
        }
    }

    /// The groups that a multicast packet is for.
    fn groups_of(&self, datagram: &Datagram<'_>) -> SmallVec<[(IpAddr, Routing); 1]> {
        match &self.adapter.network {
            Attached::Subnet(subnet) => groups_of_subnet(subnet, datagram),
            Attached::Host | Attached::Ethernet(_) => {
                SmallVec::from_elem((datagram.dst, Routing::Ip), 1)
            }
        }
    }

    /// Whether `qp` sent a datagram: numbers are given anew on every host.
    fn is_sender(&self, qp: &Qp, datagram: &Datagram<'_>) -> bool {
        let sender = datagram.headers.deth.map(|deth| deth.src_qp);
        sender == Some(qp.number())
            && self.gids(1).is_ok_and(|gids| gids.iter().any(|gid| gid.ip == datagram.src))
    }
}

/// The groups that a multicast packet in a subnet is for: a LID may be several groups'.
fn groups_of_subnet(subnet: &Subnet, datagram: &Datagram<'_>) -> SmallVec<[(IpAddr, Routing); 1]> {
    let Some(mlid) = lid_of_group(datagram.dst) else { return SmallVec::new() };
    let source = lid_of_address(datagram.src);
    let Some(guid) = source.and_then(|lid| subnet.memberships.guid_of(lid)) else {
        if let Some(sink) = subnet.sink.get() {
            sink.stranger();
        }
        return SmallVec::new();
    };
    let source = gid_of_guid(guid);
    let groups = subnet.memberships.groups_at(mlid).into_iter();
    groups.map(|mgid| (ip_of_gid(mgid), Routing::Gid { source, destination: mgid })).collect()
}

fn rx_of<'a>(datagram: &'a Datagram<'a>, routing: Routing) -> Rx<'a> {
    Rx {
        headers: &datagram.headers,
        payload: datagram.payload,
        in_transit: None,
        src: datagram.src,
        dst: datagram.dst,
        traffic_class: datagram.traffic_class,
        hop_limit: datagram.hop_limit,
        vlan: datagram.vlan,
        routing,
        mtu: None,
    }
}
