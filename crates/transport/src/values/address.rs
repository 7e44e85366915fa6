//! Addresses: where a connection or a datagram goes.

use wire::ethernet::Mac;

/// A global identifier: on RoCEv2 an IPv6 address or a mapped IPv4 address.
pub type Gid = [u8; 16];

/// Address vector (`struct ibv_ah_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AhAttr {
    /// A GRH follows; must be set on RoCE.
    pub is_global: bool,
    /// Destination GID.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// LID, unused on RoCE.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits.
    pub src_path_bits: u8,
    /// Static rate code.
    pub static_rate: u8,
    /// Port, from 1.
    pub port_num: u8,
    /// Hardware address of the next hop, on an Ethernet of the front end's.
    pub dmac: Mac,
    /// UDP source port there; 0 leaves it to the link.
    pub udp_src: u16,
}
