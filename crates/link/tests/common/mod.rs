//! Endpoints, packets and a collector for the tests of this crate.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod lab;

use link::{Batch, Datagram, Endpoint, Flow, Path, Receiver};
use mm::guard::fold::Fold;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use wire::{Bth, Headers, Opcode, Operation, Position, Psn, Reth, Service};

/// How long a test waits for packets before it fails.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A receive socket on `port` (0: any) and its port.
pub fn receive_socket(any: IpAddr, port: u16) -> (OwnedFd, u16) {
    let family = if any.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd =
        socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(ipproto::UDP)).unwrap();
    if any.is_ipv6() {
        rustix::net::sockopt::set_ipv6_v6only(&fd, true).unwrap();
    }
    bind(&fd, &SocketAddr::new(any, port)).unwrap();
    let name: SocketAddr = rustix::net::getsockname(&fd).unwrap().try_into().unwrap();
    (fd, name.port())
}

/// An endpoint that listens on both families at one port and sends there too: its own peer.
pub fn mirror() -> Endpoint {
    let (v4, port) = receive_socket(Ipv4Addr::UNSPECIFIED.into(), 0);
    let (v6, _) = receive_socket(Ipv6Addr::UNSPECIFIED.into(), port);
    Endpoint::new(Some(v4), Some(v6), port).unwrap()
}

pub fn path(src: &str, dst: &str) -> Path {
    Path {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        scope_id: 0,
        traffic_class: 0x68,
        hop_limit: 61,
        flow_label: 0,
        ethernet: None,
    }
}

/// Headers of an RDMA WRITE packet over RC.
pub fn write(position: Position, psn: u32, payload_len: usize) -> Headers {
    let opcode = Opcode {
        service: Service::Rc,
        operation: Operation::Write,
        position,
        imm: false,
        invalidate: false,
    };
    let mut headers = Headers::new(Bth {
        opcode,
        solicited: false,
        migrated: true,
        pad: ((4 - payload_len % 4) % 4) as u8,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest_qp: 3 << 14 | 9,
        ack_req: position.ends(),
        psn: Psn::new(psn),
    });
    if position.starts() {
        headers.reth = Some(Reth { va: 0x1000, rkey: 7, len: payload_len as u32 });
    }
    headers
}

/// Byte `index` of the payload of packet `psn`.
pub fn byte(psn: u32, index: usize) -> u8 {
    (psn as usize * 31 + index * 7 + index / 251) as u8
}

/// Stages packet `psn` with its own payload.
pub fn stage(
    batch: &mut Batch,
    ep: &Endpoint,
    flow: &Flow,
    position: Position,
    psn: u32,
    len: usize,
) {
    let headers = write(position, psn, len);
    let mut fill = |out: &mut [u8], _: &mut Fold| -> Result<(), ()> {
        for (index, value) in out.iter_mut().enumerate() {
            *value = byte(psn, index);
        }
        Ok(())
    };
    batch.packet(ep, flow, &headers, len, &mut fill).unwrap();
}

/// A received packet, with its payload compared already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub psn: u32,
    pub len: usize,
    pub headers: Headers,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub udp_src: u16,
    pub ifindex: u32,
    pub traffic_class: u8,
    pub hop_limit: u8,
}

impl Seen {
    pub fn of(datagram: Datagram<'_>) -> Seen {
        let psn = datagram.headers.bth.psn.get();
        for (index, value) in datagram.payload.iter().enumerate() {
            assert_eq!(*value, byte(psn, index), "byte {index} of packet {psn}");
        }
        Seen {
            psn,
            len: datagram.payload.len(),
            headers: datagram.headers,
            src: datagram.src,
            dst: datagram.dst,
            udp_src: datagram.udp_src,
            ifindex: datagram.ifindex,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
        }
    }
}

/// Waits until something can be received.
pub fn wait(ep: &Endpoint) {
    let mut fds: Vec<_> =
        ep.receive_fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    assert!(poll(&mut fds, Some(&PATIENCE)).unwrap() > 0, "nothing arrived");
}

/// Receives until `count` packets came.
pub fn collect(ep: &Endpoint, count: usize) -> Vec<Seen> {
    let mut receiver = Receiver::new().unwrap();
    let mut seen = Vec::new();
    while seen.len() < count {
        if receiver.receive(ep, 4, &mut |datagram| seen.push(Seen::of(datagram))) == 0 {
            wait(ep);
        }
    }
    assert_eq!(seen.len(), count);
    seen
}

/// Value of a counter of `ep`.
pub fn counter(ep: &Endpoint, name: &str) -> u64 {
    ep.stats().iter().find(|(known, _)| *known == name).unwrap().1
}
