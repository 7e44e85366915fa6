//! Whole Ethernet frames on a network interface, for raw packet queue pairs.
//!
//! A [`FramePort`] sends; a [`FrameTap`] sees what passes the interface in both directions, the
//! frames of other processes of the host included, but on loopback each frame once. Both need
//! CAP_NET_RAW in the user namespace of the network. VLAN tags are where they were on the wire,
//! although the kernel keeps them beside the frame. What the kernel leaves to a NIC is not done for
//! it: local traffic may show unfinished checksums and frames longer than the MTU.

use crate::Fill;
use crate::packet::{self, Bound};
use crate::socket::buffer;
use crate::socket::cmsg::Control;
use crate::socket::name::Name;
use crate::socket::ports::set_buffer;
use crate::socket::udp::{self, MAX_RECEIVE, MAX_SEND, Outgoing, SLOT_BYTES, Slots};
use crate::stats::{Stats, add};
use descriptors::Kept;
use mm::guard::fold::Fold;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use wire::ethernet::{ETHERTYPE_VLAN, Mac, VLAN_AT, VLAN_LEN, tag_bytes};

/// Bytes of frames staged before they are sent.
const STAGE_BYTES: usize = 128 << 10;
/// Bytes that may wait on their way out.
const SEND_BUFFER_BYTES: i32 = 4 << 20;
/// Bytes that may wait for the receiver, before the kernel doubles it.
const RECEIVE_BUFFER_BYTES: i32 = 8 << 20;

// linux/if_packet.h
const PACKET_AUXDATA: i32 = 8;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
const PACKET_OUTGOING: u8 = 4;
const ETH_P_ALL: u16 = 3;

fn packet_socket(protocol: u16, ifindex: u32) -> io::Result<(Kept, Bound)> {
    // Receiving begins with the bind: of all interfaces the socket would otherwise see a moment's
    // frames.
    let fd = socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None::<Protocol>,
    )?;
    let fd = Kept::new(fd);
    let bound = packet::bind(fd.as_fd(), ifindex, protocol)?;
    Ok((fd, bound))
}

/// An interface as the way out for frames.
#[derive(Debug)]
pub struct FramePort {
    fd: Kept,
    ifindex: u32,
    mac: Mac,
}

impl FramePort {
    /// Opens the interface.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW, ENODEV without such an interface, EOPNOTSUPP for one that carries
    /// no Ethernet frames.
    pub fn open(ifindex: u32) -> io::Result<FramePort> {
        let (fd, bound) = packet_socket(0, ifindex)?;
        set_buffer(fd.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER_BYTES)?;
        Ok(FramePort { fd, ifindex, mac: bound.mac })
    }

    /// Address of the interface.
    pub fn mac(&self) -> Mac {
        self.mac
    }
}

/// Frames on their way out, used by one caller at a time. What was not flushed when it is dropped
/// is not sent.
#[derive(Debug, Default)]
pub struct FrameBatch {
    bytes: Vec<u8>,
    /// Where each frame ends.
    ends: Vec<usize>,
}

impl FrameBatch {
    /// An empty one with room for all that it stages.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new() -> io::Result<FrameBatch> {
        Ok(FrameBatch { bytes: buffer::empty(STAGE_BYTES)?, ends: buffer::empty(MAX_SEND)? })
    }

    /// Appends a frame of `len` bytes that `fill` writes, sending those before it where there is no
    /// room.
    ///
    /// # Errors
    /// Those of `fill`; the frame is not sent then.
    pub fn frame<E>(
        &mut self,
        port: &FramePort,
        stats: &Stats,
        len: usize,
        fill: &mut Fill<'_, E>,
    ) -> Result<(), E> {
        if self.bytes.len() + len > STAGE_BYTES || self.ends.len() == MAX_SEND {
            self.flush(port, stats);
        }
        let start = self.bytes.len();
        self.bytes.resize(start + len, 0);
        let filled = fill(&mut self.bytes[start..], &mut Fold::off());
        match filled {
            Ok(()) => self.ends.push(self.bytes.len()),
            Err(_) => self.bytes.truncate(start),
        }
        filled
    }

    /// Sends all. What the kernel refuses is counted and lost.
    pub fn flush(&mut self, port: &FramePort, stats: &Stats) {
        let mut first = 0;
        while first < self.ends.len() {
            let frames = (first..self.ends.len()).map(|index| {
                let start = if index == 0 { 0 } else { self.ends[index - 1] };
                Outgoing {
                    to: &Name::EMPTY,
                    control: &NO_CONTROL,
                    bytes: &self.bytes[start..self.ends[index]],
                }
            });
            match udp::send(port.fd.as_fd(), frames) {
                Ok(sent) => {
                    add(&stats.tx_frames, sent as u64);
                    first += sent;
                }
                Err(error) => {
                    stats.lost(&error, 1);
                    first += 1;
                }
            }
        }
        self.bytes.clear();
        self.ends.clear();
    }
}

