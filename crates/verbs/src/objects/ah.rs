//! Address handles, and how to answer the sender of a datagram.

use crate::base::ffi::{Errno, INVALID, Res, arg, arg_mut, count, last_errno, pointer, status};
use crate::base::object::{Object, give, object, take_back};
use crate::objects::context::Context;
use crate::objects::pd::Pd;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use verbs_sys::*;
use wire::grh::{Grh, GrhError};
use wire::ip::Addresses;
use wire::{GRH_LEN, ipv6};

/// An address handle.
#[repr(C)]
pub struct Ah {
    c: UnsafeCell<ibv_ah>,
    hca: Arc<hca::AddressHandle>,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Ah {
    type C = ibv_ah;
}

impl Ah {
    /// The HCA's handle.
    pub fn hca(&self) -> &Arc<hca::AddressHandle> {
        &self.hca
    }
}

/// An address from C.
pub fn attr_from_c(attr: &ibv_ah_attr) -> hca::AhAttr {
    hca::AhAttr {
        is_global: attr.is_global != 0,
        dgid: attr.grh.dgid.raw,
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        port_num: attr.port_num,
        ..hca::AhAttr::default()
    }
}

/// An address to C.
pub fn attr_to_c(attr: &hca::AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: attr.dgid },
            flow_label: attr.flow_label,
            sgid_index: attr.sgid_index,
            hop_limit: attr.hop_limit,
            traffic_class: attr.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global.into(),
        port_num: attr.port_num,
    }
}

fn create(pd: &Pd, attr: &ibv_ah_attr) -> Res<*mut ibv_ah> {
    let context = pd.context()?;
    let hca = context.device().create_ah(pd.hca()?, &attr_from_c(attr))?;
    let c = ibv_ah { context: context.as_c(), pd: pd.as_c(), handle: 0 };
    Ok(give(Box::new(Ah { c: UnsafeCell::new(c), hca })))
}

/// `ibv_create_ah(3)`.
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: the program passes a live PD and a live struct.
    pointer(|| unsafe { create(object::<Pd>(pd)?, arg(attr)?) })
}

/// `ibv_destroy_ah(3)`. Requests already posted keep the destination.
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    status(|| {
        // SAFETY: the program passes a live handle and uses it no more; it came from `give`.
        unsafe {
            object::<Ah>(ah)?.hca.destroy();
            drop(take_back::<Ah>(ah));
        }
        Ok(())
    })
}

/// Source, destination and the rest of what a reply needs, from the 40 bytes before a datagram.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    src: hca::Gid,
    dst: hca::Gid,
    hop_limit: u8,
    traffic_class: u8,
}

/// Reads the network header.
fn received(bytes: &[u8; GRH_LEN]) -> Res<Received> {
    let grh = Grh::parse(bytes).map_err(|error| match error {
        GrhError::NextHeader(_) if ipv6::Repr::of_fields(bytes).dst.is_multicast() => INVALID,
        GrhError::NextHeader(_) | GrhError::Version => Errno(libc::EPROTONOSUPPORT),
    })?;
    let (src, dst, to_group) = match grh.addresses {
        Addresses::V4(src, dst) => (src.to_ipv6_mapped(), dst.to_ipv6_mapped(), dst.is_multicast()),
        Addresses::V6(src, dst) => (src, dst, dst.is_multicast()),
    };
    if to_group {
        return Err(INVALID);
    }
    Ok(Received {
        src: src.octets(),
        dst: dst.octets(),
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
    })
}

fn init_from_wc(
    context: &Context,
    port: u8,
    wc: &ibv_wc,
    grh: *const [u8; GRH_LEN],
) -> Res<ibv_ah_attr> {
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..Default::default()
    };
    if wc.wc_flags & hca::WcFlags::GRH.bits() == 0 {
        return Ok(attr);
    }
    // SAFETY: the completion says that the program's buffer begins with these 40 bytes.
    let bytes = unsafe { grh.as_ref() }.ok_or(INVALID)?;
    let received = received(bytes)?;
    let gids = context.device().gids(u32::from(port))?;
    let local = gids.iter().find(|entry| entry.gid == received.dst).ok_or(INVALID)?;
    attr.is_global = 1;
    attr.grh = ibv_global_route {
        dgid: ibv_gid { raw: received.src },
        flow_label: u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]) & 0xf_ffff,
        sgid_index: u8::try_from(local.index).map_err(|_| INVALID)?,
        hop_limit: received.hop_limit,
        traffic_class: received.traffic_class,
    };
    Ok(attr)
}

