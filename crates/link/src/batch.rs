//! Outgoing packets: staged one after another, and sent as GSO trains.
//!
//! A train is a run of packets of one flow and one length, of which only the last may be shorter;
//! the kernel takes it in one piece and cuts it into datagrams as late as it can. The kernel
//! accepts unequal runs too and silently cuts them elsewhere, so equality is kept by construction
//! here: a packet that does not fit the open train begins another. A FIRST with its extra header so
//! takes one packet along as its shorter last, in the same `sendmmsg` as the train behind it.
//!
//! Payload is copied once on its way into the staging buffer. The memory it comes from may be
//! written at any time, and an ICRC over other bytes than the ones sent would cost a
//! retransmission. It is also no slower: with staging a sender needs 110 and 95 ns/KiB at path MTU
//! 1024 and 4096, with scatter/gather entries over the source 131 and 88 (AMD EPYC, Linux 6.18,
//! `examples/speed`).
//!
//! On IPv4 the ICRC covers the identification. The kernel numbers the datagrams of a train from an
//! unconnected socket with IP_PMTUDISC_DO 0, 1, 2, …, so a packet's ICRC is made with its place in
//! its train.

use crate::Endpoint;
use crate::crc;
use crate::flow::{Flow, FlowState};
use crate::framing::Head;
use crate::socket::buffer;
use crate::socket::cmsg::Control;
use crate::socket::udp::{self, Outgoing};
use crate::stats::add;
use crate::trace::{Trace, Traced};
use mm::guard::fold::Fold;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use wire::icrc::LengthCrc;
use wire::{Headers, ICRC_LEN};

/// Bytes staged before they are sent: two full trains, and little enough to stay in the cache.
const CAPACITY: usize = 128 << 10;
/// Longest UDP payload over IPv4, and so longest train; IPv6 would take 20 bytes more.
const MAX_TRAIN_BYTES: usize = 65507;
/// Most datagrams in a train: UDP_MAX_SEGMENTS of kernels before 6.9.
const MAX_SEGMENTS: usize = 64;

/// A staging buffer for outgoing packets, used by one caller at a time. What was not flushed when
/// it is dropped is not sent.
pub struct Batch {
    bytes: Box<[u8]>,
    used: usize,
    trains: Vec<Train>,
    controls: Box<[Control]>,
}

/// A run of equal packets in the staging buffer.
struct Train {
    flow: Arc<FlowState>,
    /// The hashed IP and UDP headers of all packets but a shorter last.
    headers: LengthCrc,
    start: usize,
    len: usize,
    segment: usize,
    count: usize,
    /// The kernel takes trains of this flow, and the last packet was not shorter than the others.
    open: bool,
}

impl Train {
    fn takes(&self, flow: &Flow, len: usize) -> bool {
        self.open
            && len <= self.segment
            && self.count < MAX_SEGMENTS
            && self.len + len <= MAX_TRAIN_BYTES
            && Arc::ptr_eq(&self.flow, &flow.0)
    }

    fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// Writes a packet's payload into place, and folds it on the way where it can.
pub type Fill<'a, E> = dyn FnMut(&mut [u8], &mut Fold) -> Result<(), E> + 'a;

impl Batch {
    /// An empty buffer. It asks for no more memory afterwards.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new() -> io::Result<Batch> {
        Ok(Batch {
            bytes: buffer::zeroed(CAPACITY)?,
            used: 0,
            trains: buffer::empty(udp::MAX_SEND)?,
            controls: buffer::filled(Control::new(), udp::MAX_SEND)?,
        })
    }

