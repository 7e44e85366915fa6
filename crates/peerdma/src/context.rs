//! An opened device, what it offers, and its protection domains.

use crate::cq::{CompChannel, Cq};
use crate::error::{Error, Result, check};
use crate::ffi;
use crate::gid::Gid;
use crate::library::Library;
use crate::qp::QpBuilder;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// An opened device. Clones share it; it closes when the last object on it is gone.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<OpenDevice>,
}

pub(crate) struct OpenDevice {
    pub(crate) library: Library,
    pub(crate) raw: NonNull<ffi::Context>,
    name: String,
}

// SAFETY: every verb may be called from any thread at any time (libibverbs is thread safe), and the struct itself is
// not changed after opening.
unsafe impl Send for OpenDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenDevice {}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: the last owner; every object on the context held a reference and is destroyed.
        unsafe { (self.library.inner.functions.ibv_close_device)(self.raw.as_ptr()) };
    }
}

impl OpenDevice {
    pub(crate) fn functions(&self) -> &ffi::Functions {
        &self.library.inner.functions
    }

    pub(crate) fn ops(&self) -> &ffi::ContextOps {
        // SAFETY: the context lives as long as `self`; its operations are set once, at opening.
        unsafe { &(*self.raw.as_ptr()).ops }
    }
}

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
    /// Bytes of payload a packet carries at most.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }

    fn from_raw(raw: u32) -> Option<Mtu> {
        [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]
            .into_iter()
            .find(|&mtu| mtu as u32 == raw)
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
        [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]
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
    /// Node GUID.
    pub node_guid: u64,
    /// PCI vendor of the device, or an OUI.
    pub vendor_id: u32,
    /// Part number of that vendor.
    pub vendor_part_id: u32,
    /// Longest registration in bytes.
    pub max_mr_size: u64,
    /// Queue pairs.
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
    /// State.
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
    /// The library cannot tell.
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
    /// Takes over a raw context; `None` when it is null.
    ///
    /// # Safety
    /// `raw` is null or a context of `library` that nobody else closes.
    pub(crate) unsafe fn from_raw(
        library: Library,
        raw: *mut ffi::Context,
        name: String,
    ) -> Option<Context> {
        Some(Context { inner: Arc::new(OpenDevice { library, raw: NonNull::new(raw)?, name }) })
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Limits and identity.
    pub fn device_attr(&self) -> Result<DeviceAttr> {
        let mut attr = MaybeUninit::<ffi::DeviceAttr>::zeroed();
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
        let mut attr = ffi::PortAttr::default();
        // SAFETY: the context is open; the function fills at most the fields before `port_cap_flags2`.
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
            ethernet: attr.link_layer == 2,
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
            let mut entry = ffi::GidEntry::default();
            // SAFETY: the context is open and the size passed is that of `entry`.
            let value = unsafe {
                query(
                    self.inner.raw.as_ptr(),
                    port.into(),
                    index.into(),
                    &mut entry,
                    0,
                    size_of::<ffi::GidEntry>(),
                )
            };
            let gid = Gid::from_raw(entry.gid);
            let gid_type = match entry.gid_type {
                0 => GidType::Ib,
                1 => GidType::RoceV1,
                2 => GidType::RoceV2,
                _ => GidType::Unknown,
            };
            return (value == 0 && !gid.is_zero()).then_some(GidEntry { index, gid, gid_type });
        }
        let mut raw = [0; 2];
        // SAFETY: the context is open and `raw` holds the 16 bytes of the union.
        let value = unsafe {
            (self.inner.functions().ibv_query_gid)(
                self.inner.raw.as_ptr(),
                port,
                index.into(),
                &mut raw,
            )
        };
        let gid = Gid::from_raw(raw);
        (value == 0 && !gid.is_zero()).then_some(GidEntry {
            index,
            gid,
            gid_type: GidType::Unknown,
        })
    }

    /// The entry to use when the program has no preference: RoCEv2 over IPv4, then RoCEv2 over a routable IPv6
    /// address, then whatever comes first.
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

    /// A protection domain: only queue pairs and memory of one domain work together.
    pub fn alloc_pd(&self) -> Result<Pd> {
        // SAFETY: the context is open.
        let raw = unsafe { (self.inner.functions().ibv_alloc_pd)(self.inner.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Pd { inner: Arc::new(Domain { context: self.clone(), raw }) })
    }

    /// A completion queue for at least `entries` completions; with a channel it can be waited for.
    pub fn create_cq(&self, entries: u32, channel: Option<&CompChannel>) -> Result<Cq> {
        Cq::create(self, entries, channel)
    }

    /// A channel on which completion queues of this device announce completions.
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        CompChannel::create(self)
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("name", &self.inner.name).finish()
    }
}

/// A protection domain. Clones share it.
#[derive(Clone)]
pub struct Pd {
    pub(crate) inner: Arc<Domain>,
}

pub(crate) struct Domain {
    pub(crate) context: Context,
    pub(crate) raw: NonNull<ffi::Pd>,
}

// SAFETY: see OpenDevice; the handle is only passed to verbs.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: the last owner; regions and queue pairs of the domain held references and are destroyed.
        unsafe { (self.context.inner.functions().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pd").field("device", &self.inner.context.name()).finish()
    }
}

impl Pd {
    /// The device of the domain.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Begins a reliable-connection queue pair whose completions go to the given queues (which may be the same).
    pub fn qp(&self, send_cq: &Cq, recv_cq: &Cq) -> QpBuilder {
        QpBuilder::new(self, send_cq, recv_cq)
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
