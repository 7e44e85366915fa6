//! What a device and its ports say of themselves: limits, state, addresses.

use crate::context::Context;
use crate::error::{Error, Result, check};
use crate::gid::Gid;
use std::mem::MaybeUninit;
use verbs_sys::flags::{GID_TYPE_IB, GID_TYPE_ROCE_V1, GID_TYPE_ROCE_V2, LINK_LAYER_ETHERNET};
use verbs_sys::{ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_port_attr};

/// A message's largest packet payload on a path (`enum ibv_mtu`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "u32", try_from = "u32")
)]
#[allow(missing_docs, reason = "the names say the bytes")]
pub enum Mtu {
    B256 = 1,
    B512 = 2,
    B1024 = 3,
    B2048 = 4,
    B4096 = 5,
}

impl Mtu {
    const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// Bytes of payload a packet carries at most.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }

    fn from_raw(raw: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|&mtu| mtu as u32 == raw)
    }
}

impl From<Mtu> for u32 {
    fn from(mtu: Mtu) -> u32 {
        mtu.bytes()
    }
}

impl TryFrom<u32> for Mtu {
    type Error = Error;
    /// From a number of bytes: 256, 512, 1024, 2048 or 4096.
    fn try_from(bytes: u32) -> Result<Mtu> {
        Mtu::ALL
            .into_iter()
            .find(|mtu| mtu.bytes() == bytes)
            .ok_or(Error::Argument("an MTU is 256, 512, 1024, 2048 or 4096 bytes"))
    }
}

/// Limits and identity of a device (`struct ibv_device_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Firmware version.
    pub fw_ver: String,
    /// GUID that all ports of the device share.
    pub node_guid: u64,
    /// PCI vendor of the device, or an OUI.
    pub vendor_id: u32,
    /// Part number of that vendor.
    pub vendor_part_id: u32,
    /// Longest registration in bytes.
    pub max_mr_size: u64,
    /// Queue pairs at one time.
    pub max_qp: u32,
    /// Work requests in one queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of one work request.
    pub max_sge: u32,
    /// Completions in one queue.
    pub max_cqe: u32,
    /// READs and atomics that a queue pair serves at once.
    pub max_qp_rd_atom: u32,
    /// READs and atomics that a queue pair has outstanding at once.
    pub max_qp_init_rd_atom: u32,
    /// Ports, numbered from 1.
    pub phys_port_cnt: u8,
}

/// State of a port (`enum ibv_port_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of ibv_query_port(3)")]
pub enum PortState {
    Nop = 0,
    Down = 1,
    Init = 2,
    Armed = 3,
    Active = 4,
    ActiveDefer = 5,
}

/// A port (`struct ibv_port_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Whether it is up.
    pub state: PortState,
    /// Largest MTU in use now.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Whether the port is Ethernet, so speaks RoCE.
    pub ethernet: bool,
}

/// What a GID table entry is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE version 1: Ethernet frames.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
    /// The library does not say.
    Unknown,
}

/// One used entry of a port's GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GidEntry {
    /// Place in the table.
    pub index: u8,
    /// The identifier.
    pub gid: Gid,
    /// Its use.
    pub gid_type: GidType,
}