    /// Appends a packet: `headers`, `payload_len` bytes that `fill` writes (and folds into
    /// the ICRC on the way, where it can), as many bytes of padding
    /// as the headers say, the ICRC. Sends what was staged before when the buffer is full. A packet
    /// longer than any datagram counts as lost.
    ///
    /// # Errors
    /// Those of `fill`; the packet is then not sent.
    ///
    /// # Panics
    /// When `headers` lack an extension that their opcode calls for (see [`Headers::emit`]).
    pub fn packet<E>(
        &mut self,
        ep: &Endpoint,
        flow: &Flow,
        headers: &Headers,
        payload_len: usize,
        fill: &mut Fill<'_, E>,
    ) -> Result<(), E> {
        let headers_len = headers.len();
        let head_len = flow.0.head.as_ref().map_or(0, Head::len);
        let overhead = head_len + headers_len + usize::from(headers.bth.pad) + ICRC_LEN;
        if payload_len > MAX_TRAIN_BYTES - overhead {
            ep.stats().lost(&io::Error::from_raw_os_error(libc::EMSGSIZE), 1);
            return Ok(());
        }
        let len = overhead + payload_len;
        let joins = self.trains.last().is_some_and(|train| train.takes(flow, len));
        // A train begins only where there is room for all of it, so that none is cut short.
        let full = self.used + MAX_TRAIN_BYTES > CAPACITY || self.trains.len() == udp::MAX_SEND;
        if full && !joins {
            self.flush(ep);
        }

        let start = self.used;
        let (head, out) = self.bytes[start..start + len].split_at_mut(head_len);
        if let Some(known) = &flow.0.head {
            known.emit(head, out.len());
        }
        let (transport, icrc) = out.split_at_mut(out.len() - ICRC_LEN);
        headers.emit(transport);
        let train = self.trains.last_mut().filter(|_| joins);
        let (hashed, place) = match &train {
            Some(train) if len == train.segment => (train.headers, train.count as u16),
            Some(train) => (flow.0.crc.at_length(transport.len()), train.count as u16),
            None => (flow.0.crc.at_length(transport.len()), 0),
        };
        // A frame brings its own IP header.
        let identification = if head_len == 0 { place } else { 0 };
        let mut fold = crc::begin(&hashed, identification, transport, headers_len);
        let (body, padding) = transport[headers_len..].split_at_mut(payload_len);
        fill(body, &mut fold)?;
        padding.fill(0);
        let value = crc::end(&fold, payload_len)
            .unwrap_or_else(|| crc::icrc(&hashed, identification, transport));
        icrc.copy_from_slice(&value.to_le_bytes());
        match train {
            Some(train) => {
                train.count += 1;
                train.len += len;
                train.open = len == train.segment;
            }
            None => {
                let open = flow.0.lane.gso.load(Relaxed);
                let (flow, headers) = (flow.0.clone(), hashed);
                self.trains.push(Train { flow, headers, start, len, segment: len, count: 1, open });
            }
        }
        self.used += len;
        Ok(())
    }

    /// Room for a packet of `len` bytes that leaves by another way: the caller's until the next
    /// call.
    pub fn aside(&mut self, ep: &Endpoint, len: usize) -> &mut [u8] {
        if self.used + len > CAPACITY {
            self.flush(ep);
        }
        &mut self.bytes[self.used..self.used + len]
    }

    /// How many packets are staged.
    pub fn packets(&self) -> usize {
        self.trains.iter().map(|train| train.count).sum()
    }

    /// Sends everything staged. What the kernel refuses is counted and otherwise as good as lost on
    /// the wire.
    pub fn flush(&mut self, ep: &Endpoint) {
        let trace = ep.trace();
        for (train, control) in self.trains.iter().zip(&mut self.controls) {
            if train.count > 1 {
                *control = train.flow.control;
                let segment = train.segment as u16;
                control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
            }
        }
        let mut at = 0;
        while let Some(first) = self.trains.get(at) {
            let lane = &first.flow.lane;
            let same = self.trains[at..].iter().zip(&self.controls[at..]);
            let messages = same.take_while(|(train, _)| train.flow.lane.shares_socket(lane)).map(
                |(train, control)| Outgoing {
                    to: &train.flow.to,
                    control: if train.count > 1 { control } else { &train.flow.control },
                    bytes: &self.bytes[train.range()],
                },
            );
            match udp::send(lane.fd(), messages) {
                Ok(sent) => {
                    for train in &self.trains[at..at + sent] {
                        account(ep, train, &self.bytes[train.range()], trace.as_deref());
                    }
                    at += sent;
                }
                Err(error) => {
                    let bytes = &mut self.bytes[first.range()];
                    refused(ep, first, bytes, &error, trace.as_deref());
                    at += 1;
                }
            }
        }
        self.trains.clear();
        self.used = 0;
    }
}