/// `ibv_init_ah_from_wc(3)`.
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut [u8; GRH_LEN],
    attr: *mut ibv_ah_attr,
) -> c_int {
    count(|| {
        // SAFETY: the program passes an open context and live structs.
        let (context, wc, attr) = unsafe { (Context::of(context)?, arg(wc)?, arg_mut(attr)?) };
        *attr = init_from_wc(context, port, wc, grh)?;
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc(3)`.
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut [u8; GRH_LEN],
    port: u8,
) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: the program passes a live PD and a live completion.
        let (pd, wc) = unsafe { (object::<Pd>(pd)?, arg(wc)?) };
        create(pd, &init_from_wc(pd.context()?, port, wc, grh)?)
    })
}

/// Hardware address of an interface, or of the neighbour that has `dst` on it.
fn mac_of(gids: &[hca::GidEntry], source: &hca::GidEntry, dst: hca::Gid) -> Res<[u8; 6]> {
    if let Some(own) = gids.iter().find(|entry| entry.gid == dst) {
        let text = std::fs::read_to_string(format!("/sys/class/net/{}/address", own.ifname));
        return parse_mac(text.map_err(|_| last_errno())?.trim()).ok_or(INVALID);
    }
    let ip = std::net::Ipv6Addr::from(dst).to_canonical().to_string();
    let table = std::fs::read_to_string("/proc/net/arp").map_err(|_| last_errno())?;
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| {
            fields.first() == Some(&ip.as_str()) && fields.last() == Some(&source.ifname.as_str())
        })
        .and_then(|fields| parse_mac(fields.get(3)?))
        .ok_or(Errno(libc::EHOSTUNREACH))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    Some(mac)
}

/// The answer for "no VLAN".
const NO_VLAN: u16 = 0xffff;

/// `ibv_resolve_eth_l2_from_gid(3)`: 0 or a negative errno. Knows this host's own addresses and its
/// IPv4 neighbours; packets of this device do not need the answer.
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut [u8; 6],
    vid: *mut u16,
) -> c_int {
    let failed = status(|| {
        // SAFETY: the program passes an open context, a live struct, and places to fill.
        let (context, attr, mac) =
            unsafe { (Context::of(context)?, arg(attr)?, arg_mut(eth_mac)?) };
        let port = u32::from(attr.port_num);
        let index = u32::from(attr.grh.sgid_index);
        let source = context.device().gid(port, index)?.ok_or(INVALID)?;
        *mac = mac_of(&context.device().gids(port)?, &source, attr.grh.dgid.raw)?;
        // SAFETY: null or a place to fill.
        if let Some(vid) = unsafe { vid.as_mut() } {
            *vid = NO_VLAN;
        }
        Ok(())
    });
    -failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn v4_header(dst: [u8; 4]) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[20..40].copy_from_slice(&[
            0x45, 0x68, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, dst[0], dst[1], dst[2],
            dst[3],
        ]);
        wire::ipv4::fill_checksum(&mut bytes[20..]);
        bytes
    }

    #[test]
    fn an_ipv4_sender_is_found_whatever_the_unused_bytes_hold() {
        let mut bytes = v4_header([10, 0, 0, 2]);
        let wanted = Received {
            src: Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets(),
            dst: Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets(),
            hop_limit: 64,
            traffic_class: 0x68,
        };
        assert_eq!(received(&bytes), Ok(wanted));
        bytes[0] = 0x60;
        assert_eq!(received(&bytes).unwrap().hop_limit, 64);
    }

    #[test]
    fn an_ipv6_sender_is_read_from_the_grh() {
        let mut bytes = [0x11; 40];
        bytes[..8].copy_from_slice(&[0x61, 0x20, 0, 5, 0, 60, wire::ip::PROTOCOL_UDP, 7]);
        let received = received(&bytes).unwrap();
        assert_eq!((received.hop_limit, received.traffic_class), (7, 0x12));
        assert_eq!(received.src, [0x11; 16]);
    }

    #[test]
    fn multicast_and_other_protocols_are_refused() {
        assert_eq!(received(&v4_header([224, 0, 0, 1])), Err(INVALID));
        assert_eq!(received(&[0; 40]), Err(Errno(libc::EPROTONOSUPPORT)));
        let mut bytes = [0x11; 40];
        bytes[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 60, 0x1b, 7]);
        assert_eq!(received(&bytes), Err(Errno(libc::EPROTONOSUPPORT)));
    }

    #[test]
    fn addresses_survive_both_ways() {
        let attr = hca::AhAttr {
            is_global: true,
            dgid: [7; 16],
            flow_label: 1,
            sgid_index: 2,
            hop_limit: 3,
            traffic_class: 4,
            dlid: 5,
            sl: 6,
            src_path_bits: 7,
            static_rate: 8,
            port_num: 1,
            ..hca::AhAttr::default()
        };
        assert_eq!(attr_from_c(&attr_to_c(&attr)), attr);
    }

    #[test]
    fn hardware_addresses_are_parsed() {
        assert_eq!(parse_mac("02:00:5e:00:53:0a"), Some([2, 0, 0x5e, 0, 0x53, 0xa]));
        assert_eq!(parse_mac("02:00"), None);
    }
}
