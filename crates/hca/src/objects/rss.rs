//! Receive-side scaling: a hash over a frame's addresses and ports picks a work queue from an
//! indirection table.
//!
//! The hash is Toeplitz's as Microsoft's "RSS Hashing Functions" defines it, over source address,
//! destination address, source port, destination port, as many of them as are asked for. A frame
//! without a field that is asked for goes to the first queue of the table.

use crate::objects::wq::Wq;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use transport::{Error, Result};
use wire::frame::Frame;
use wire::ip::{Ip, PROTOCOL_TCP, PROTOCOL_UDP};

/// Length of the hash key in bytes: enough for IPv6 addresses and ports.
pub const HASH_KEY_LEN: usize = 40;
/// log2 of the most entries of an indirection table, as the kernel limits it.
pub const MAX_LOG_TABLE: u32 = 13;
/// Indirection tables of a device that it announces.
pub const MAX_TABLES: u32 = 1 << 16;

bitflags::bitflags! {
    /// What is hashed (`enum ibv_rx_hash_fields`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct HashFields: u64 {
        /// IPv4 source address.
        const SRC_IPV4 = 1;
        /// IPv4 destination address.
        const DST_IPV4 = 1 << 1;
        /// IPv6 source address.
        const SRC_IPV6 = 1 << 2;
        /// IPv6 destination address.
        const DST_IPV6 = 1 << 3;
        /// TCP source port.
        const SRC_PORT_TCP = 1 << 4;
        /// TCP destination port.
        const DST_PORT_TCP = 1 << 5;
        /// UDP source port.
        const SRC_PORT_UDP = 1 << 6;
        /// UDP destination port.
        const DST_PORT_UDP = 1 << 7;
    }
}

/// How frames are hashed (`struct ibv_rx_hash_conf`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxHash {
    fields: HashFields,
    key: [u8; HASH_KEY_LEN],
}

impl RxHash {
    /// Hashes `fields` under `key`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key of another length than [`HASH_KEY_LEN`], or for fields of both
    /// IP versions or of both TCP and UDP.
    pub fn new(fields: HashFields, key: &[u8]) -> Result<RxHash> {
        type F = HashFields;
        let key = key.try_into().map_err(|_| Error::Invalid("a Toeplitz key has 40 bytes"))?;
        let both = |a: F, b: F| fields.intersects(a) && fields.intersects(b);
        if both(F::SRC_IPV4 | F::DST_IPV4, F::SRC_IPV6 | F::DST_IPV6) {
            return Err(Error::Invalid("one hash covers IPv4 or IPv6"));
        }
        if both(F::SRC_PORT_TCP | F::DST_PORT_TCP, F::SRC_PORT_UDP | F::DST_PORT_UDP) {
            return Err(Error::Invalid("one hash covers ports of TCP or of UDP"));
        }
        Ok(RxHash { fields, key })
    }

    /// Whether it hashes nothing.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The hash of a frame, `None` where it lacks a field.
    pub fn of(&self, frame: &Frame) -> Option<u32> {
        type F = HashFields;
        let mut input = SmallVec::<[u8; 36]>::new();
        let has = |field| self.fields.contains(field);
        if self.fields.intersects(F::SRC_IPV4 | F::DST_IPV4) {
            let Some(Ip::V4(ip)) = frame.ip else { return None };
            put(&mut input, has(F::SRC_IPV4), &ip.src.octets());
            put(&mut input, has(F::DST_IPV4), &ip.dst.octets());
        }
        if self.fields.intersects(F::SRC_IPV6 | F::DST_IPV6) {
            let Some(Ip::V6(ip)) = frame.ip else { return None };
            put(&mut input, has(F::SRC_IPV6), &ip.src.octets());
            put(&mut input, has(F::DST_IPV6), &ip.dst.octets());
        }
        for (protocol, src, dst) in [
            (PROTOCOL_TCP, F::SRC_PORT_TCP, F::DST_PORT_TCP),
            (PROTOCOL_UDP, F::SRC_PORT_UDP, F::DST_PORT_UDP),
        ] {
            if self.fields.intersects(src | dst) {
                let ports =
                    frame.ports.filter(|_| frame.ip.is_some_and(|ip| ip.protocol() == protocol))?;
                put(&mut input, has(src), &ports.src.to_be_bytes());
                put(&mut input, has(dst), &ports.dst.to_be_bytes());
            }
        }
        Some(toeplitz(&self.key, &input))
    }
}

fn put(input: &mut SmallVec<[u8; 36]>, asked: bool, field: &[u8]) {
    if asked {
        input.extend_from_slice(field);
    }
}

/// For each bit of `input` that is set, the 32 bits of `key` from that place on are added up
/// without carry.
fn toeplitz(key: &[u8; HASH_KEY_LEN], input: &[u8]) -> u32 {
    let [k0, k1, k2, k3, rest @ ..] = key;
    let mut window = u64::from(u32::from_be_bytes([*k0, *k1, *k2, *k3])) << 32;
    let mut hash = 0;
    let mut next = rest.iter();
    for byte in input {
        // The window holds the 32 bits of this place and the 8 that slide in during this byte.
        window |= u64::from(next.next().copied().unwrap_or(0)) << 24;
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= (window >> 32) as u32;
            }
            window <<= 1;
        }
    }
    hash
}

/// An indirection table: work queues by the low bits of the hash.
#[derive(Debug)]
pub struct IndTable {
    wqs: Vec<Arc<Wq>>,
    users: AtomicU32,
}

