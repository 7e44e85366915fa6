//! The receiver of datagrams (IBA 9.8.3): Q_Key, then a receive request whose first 40 bytes take
//! the network header.

use crate::executor::{Landed, Landing};
use crate::qp::faults::Met;
use crate::qp::{FaultSide, Transport};
use crate::sabotage::{self, Sabotage};
use crate::values::*;
use crate::{Counter, Cx, Routing, Rx};
use std::net::{IpAddr, Ipv6Addr};
use wire::grh::{self, Grh};
use wire::icrc::Addresses;
use wire::{GRH_LEN, ICRC_LEN, Operation};

const UDP_HEADER_LEN: usize = 8;
/// What mlx5 reports in the service level of a RoCEv2 completion: bit 3, and the kind of IP header
/// below it. UCX drops datagrams whose kind it does not find there.
const SL_IPV4: u8 = 0xa;
const SL_IPV6: u8 = 0x9;

impl Transport {
    /// A datagram.
    pub(crate) fn receive_datagram(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        let headers = rx.headers;
        let Some(deth) = headers.deth else { return cx.counters.count(Counter::RxDropped, 1) };
        let bad_qkey = deth.qkey != self.attr.qkey && !sabotage::on(Sabotage::SkipQkey);
        let bad_length = rx.payload.len() > self.resp.mtu as usize;
        if bad_qkey || bad_length || headers.bth.opcode.operation != Operation::Send {
            return cx.counters.count(Counter::RxDropped, 1);
        }
        self.note_established(cx);
        let Some(landing) = self.land(&[&network_header(rx), rx.payload], cx) else { return };
        let (imm_or_key, with_imm) = match headers.imm {
            Some(imm) => (imm, WcFlags::WITH_IMM),
            None => (0, WcFlags::empty()),
        };
        cx.sink.received(Completion {
            byte_len: landing.filled() as u32,
            imm_or_key,
            src_qp: deth.src_qp,
            src_ip: Some(rx.src),
            flags: if rx.routing == Routing::Lid { with_imm } else { WcFlags::GRH | with_imm },
            vlan: rx.vlan,
            sl: if rx.src.is_ipv4() { SL_IPV4 } else { SL_IPV6 },
            solicited: headers.bth.solicited,
            ..Completion::new(landing.wr_id(), WcStatus::Success, WcOpcode::Recv, self.qpn)
        });
    }

    /// Takes a datagram into a receive request, or counts why not; memory that cannot be written
    /// ends the QP.
    pub(super) fn land(&mut self, parts: &[&[u8]], cx: &mut Cx<'_>) -> Option<Landing> {
        match self.inbox.land(cx.keys, self.pd, parts) {
            Landed::Placed(landing) => return Some(landing),
            Landed::NotReady => cx.counters.count(Counter::OutOfBuffer, 1),
            // The datagram is lost; the next one may find the memory there.
            Landed::PageFault(error, landing)
                if self.faults.waits(
                    FaultSide::Service,
                    error,
                    Met::datagram(&landing, parts),
                    cx,
                ) =>
            {
                self.inbox.put_back(landing);
                cx.counters.count(Counter::RxDropped, 1);
            }
            Landed::QueueLost => self.fail(cx),
            Landed::TooLong => cx.counters.count(Counter::RespLocalLengthError, 1),
            Landed::Failed(landing) | Landed::PageFault(_, landing) => {
                self.fail_receive(landing, WcStatus::LocProtErr, cx);
                self.enter_error(cx);
            }
        }
        None
    }
}

fn network_header(rx: &Rx<'_>) -> [u8; GRH_LEN] {
    let transport = rx.headers.len() + rx.payload.len() + usize::from(rx.headers.bth.pad);
    if let Routing::Gid { source, destination } = rx.routing {
        let length = (transport + ICRC_LEN) as u16;
        return grh::of_infiniband(source, destination, rx.traffic_class, rx.hop_limit, length);
    }
    let addresses = match (rx.src, rx.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4(src, dst),
        (src, dst) => Addresses::V6(v6(src), v6(dst)),
    };
    Grh {
        addresses,
        traffic_class: rx.traffic_class,
        flow_label: 0,
        hop_limit: rx.hop_limit,
        udp_len: (UDP_HEADER_LEN + transport + ICRC_LEN) as u16,
        identification: 0,
    }
    .emit()
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