static NO_CONTROL: Control = Control::new();

/// An interface as it is listened to.
#[derive(Debug)]
pub struct FrameTap {
    fd: Kept,
    ifindex: u32,
    bound: Bound,
    /// What was asked to be let in so far.
    groups: AtomicBool,
    all: AtomicBool,
}

impl FrameTap {
    /// Listens to the interface of `port`.
    ///
    /// # Errors
    /// As [`FramePort::open`].
    pub fn open(port: &FramePort) -> io::Result<FrameTap> {
        let (fd, bound) = packet_socket(ETH_P_ALL, port.ifindex)?;
        udp::set_option(fd.as_fd(), libc::SOL_PACKET, PACKET_AUXDATA, 1)?;
        set_buffer(fd.as_fd(), libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BUFFER_BYTES)?;
        let (groups, all) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(FrameTap { fd, ifindex: port.ifindex, bound, groups, all })
    }

    /// Lets in frames to any group, or all that pass by: whatever the interface would not take for
    /// itself. It stays so until the tap is dropped. An interface that cannot only goes on as it
    /// is.
    pub fn open_to(&self, groups: bool, all: bool) {
        for (wanted, done, kind) in [
            (groups, &self.groups, libc::PACKET_MR_ALLMULTI),
            (all, &self.all, libc::PACKET_MR_PROMISC),
        ] {
            if wanted && !done.swap(true, Relaxed) {
                let _ = packet::join(self.fd.as_fd(), self.ifindex, kind);
            }
        }
    }

    /// The socket, which is readable while frames wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Address of the interface.
    pub fn mac(&self) -> Mac {
        self.bound.mac
    }
}

/// A frame that passed a tap.
#[derive(Clone, Copy, Debug)]
pub struct TappedFrame<'a> {
    /// The frame from its destination address on, without the frame check sequence.
    pub bytes: &'a [u8],
    /// It leaves this host. Never so on loopback.
    pub outgoing: bool,
}

/// Receive buffers for frames, used by one thread at a time.
pub struct FrameReceiver {
    slots: Slots,
    /// A frame with its tag put back.
    tagged: Vec<u8>,
}

impl FrameReceiver {
    /// Buffers for a megabyte of frames, of which only as much is touched as arrives at once.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new() -> io::Result<FrameReceiver> {
        Ok(FrameReceiver { slots: Slots::new()?, tagged: buffer::empty(SLOT_BYTES)? })
    }

    /// Hands up to `max` waiting frames to `f` in order. Frames too long for any receive request
    /// are dropped. Never waits.
    pub fn receive(&mut self, tap: &FrameTap, max: usize, f: &mut dyn FnMut(TappedFrame<'_>)) {
        let mut left = max;
        while left > 0 {
            let limit = left.min(MAX_RECEIVE);
            // A socket error means that nothing could be taken: the interface is down, or gone.
            let received = self.slots.receive(tap.fd(), limit).unwrap_or(0);
            for index in 0..received {
                let message = self.slots.get(index);
                let outgoing = is_outgoing(message.from);
                if message.cut || (outgoing && tap.bound.loopback) {
                    continue;
                }
                let bytes = match tag(message.control) {
                    Some(tag) if message.bytes.len() >= VLAN_AT => {
                        let (addresses, rest) = message.bytes.split_at(VLAN_AT);
                        self.tagged.clear();
                        self.tagged.extend_from_slice(addresses);
                        self.tagged.extend_from_slice(&tag);
                        self.tagged.extend_from_slice(rest);
                        &self.tagged
                    }
                    _ => message.bytes,
                };
                f(TappedFrame { bytes, outgoing });
            }
            left -= received;
            if received < limit {
                break;
            }
        }
    }
}

