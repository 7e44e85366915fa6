//! Incoming packets: GRO trains taken in a few system calls, cut, checked and handed out.
//!
//! Whatever a stranger sends ends in a counter or in a [`Datagram`], never in a panic. On IPv4 the
//! identification that the ICRC covers is not shown to a UDP socket; the place in the train is the
//! first guess, else it is solved for (design D6).

use crate::Endpoint;
use crate::crc;
use crate::framing::Framed;
use crate::lan::Lan;
use crate::socket::cmsg::int;
use crate::socket::udp::{Incoming, MAX_RECEIVE, Slots};
use crate::stats::{Stats, add};
use crate::trace::{Trace, Traced};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use wire::ethernet::is_multicast;
use wire::icrc::{Addresses, Checker, FlowCrc};
use wire::{Headers, ICRC_LEN};

/// Calls for which a busy address family may keep the other waiting.
const PATIENCE: u32 = 8;
/// Glances of which one looks everywhere, and after which each does, when none finds anything.
const THOROUGH: u32 = 4;
const GLANCES: u32 = 256;

/// A packet from the wire: ICRC checked and removed, padding removed.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// IP source.
    pub src: IpAddr,
    /// IP destination: an address of this host.
    pub dst: IpAddr,
    /// UDP source port.
    pub udp_src: u16,
    /// Index of the interface it came in by.
    pub ifindex: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Control information of the VLAN tag, if the frame had one.
    pub vlan: Option<u16>,
    /// Transport headers.
    pub headers: Headers,
    /// Payload without padding.
    pub payload: &'a [u8],
}

/// Receive buffers, used by one thread at a time.
pub struct Receiver {
    slots: Slots,
    checker: Checker,
    /// The address family that delivered last is asked first.
    v6_first: bool,
    /// Calls since the other family was last asked.
    skipped: u32,
    /// Glances that found nothing since anything came.
    vain: u32,
}