impl IndTable {
    pub(crate) fn new(wqs: Vec<Arc<Wq>>) -> Result<IndTable> {
        if !wqs.len().is_power_of_two() || wqs.len() > 1 << MAX_LOG_TABLE {
            return Err(Error::Invalid("an indirection table has 2^0 to 2^13 entries"));
        }
        wqs.iter().for_each(|wq| wq.add_user());
        Ok(IndTable { wqs, users: AtomicU32::new(0) })
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.wqs.len()
    }

    /// Never: a table has an entry at least.
    pub fn is_empty(&self) -> bool {
        self.wqs.is_empty()
    }

    /// Ends the table's life.
    ///
    /// # Errors
    /// [`Error::Busy`] while a queue pair uses it.
    pub fn destroy(&self) -> Result<()> {
        if self.users.load(Relaxed) > 0 {
            return Err(Error::Busy("queue pairs still use the indirection table"));
        }
        Ok(())
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Relaxed);
    }

    pub(crate) fn drop_user(&self) {
        self.users.fetch_sub(1, Relaxed);
    }

    fn at(&self, hash: u32) -> Option<&Arc<Wq>> {
        self.wqs.get(hash as usize & (self.wqs.len() - 1))
    }
}

impl Drop for IndTable {
    fn drop(&mut self) {
        self.wqs.iter().for_each(|wq| wq.drop_user());
    }
}

/// What makes a raw packet queue pair one that only spreads what it gets.
#[derive(Clone, Debug)]
pub struct Rss {
    /// The queues that frames are spread over.
    pub table: Arc<IndTable>,
    /// What a frame's queue is chosen by.
    pub hash: RxHash,
}

impl Rss {
    /// The work queue for a frame.
    pub(crate) fn queue(&self, frame: &Frame) -> Option<&Arc<Wq>> {
        self.table.at(self.hash.of(frame).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use wire::frame::Ports;
    use wire::{ipv4, ipv6};

    /// The key of Microsoft's "Verifying the RSS Hash Calculation", and so the vectors below.
    const KEY: [u8; HASH_KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn frame(ip: Ip, src: u16, dst: u16) -> Frame {
        Frame {
            dst: [0; 6],
            src: [0; 6],
            vlan: None,
            ether_type: 0,
            ip: Some(ip),
            ports: Some(Ports { src, dst }),
        }
    }

    fn v4(src: [u8; 4], dst: [u8; 4], protocol: u8) -> Ip {
        let (src, dst) = (Ipv4Addr::from(src), Ipv4Addr::from(dst));
        Ip::V4(ipv4::Repr {
            src,
            dst,
            protocol,
            tos: 0,
            ttl: 64,
            identification: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            total_len: 0,
        })
    }

    fn v6(src: &str, dst: &str) -> Ip {
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let (src, dst) = (address(src), address(dst));
        Ip::V6(ipv6::Repr {
            src,
            dst,
            flow_label: 0,
            next_header: PROTOCOL_TCP,
            traffic_class: 0,
            hop_limit: 64,
            payload_len: 0,
        })
    }

    const ADDRESSES_4: HashFields = HashFields::SRC_IPV4.union(HashFields::DST_IPV4);
    const ADDRESSES_6: HashFields = HashFields::SRC_IPV6.union(HashFields::DST_IPV6);
    const TCP: HashFields = HashFields::SRC_PORT_TCP.union(HashFields::DST_PORT_TCP);

    fn hash(fields: HashFields, frame: &Frame) -> Option<u32> {
        RxHash::new(fields, &KEY).unwrap().of(frame)
    }

    #[test]
    fn the_published_vectors_come_out() {
        for (dst, dst_port, src, src_port, addresses, with_ports) in [
            ([161, 142, 100, 80], 1766, [66, 9, 149, 187], 2794, 0x323e_8fc2, 0x51cc_c178),
            ([65, 69, 140, 83], 4739, [199, 92, 111, 2], 14230, 0xd718_262a, 0xc626_b0ea),
            ([12, 22, 207, 184], 38024, [24, 19, 198, 95], 12898, 0xd2d0_a5de, 0x5c2b_394a),
        ] {
            let frame = frame(v4(src, dst, PROTOCOL_TCP), src_port, dst_port);
            assert_eq!(hash(ADDRESSES_4, &frame), Some(addresses));
            assert_eq!(hash(ADDRESSES_4 | TCP, &frame), Some(with_ports));
        }
        let frame = frame(v6("3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1"), 2794, 1766);
        assert_eq!(hash(ADDRESSES_6, &frame), Some(0x2cc1_8cd5));
        assert_eq!(hash(ADDRESSES_6 | TCP, &frame), Some(0x4020_7d3d));
    }

    #[test]
    fn a_frame_that_lacks_a_field_has_no_hash() {
        let udp = frame(v4([1; 4], [2; 4], PROTOCOL_UDP), 1, 2);
        assert_eq!(hash(ADDRESSES_6, &udp), None);
        assert_eq!(hash(ADDRESSES_4 | TCP, &udp), None);
        assert!(hash(ADDRESSES_4, &udp).is_some());
        let fragment = Frame { ports: None, ..udp };
        assert_eq!(hash(HashFields::DST_PORT_UDP, &fragment), None);
        assert!(hash(HashFields::DST_PORT_UDP, &udp).is_some());
    }

    #[test]
    fn fields_that_exclude_each_other_are_refused() {
        for wrong in [ADDRESSES_4 | HashFields::DST_IPV6, TCP | HashFields::SRC_PORT_UDP] {
            assert!(RxHash::new(wrong, &KEY).is_err(), "{wrong:?}");
        }
        assert!(RxHash::new(ADDRESSES_4, &KEY[1..]).is_err());
        assert!(RxHash::new(HashFields::empty(), &KEY).unwrap().is_empty());
    }
}
