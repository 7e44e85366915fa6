//! What the HCA can do: limits and port attributes, as values.

use std::net::IpAddr;
use transport::values::{Access, Gid};

/// Device attributes (`struct ibv_device_attr` and its extension).
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of the verbs manual page ibv_query_device(3)")]
pub struct DeviceAttr {
    pub name: String,
    pub fw_ver: String,
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_inline_data: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    /// Tagged buffers of a queue that matches tags.
    pub max_num_tags: u32,
    /// List operations outstanding on one.
    pub max_tag_ops: u32,
    pub max_pkeys: u32,
    pub phys_port_cnt: u32,
    /// `HCA_CAP.data_direct`: whether a Data Direct function may serve this HCA.
    pub data_direct: bool,
    /// What QUERY_VUID answers: the name by which this HCA and its Data Direct function know each
    /// other.
    pub vuid: String,
    /// Whether Address Translation Services of its PCIe function are on.
    pub ats: bool,
}

impl DeviceAttr {
    /// Attributes of the software HCA.
    pub fn new(name: &str, guid: u64) -> DeviceAttr {
        DeviceAttr {
            name: name.to_owned(),
            fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
            node_guid: guid,
            sys_image_guid: guid,
            // No assigned PCI vendor: a generic number keeps programs on plain verbs.
            vendor_id: 0,
            vendor_part_id: 0,
            hw_ver: 0,
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            max_qp: crate::adapter::directory::MAX_QPS as u32 - 1,
            max_qp_wr: 16384,
            max_sge: 32,
            max_sge_rd: 32,
            max_inline_data: 1024,
            max_cq: 1 << 16,
            max_cqe: (1 << 22) - 1,
            max_mr: transport::keys::MAX_KEYS as u32 - 1,
            max_mw: transport::keys::MAX_KEYS as u32 - 1,
            max_pd: 1 << 15,
            max_qp_rd_atom: 16,
            max_res_rd_atom: 16 * (crate::adapter::directory::MAX_QPS as u32),
            max_qp_init_rd_atom: 16,
            max_ah: 1 << 20,
            max_srq: 1 << 15,
            max_srq_wr: 32767,
            max_srq_sge: 32,
            max_num_tags: 4095,
            max_tag_ops: 1 << 14,
            max_pkeys: 1,
            phys_port_cnt: 1,
            data_direct: false,
            vuid: String::new(),
            ats: false,
        }
    }

    /// Access rights that a registration may ask for.
    pub fn mr_access(&self) -> Access {
        Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND
            | Access::ZERO_BASED
            | Access::HUGETLB
            | Access::FLUSH_GLOBAL
            | Access::RELAXED_ORDERING
    }
}

/// Port attributes (`struct ibv_port_attr`). The link layer is always Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttr {
    /// Whether an interface with an address is up.
    pub active: bool,
    /// `enum ibv_mtu` of the largest MTU.
    pub max_mtu: u32,
    /// `enum ibv_mtu` that all listed interfaces carry.
    pub active_mtu: u32,
    /// Length of the GID table.
    pub gid_tbl_len: u32,
    /// Length of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Largest message in bytes.
    pub max_msg_sz: u32,
}

/// One entry of a port's GID table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u32,
    /// The identifier.
    pub gid: Gid,
    /// The address it is made from.
    pub ip: IpAddr,
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub ifname: String,
}