/// Whether a `sockaddr_ll` is that of a frame on its way out.
fn is_outgoing(from: &Name) -> bool {
    // sll_pkttype follows family, protocol, index and hardware type.
    from.as_bytes().get(10) == Some(&PACKET_OUTGOING)
}

/// The VLAN tag that the kernel took out of the frame, as it was on the wire.
fn tag(control: &Control) -> Option<[u8; VLAN_LEN]> {
    let aux = control.iter().find_map(|(level, kind, data)| {
        (level == libc::SOL_PACKET && kind == PACKET_AUXDATA).then_some(data)
    })?;
    let status = u32::from_ne_bytes(*aux.first_chunk()?);
    let half = |at: usize| aux.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes);
    if status & TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let told = status & TP_STATUS_VLAN_TPID_VALID != 0;
    let tpid = if told { half(18)? } else { ETHERTYPE_VLAN };
    Some(tag_bytes(tpid, half(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aux(status: u32) -> Control {
        let mut data = [0; 20];
        data[..4].copy_from_slice(&status.to_ne_bytes());
        data[16..18].copy_from_slice(&0xac0cu16.to_ne_bytes());
        data[18..].copy_from_slice(&0x88a8u16.to_ne_bytes());
        let mut control = Control::new();
        control.push(libc::SOL_PACKET, PACKET_AUXDATA, &data);
        control
    }

    #[test]
    fn tags_are_read_from_what_the_kernel_tells() {
        let both = TP_STATUS_VLAN_VALID | TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(tag(&aux(both)), Some([0x88, 0xa8, 0xac, 0x0c]));
        assert_eq!(tag(&aux(TP_STATUS_VLAN_VALID)), Some([0x81, 0, 0xac, 0x0c]));
        assert_eq!(tag(&aux(1)), None);
        assert_eq!(tag(&Control::new()), None);
    }

    /// Loopback's port, where this process may have one.
    fn loopback() -> Option<FramePort> {
        match FramePort::open(1) {
            Ok(port) => Some(port),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => None,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn there_is_no_port_without_an_interface() {
        if loopback().is_some() {
            for wrong in [0, 0x7fff_ffff, u32::MAX] {
                let error = FramePort::open(wrong).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{wrong}");
            }
        }
    }

    #[test]
    fn frames_pass_loopback_once_and_as_they_were() {
        let Some(port) = loopback() else { return };
        let tap = FrameTap::open(&port).unwrap();
        let mine = std::process::id().to_ne_bytes();
        let plain = [&[1, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5], &mine[..]].concat();
        let tags = [0x81, 0, 0xa0, 0x0c, 0x88, 0xb5];
        let tagged = [&[1, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], &tags[..], &mine].concat();
        let (mut batch, stats) = (FrameBatch::default(), Stats::default());
        for index in 0..40 {
            let frame = if index % 2 == 0 { &plain } else { &tagged };
            let mut fill = |bytes: &mut [u8], _: &mut Fold| -> Result<(), ()> {
                bytes.copy_from_slice(frame);
                Ok(())
            };
            batch.frame(&port, &stats, frame.len(), &mut fill).unwrap();
        }
        batch.flush(&port, &stats);
        assert_eq!(stats.tx_frames.load(Relaxed), 40);
        let mut receiver = FrameReceiver::new().unwrap();
        let mut seen = Vec::new();
        // Loopback delivers in another CPU's time at worst.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while seen.len() < 40 && std::time::Instant::now() < deadline {
            receiver.receive(&tap, 64, &mut |frame| {
                assert!(!frame.outgoing);
                if frame.bytes.ends_with(&mine) && frame.bytes.starts_with(&plain[..12]) {
                    seen.push(frame.bytes.to_vec());
                }
            });
            std::thread::yield_now();
        }
        assert_eq!(seen.len(), 40);
        for (index, frame) in seen.iter().enumerate() {
            assert_eq!(frame, if index % 2 == 0 { &plain } else { &tagged });
        }
        receiver.receive(&tap, 64, &mut |frame| assert!(!frame.bytes.ends_with(&mine), "once"));
    }
}