impl Receiver {
    /// Buffers for a megabyte of messages, of which only as much is touched as arrives at once.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new() -> io::Result<Receiver> {
        let slots = Slots::new()?;
        let vain = GLANCES;
        Ok(Receiver { slots, checker: Checker::new(), v6_first: false, skipped: 0, vain })
    }

    /// Hands every packet of up to `max_trains` waiting messages to `f`, in order of arrival per
    /// address family, and answers how many messages there were: 0 only when none waits (or
    /// `max_trains` is 0). Never waits.
    pub fn receive(
        &mut self,
        ep: &Endpoint,
        max_trains: usize,
        f: &mut dyn FnMut(Datagram<'_>),
    ) -> usize {
        if max_trains == 0 {
            return 0;
        }
        let trace = ep.trace();
        let patience_ends = self.skipped >= PATIENCE;
        if patience_ends {
            let trains = self.receive_others(ep, max_trains, f, trace.as_deref());
            if trains > 0 {
                self.skipped = 0;
                return trains;
            }
        }
        let first = self.v6_first != patience_ends;
        let trains = self.receive_family(ep, first, max_trains, f, trace.as_deref());
        if trains > 0 {
            self.skipped = if patience_ends { 0 } else { self.skipped + 1 };
            return trains;
        }
        self.skipped = 0;
        let trains = self.receive_family(ep, !first, max_trains, f, trace.as_deref());
        if trains > 0 {
            self.v6_first = !first;
            return trains;
        }
        self.receive_others(ep, max_trains, f, trace.as_deref())
    }

    /// As [`Receiver::receive`], for one that asks again and again: 0 may also mean that most
    /// places will be asked the next times. A call to the system that finds nothing takes a good
    /// part of what a short packet does.
    pub fn glance(
        &mut self,
        ep: &Endpoint,
        max_trains: usize,
        f: &mut dyn FnMut(Datagram<'_>),
    ) -> usize {
        let is_turn = self.vain % THOROUGH == THOROUGH - 1;
        let trains = if is_turn || self.vain >= GLANCES || self.skipped >= PATIENCE {
            self.receive(ep, max_trains, f)
        } else {
            let trace = ep.trace();
            let trains = self.receive_family(ep, self.v6_first, max_trains, f, trace.as_deref());
            self.skipped += u32::from(trains > 0);
            trains
        };
        self.vain = if trains > 0 { 0 } else { self.vain.saturating_add(1) };
        trains
    }

    /// What arrived on an Ethernet, and at single addresses.
    fn receive_others(
        &mut self,
        ep: &Endpoint,
        max_trains: usize,
        f: &mut dyn FnMut(Datagram<'_>),
        trace: Option<&Trace>,
    ) -> usize {
        let mut trains = 0;
        for (lan, fd) in
            ep.lan().into_iter().flat_map(|lan| lan.receive_fds().map(move |fd| (lan, fd)))
        {
            trains += self.receive_from(fd, max_trains, |_, message| {
                hand_out_frames(ep, lan, message, f, trace);
            });
        }
        for own in ep.own_addresses().iter() {
            trains += self.receive_from(own.fd(), max_trains, |checker, message| {
                hand_out(checker, ep, message, f, trace);
            });
        }
        trains
    }

    fn receive_family(
        &mut self,
        ep: &Endpoint,
        v6: bool,
        max_trains: usize,
        f: &mut dyn FnMut(Datagram<'_>),
        trace: Option<&Trace>,
    ) -> usize {
        let Some(fd) = ep.receive_fd(v6) else { return 0 };
        self.receive_from(fd, max_trains, |checker, message| {
            hand_out(checker, ep, message, f, trace);
        })
    }

    fn receive_from(
        &mut self,
        fd: BorrowedFd<'_>,
        max_trains: usize,
        mut each: impl FnMut(&mut Checker, &Incoming<'_>),
    ) -> usize {
        let mut trains = 0;
        while trains < max_trains {
            let limit = (max_trains - trains).min(MAX_RECEIVE);
            // A socket error means that nothing could be taken; the datagrams count as lost.
            let received = self.slots.receive(fd, limit).unwrap_or(0);
            for index in 0..received {
                each(&mut self.checker, &self.slots.get(index));
            }
            trains += received;
            if received < limit {
                break;
            }
        }
        trains
    }
}

/// What the IP and UDP headers of a train said.
struct Envelope {
    src: IpAddr,
    dst: IpAddr,
    udp_src: u16,
    ifindex: u32,
    traffic_class: u8,
    hop_limit: u8,
    /// Length of all datagrams but the last.
    segment: usize,
}

impl Envelope {
    fn of(message: &Incoming<'_>) -> Option<Envelope> {
        let (src, udp_src) = message.from.decode()?;
        let mut dst = None;
        let (mut traffic_class, mut hop_limit, mut ifindex) = (0, 0, 0);
        let mut segment = message.bytes.len();
        for (level, kind, data) in message.control.iter() {
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    ifindex = int(data)?;
                    let octets: [u8; 4] = data.get(8..12)?.try_into().ok()?;
                    dst = Some(IpAddr::from(Ipv4Addr::from(octets)));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    ifindex = int(data.get(16..)?)?;
                    let octets: [u8; 16] = data.get(..16)?.try_into().ok()?;
                    dst = Some(Ipv6Addr::from(octets).to_canonical());
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => traffic_class = *data.first()?,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => traffic_class = int(data)? as u8,
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    hop_limit = int(data)? as u8
                }
                (libc::SOL_UDP, libc::UDP_GRO) => segment = usize::try_from(int(data)?).ok()?,
                _ => {}
            }
        }
        let ifindex = ifindex as u32;
        let segment = segment.max(1);
        Some(Envelope { src, dst: dst?, udp_src, ifindex, traffic_class, hop_limit, segment })
    }
}

/// Counts a train in; `None` for one that cannot be cut.
fn open(stats: &Stats, message: &Incoming<'_>) -> Option<Envelope> {
    add(&stats.rx_trains, 1);
    let envelope = Envelope::of(message).filter(|_| !message.cut && !message.bytes.is_empty());
    if envelope.is_none() {
        add(&stats.rx_malformed, 1);
    }
    envelope
}

fn hand_out(
    checker: &mut Checker,
    ep: &Endpoint,
    message: &Incoming<'_>,
    f: &mut dyn FnMut(Datagram<'_>),
    trace: Option<&Trace>,
) {
    let stats = ep.stats();
    let Some(envelope) = open(stats, message) else { return };
    if ep.is_relayed(envelope.src, envelope.dst, envelope.udp_src) {
        return;
    }
    add(&stats.rx_bytes, message.bytes.len() as u64);
    let Some(addresses) = Addresses::new(envelope.src, envelope.dst) else {
        return add(&stats.rx_malformed, 1);
    };

    // In a train most packets have one length and the place as identification.
    let train = (envelope.segment < message.bytes.len()).then(|| {
        let flow = FlowCrc::new(addresses, envelope.udp_src);
        flow.at_length(envelope.segment.saturating_sub(ICRC_LEN))
    });
    let (mut good, mut corrupt, mut malformed) = (0, 0, 0);
    for (index, datagram) in message.bytes.chunks(envelope.segment).enumerate() {
        let Some((transport, icrc)) = datagram.split_last_chunk::<ICRC_LEN>() else {
            malformed += 1;
            continue;
        };
        let hint = index as u16;
        let icrc = u32::from_le_bytes(*icrc);
        let identification = match &train {
            Some(headers)
                if datagram.len() == envelope.segment
                    && crc::icrc(headers, hint, transport) == icrc =>
            {
                Some(hint)
            }
            _ => checker.check(addresses, envelope.udp_src, hint, transport, icrc),
        };
        if let Some(trace) = trace {
            trace.record(&Traced {
                src: envelope.src,
                dst: envelope.dst,
                udp_src: envelope.udp_src,
                traffic_class: envelope.traffic_class,
                hop_limit: envelope.hop_limit,
                identification: identification.unwrap_or(hint),
                datagram,
            });
        }
        if identification.is_none() {
            corrupt += 1;
            continue;
        }
        let Ok((headers, payload)) = Headers::parse(transport) else {
            malformed += 1;
            continue;
        };
        good += 1;
        f(Datagram {
            src: envelope.src,
            dst: envelope.dst,
            udp_src: envelope.udp_src,
            ifindex: envelope.ifindex,
            traffic_class: envelope.traffic_class,
            hop_limit: envelope.hop_limit,
            vlan: None,
            headers,
            payload,
        });
    }
    add(&stats.rx_datagrams, good);
    if corrupt + malformed > 0 {
        add(&stats.rx_icrc_errors, corrupt);
        add(&stats.rx_malformed, malformed);
    }
}

/// Cuts a train of frames: packets of ours are checked and handed out, and the port's sink gets all
/// else.
fn hand_out_frames(
    ep: &Endpoint,
    lan: &Lan,
    message: &Incoming<'_>,
    f: &mut dyn FnMut(Datagram<'_>),
    trace: Option<&Trace>,
) {
    let Some(envelope) = open(ep.stats(), message) else { return };
    let own = lan.sent(envelope.src);
    for frame in message.bytes.chunks(envelope.segment) {
        let framed = Framed::parse(frame);
        match framed.filter(|framed| lan.takes(framed.mac, framed.packet.dst, framed.vlan)) {
            Some(framed) => {
                // A group's hardware address makes no single one a group.
                let group = is_multicast(framed.mac) && framed.packet.dst.is_multicast();
                if own && framed.vlan.is_none() && group {
                    ep.relay(&framed.packet);
                }
                add(&ep.stats().rx_bytes, frame.len() as u64);
                hand_out_framed(ep, &framed, f, trace);
            }
            // What is flooded comes back to who sent it.
            None if own => {}
            None => lan.arrive(frame),
        }
    }
}

fn hand_out_framed(
    ep: &Endpoint,
    framed: &Framed<'_>,
    f: &mut dyn FnMut(Datagram<'_>),
    trace: Option<&Trace>,
) {
    let (stats, packet) = (ep.stats(), &framed.packet);
    if let Some(trace) = trace {
        trace.record(packet);
    }
    let parts = packet.datagram.split_last_chunk::<ICRC_LEN>();
    let (Some((transport, icrc)), Some(addresses)) =
        (parts, Addresses::new(packet.src, packet.dst))
    else {
        return add(&stats.rx_malformed, 1);
    };
    let headers = FlowCrc::new(addresses, packet.udp_src).at_length(transport.len());
    if crc::icrc(&headers, packet.identification, transport) != u32::from_le_bytes(*icrc) {
        return add(&stats.rx_icrc_errors, 1);
    }
    let Ok((headers, payload)) = Headers::parse(transport) else {
        return add(&stats.rx_malformed, 1);
    };
    add(&stats.rx_datagrams, 1);
    f(Datagram {
        src: packet.src.to_canonical(),
        dst: packet.dst.to_canonical(),
        udp_src: packet.udp_src,
        ifindex: 0,
        traffic_class: packet.traffic_class,
        hop_limit: packet.hop_limit,
        vlan: framed.vlan,
        headers,
        payload,
    });
}