impl Context {
    /// Limits and identity.
    pub fn device_attr(&self) -> Result<DeviceAttr> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open and `attr` has the size that verbs.h gives the struct.
        let value = unsafe {
            (self.inner.functions().ibv_query_device)(self.inner.raw.as_ptr(), attr.as_mut_ptr())
        };
        check("ibv_query_device", value)?;
        // SAFETY: every bit pattern, the zeroes it began with included, is a value of the struct.
        let attr = unsafe { attr.assume_init() };
        let unsigned = |number: libc::c_int| number.max(0) as u32;
        let firmware: Vec<u8> =
            attr.fw_ver.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        Ok(DeviceAttr {
            fw_ver: String::from_utf8_lossy(&firmware).into_owned(),
            node_guid: u64::from_be(attr.node_guid),
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            max_mr_size: attr.max_mr_size,
            max_qp: unsigned(attr.max_qp),
            max_qp_wr: unsigned(attr.max_qp_wr),
            max_sge: unsigned(attr.max_sge),
            max_cqe: unsigned(attr.max_cqe),
            max_qp_rd_atom: unsigned(attr.max_qp_rd_atom),
            max_qp_init_rd_atom: unsigned(attr.max_qp_init_rd_atom),
            phys_port_cnt: attr.phys_port_cnt,
        })
    }

    /// State of port `port`, counted from 1.
    pub fn port_attr(&self, port: u8) -> Result<PortAttr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open; the function fills at most the fields up to
        // `port_cap_flags2`.
        let value = unsafe {
            (self.inner.functions().ibv_query_port)(self.inner.raw.as_ptr(), port, &mut attr)
        };
        check("ibv_query_port", value)?;
        Ok(PortAttr {
            state: [
                PortState::Nop,
                PortState::Down,
                PortState::Init,
                PortState::Armed,
                PortState::Active,
                PortState::ActiveDefer,
            ]
            .into_iter()
            .find(|&state| state as u32 == attr.state)
            .unwrap_or(PortState::Nop),
            active_mtu: Mtu::from_raw(attr.active_mtu).unwrap_or(Mtu::B256),
            gid_tbl_len: attr.gid_tbl_len.max(0) as u32,
            max_msg_sz: attr.max_msg_sz,
            lid: attr.lid,
            ethernet: attr.link_layer == LINK_LAYER_ETHERNET,
        })
    }

    /// The used entries of a port's GID table, in table order.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>> {
        let length = self.port_attr(port)?.gid_tbl_len.min(256);
        Ok((0..length).filter_map(|index| self.gid(port, index as u8)).collect())
    }

    /// Entry `index` of the GID table; `None` when it is unused.
    fn gid(&self, port: u8, index: u8) -> Option<GidEntry> {
        if let Some(query) = self.inner.functions().query_gid_ex {
            let mut entry = ibv_gid_entry::default();
            // SAFETY: the context is open and the size passed is that of `entry`.
            let value = unsafe {
                query(
                    self.inner.raw.as_ptr(),
                    port.into(),
                    index.into(),
                    &mut entry,
                    0,
                    size_of::<ibv_gid_entry>(),
                )
            };
            let gid = Gid(entry.gid.raw);
            let gid_type = match entry.gid_type {
                GID_TYPE_IB => GidType::Ib,
                GID_TYPE_ROCE_V1 => GidType::RoceV1,
                GID_TYPE_ROCE_V2 => GidType::RoceV2,
                _ => GidType::Unknown,
            };
            return (value == 0 && !gid.is_zero()).then_some(GidEntry { index, gid, gid_type });
        }
        let mut raw = ibv_gid::default();
        // SAFETY: the context is open and `raw` is the union's place.
        let value = unsafe {
            (self.inner.functions().ibv_query_gid)(
                self.inner.raw.as_ptr(),
                port,
                index.into(),
                &mut raw,
            )
        };
        let gid = Gid(raw.raw);
        (value == 0 && !gid.is_zero()).then_some(GidEntry {
            index,
            gid,
            gid_type: GidType::Unknown,
        })
    }

    /// The entry to use when the program has no preference: RoCEv2 over IPv4, then RoCEv2 over a
    /// routable IPv6 address, then whatever comes first.
    pub fn default_gid(&self, port: u8) -> Result<GidEntry> {
        let rank = |entry: &GidEntry| match (entry.gid_type, entry.gid.ip()) {
            (GidType::RoceV2, std::net::IpAddr::V4(_)) => 0,
            (GidType::RoceV2, std::net::IpAddr::V6(ip)) if !ip.is_unicast_link_local() => 1,
            (GidType::RoceV2, _) => 2,
            (GidType::Ib | GidType::Unknown, _) => 3,
            (GidType::RoceV1, _) => 4,
        };
        // min_by_key keeps the first of equals, so table order decides among equals.
        let gids = self.gids(port)?;
        gids.into_iter().min_by_key(rank).ok_or(Error::NoGid { port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_counts_bytes() {
        assert_eq!(Mtu::B256.bytes(), 256);
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!(Mtu::try_from(1024).unwrap(), Mtu::B1024);
        assert!(Mtu::try_from(1500).is_err());
    }
}
