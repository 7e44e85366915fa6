//! Where packets go: a path through the IP network and the source port that a queue pair's packets
//! leave from.

use crate::addresses::neighbour::is_here;
use crate::framing::{Ethernet, Head};
use crate::in_use::InUse;
use crate::lan::Lan;
use crate::socket::cmsg::Control;
use crate::socket::name::Name;
use crate::socket::ports::{Destination, Lane, Ports};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use wire::QPN_INDEX_BITS;
use wire::icrc::{Addresses, FlowCrc};

/// A path between two addresses, with what the IP header says besides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// Source, an address of this host. IPv4-mapped addresses, as GIDs have them, count as IPv4.
    pub src: IpAddr,
    /// Destination, of the same family.
    pub dst: IpAddr,
    /// Interface to leave by, for link-local IPv6 and multicast destinations; otherwise 0.
    pub scope_id: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 leaves it to the kernel.
    pub hop_limit: u8,
    /// IPv6 flow label (20 bits), which also chooses the source port as Linux does it; 0 leaves
    /// both to the endpoint.
    pub flow_label: u32,
    /// On an [`Endpoint`](crate::Endpoint) of an Ethernet: what frames carry. Without it packets
    /// leave through the host.
    pub ethernet: Option<Ethernet>,
}

/// A path together with the socket whose source port its packets carry. Clones share both, and so
/// do others that are made along the same path from the same port. The source port goes back when
/// the last of them is dropped.
#[derive(Clone)]
pub struct Flow(
    pub(crate) Arc<FlowState>,
    #[expect(dead_code, reason = "by it the users of each lane are counted")] Arc<Lane>,
);

/// The flows of one endpoint: what packets along one path to one process have in common, however
/// many queue pairs send there. A flow is told by its path, the one that carries it, the slot of
/// the process at its end, and the address of its lane, which no other has while the flow is in
/// use.
pub(crate) type Flows = InUse<(Path, Path, u32, usize), FlowState>;

pub(crate) struct FlowState {
    pub(crate) path: Path,
    pub(crate) crc: FlowCrc,
    pub(crate) lane: Arc<Lane>,
    pub(crate) to: Name,
    /// Control messages of a lone datagram.
    pub(crate) control: Control,
    /// What stands in front of each packet, where packets travel as frames.
    pub(crate) head: Option<Head>,
    /// UDP source port that the packets show.
    pub(crate) source_port: u16,
    slot: u32,
}

impl Flow {
    pub(crate) fn new(
        (flows, ports): (&Flows, &Ports),
        lan: Option<&Lan>,
        path: Path,
        dest_qpn: u32,
        port: u16,
    ) -> io::Result<Flow> {
        let path = Path { src: path.src.to_canonical(), dst: path.dst.to_canonical(), ..path };
        let addresses = Addresses::new(path.src, path.dst).ok_or_else(|| {
            let message = format!(
                "source {} and destination {} are of different IP families; choose a source GID \
                 of the destination's family",
                path.src, path.dst
            );
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?;
        let slot = dest_qpn >> QPN_INDEX_BITS;
        let outer = match &path.ethernet {
            Some(ethernet) => carrier(lan, ethernet)?,
            None => path,
        };
        let destination = Destination { ip: outer.dst, scope_id: outer.scope_id, slot };
        let label = outer.flow_label & 0xf_ffff;
        let preferred = (label != 0).then(|| source_port(label));
        let stays = path.ethernet.is_some()
            || is_here(outer.dst, outer.src, outer.scope_id).unwrap_or(false);
        let home = stays.then(|| ports.home(outer.dst.is_ipv6())).flatten();
        let lane = home.map_or_else(|| ports.get(destination, preferred), Ok)?;
        let state = flows.get((path, outer, slot, Arc::as_ptr(&lane).addr()), || {
            let wanted = path.ethernet.map_or(0, |ethernet| ethernet.udp_src);
            let source_port = if wanted == 0 { lane.port() } else { wanted };
            let crc = FlowCrc::new(addresses, source_port);
            let to = Name::new(outer.dst, port, outer.scope_id);
            let head =
                path.ethernet.map(|ethernet| Head::new(&ethernet, &path, addresses, source_port));
            let (control, lane) = (control(&outer), lane.clone());
            FlowState { path, crc, lane, to, control, head, source_port, slot }
        });
        Ok(Flow(state, lane))
    }

    /// The path, its addresses in canonical form.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// UDP source port of this flow's packets.
    pub fn source_port(&self) -> u16 {
        self.0.source_port
    }

    /// Whether packets to this queue pair number may use this flow: those to another slot (the bits
    /// from 14 up) may not, else a receiver's kernel could give them to the wrong process. Who
    /// sends datagrams to many queue pairs asks this.
    pub fn serves(&self, dest_qpn: u32) -> bool {
        dest_qpn >> QPN_INDEX_BITS == self.0.slot
    }
}

/// The path on the loopback interface that carries frames of an Ethernet.
fn carrier(lan: Option<&Lan>, ethernet: &Ethernet) -> io::Result<Path> {
    let lan = lan.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "the endpoint is on no Ethernet")
    })?;
    let (dst, scope_id) = lan.way(ethernet.dst);
    Ok(Path {
        src: lan.address().into(),
        dst: dst.into(),
        scope_id,
        traffic_class: 0,
        hop_limit: 0,
        flow_label: 0,
        ethernet: None,
    })
}