fn account(ep: &Endpoint, train: &Train, bytes: &[u8], trace: Option<&Trace>) {
    let stats = ep.stats();
    add(&stats.tx_trains, 1);
    add(&stats.tx_datagrams, train.count as u64);
    add(&stats.tx_bytes, train.len as u64);
    let Some(trace) = trace else { return };
    let head_len = train.flow.head.as_ref().map_or(0, Head::len);
    for (index, datagram) in bytes.chunks(train.segment).enumerate() {
        trace.record(&Traced {
            src: train.flow.path.src,
            dst: train.flow.path.dst,
            udp_src: train.flow.source_port,
            traffic_class: train.flow.path.traffic_class,
            hop_limit: match train.flow.path.hop_limit {
                0 => 64,
                limit => limit,
            },
            identification: if head_len == 0 { index as u16 } else { 0 },
            datagram: datagram.get(head_len..).unwrap_or_default(),
        });
    }
}

/// Deals with a train that the kernel would not take. Where it takes its datagrams one by one, it
/// was the segmentation that it refused (no checksum offload: EIO; segment over the path's MTU or
/// an old kernel's limits: EINVAL), and the socket sends no more trains.
fn refused(
    ep: &Endpoint,
    train: &Train,
    bytes: &mut [u8],
    error: &io::Error,
    trace: Option<&Trace>,
) {
    let segmentation = matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL));
    if train.count == 1 || !segmentation {
        ep.stats().lost(error, train.count as u64);
        return;
    }
    let mut taken = false;
    for datagram in bytes.chunks_mut(train.segment) {
        // A lone datagram carries identification 0, as frames do in any case.
        if train.flow.head.is_none() {
            let (transport, icrc) = datagram.split_at_mut(datagram.len() - ICRC_LEN);
            icrc.copy_from_slice(&train.flow.crc.icrc(0, transport).to_le_bytes());
        }
        let lone = Train {
            flow: train.flow.clone(),
            headers: train.headers,
            start: 0,
            len: datagram.len(),
            segment: datagram.len(),
            count: 1,
            open: false,
        };
        let message = Outgoing { to: &lone.flow.to, control: &lone.flow.control, bytes: datagram };
        match udp::send(lone.flow.lane.fd(), std::iter::once(message)) {
            Ok(_) => {
                taken = true;
                account(ep, &lone, datagram, trace);
            }
            Err(error) => ep.stats().lost(&error, 1),
        }
    }
    if taken {
        train.flow.lane.gso.store(false, Relaxed);
        add(&ep.stats().gso_refusals, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Path;
    use std::convert::Infallible;
    use std::net::{Ipv4Addr, UdpSocket};
    use wire::icrc::{Addresses, compute};
    use wire::{Bth, Opcode, Operation, Position, Psn, Service};

    #[test]
    fn refused_trains_go_as_single_datagrams_with_their_own_icrc() {
        let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ep = Endpoint::new(None, None, peer.local_addr().unwrap().port()).unwrap();
        let ip = Ipv4Addr::LOCALHOST;
        let path = Path {
            src: ip.into(),
            dst: ip.into(),
            scope_id: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            ethernet: None,
        };
        let flow = ep.flow(path, 2).unwrap();
        // Without checksums there is no segmentation: EINVAL.
        udp::set_option(flow.0.lane.fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let headers = Headers::new(Bth {
            opcode: Opcode {
                service: Service::Uc,
                operation: Operation::Send,
                position: Position::Middle,
                imm: false,
                invalidate: false,
            },
            solicited: false,
            migrated: false,
            pad: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest_qp: 2,
            ack_req: false,
            psn: Psn::new(0),
        });
        let mut batch = Batch::new().unwrap();
        for refusals_and_trains in [(1, 5), (1, 10)] {
            for fill in 0..5u8 {
                let mut write = |out: &mut [u8], _: &mut Fold| {
                    out.fill(fill);
                    Ok::<_, Infallible>(())
                };
                let Ok(()) = batch.packet(&ep, &flow, &headers, 256, &mut write);
            }
            batch.flush(&ep);
            let stats = ep.stats();
            let counted = (stats.gso_refusals.load(Relaxed), stats.tx_trains.load(Relaxed));
            assert_eq!(counted, refusals_and_trains, "refused once, then not tried again");
            for fill in 0..5u8 {
                let mut bytes = [0; 2048];
                let (len, from) = peer.recv_from(&mut bytes).unwrap();
                let (transport, icrc) = bytes[..len].split_last_chunk::<ICRC_LEN>().unwrap();
                assert_eq!(transport[12..], [fill; 256]);
                let right = compute(Addresses::V4(ip, ip), from.port(), 0, transport);
                assert_eq!(u32::from_le_bytes(*icrc), right, "packet {fill}");
            }
        }
    }
}