/// Source port for a flow label, as `rdma_flow_label_to_udp_sport` of Linux makes it.
fn source_port(label: u32) -> u16 {
    ((label & 0x3fff) ^ (label >> 14)) as u16 | 0xC000
}

/// The control messages of a datagram on `path`, which is not of an Ethernet.
pub(crate) fn control(path: &Path) -> Control {
    let mut control = Control::new();
    let traffic_class = i32::from(path.traffic_class).to_ne_bytes();
    let hop_limit = i32::from(path.hop_limit).to_ne_bytes();
    match path.src {
        IpAddr::V4(src) => {
            // in_pktinfo: interface index, source address, destination (not used on sending).
            let mut info = [0; 12];
            info[..4].copy_from_slice(&path.scope_id.to_ne_bytes());
            info[4..8].copy_from_slice(&src.octets());
            control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            control.push(libc::IPPROTO_IP, libc::IP_TOS, &traffic_class);
            if path.hop_limit != 0 {
                control.push(libc::IPPROTO_IP, libc::IP_TTL, &hop_limit);
            }
        }
        IpAddr::V6(src) => {
            // in6_pktinfo: source address, interface index.
            let mut info = [0; 20];
            info[..16].copy_from_slice(&src.octets());
            info[16..].copy_from_slice(&path.scope_id.to_ne_bytes());
            control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &traffic_class);
            if path.hop_limit != 0 {
                control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hop_limit);
            }
            if path.flow_label != 0 {
                let label = (path.flow_label & 0xf_ffff).to_be_bytes();
                control.push(libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO, &label);
            }
        }
    }
    control
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ROCE_PORT;

    fn path(src: &str, dst: &str) -> Path {
        Path {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            scope_id: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            ethernet: None,
        }
    }

    #[test]
    fn flow_labels_choose_the_port_that_linux_would() {
        assert_eq!(source_port(0x1), 0xC001);
        assert_eq!(source_port(0xf_ffff), 0xC000 | (0x3fff ^ 0x3f));
    }

    #[test]
    fn mapped_addresses_count_as_ipv4() {
        let (flows, ports) = Default::default();
        let path = path("::ffff:127.0.0.1", "127.0.0.1");
        let flow = Flow::new((&flows, &ports), None, path, 5 << QPN_INDEX_BITS, ROCE_PORT).unwrap();
        assert!(flow.path().src.is_ipv4());
        assert!(flow.serves(5 << QPN_INDEX_BITS | 77));
        assert!(!flow.serves(6 << QPN_INDEX_BITS));
    }

    #[test]
    fn mixed_families_are_refused() {
        let (flows, ports) = Default::default();
        let path = path("127.0.0.1", "::1");
        let Err(error) = Flow::new((&flows, &ports), None, path, 2, ROCE_PORT) else {
            panic!("accepted");
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// All packets leave from one socket.
    fn home() -> Ports {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        Ports::with_home(Some(std::os::fd::AsFd::as_fd(&socket)), None).unwrap()
    }

    #[test]
    fn who_sends_along_one_path_shares_its_flow() {
        let (flows, ports) = (Flows::default(), home());
        let flow = |path, qpn| Flow::new((&flows, &ports), None, path, qpn, ROCE_PORT).unwrap();
        let same = |one: &Flow, other: &Flow| Arc::ptr_eq(&one.0, &other.0);
        let (to, slot) = (path("127.0.0.1", "127.0.0.1"), 5 << QPN_INDEX_BITS);
        let first = flow(to, slot | 7);
        assert!(same(&first, &flow(to, slot | 8)));
        assert!(!same(&first, &flow(path("127.0.0.1", "127.0.0.2"), slot)), "another address");
        assert!(!same(&first, &flow(to, 6 << QPN_INDEX_BITS)), "another process");
        assert!(!same(&first, &flow(Path { traffic_class: 32, ..to }, slot)), "another class");
    }

    #[test]
    fn source_ports_stay_apart() {
        let (flows, ports) = <(Flows, Ports)>::default();
        let to = path("127.0.0.1", "127.0.0.1");
        let flow = || Flow::new((&flows, &ports), None, to, 5 << QPN_INDEX_BITS, ROCE_PORT);
        let (one, other) = (flow().unwrap(), flow().unwrap());
        assert_ne!(one.source_port(), other.source_port());
    }
}
