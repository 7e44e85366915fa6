//! Where a filter of packets (classic BPF, which counts in 32 bits) looks, in bytes from the
//! beginning of the UDP payload: the BTH and the DETH of a management datagram, its header, and a
//! message of communication management behind them.

use super::{datagram::common, ip_header, req, sidr};
use crate::mad::{self, HEADER_LEN};
use crate::packet::{BTH_LEN, DETH_LEN};

const MAD: usize = BTH_LEN + DETH_LEN;
const MESSAGE: usize = MAD + HEADER_LEN;

/// The kind of a message, 16 bits.
pub const ATTRIBUTE: u32 = (MAD + mad::field::ATTRIBUTE_ID.start) as u32;
/// The communication id that its sender chose, 32 bits.
pub const LOCAL_ID: u32 = (MESSAGE + common::LOCAL_ID.start) as u32;
/// The one that its receiver chose, 32 bits.
pub const REMOTE_ID: u32 = (MESSAGE + common::REMOTE_ID.start) as u32;
/// The service that a REQ or a SIDR_REQ is for, 64 bits.
pub const SERVICE_ID: u32 = (MESSAGE + req::field::SERVICE_ID.start) as u32;
/// The address of the passive side in the private data of a REQ, 128 bits.
pub const REQ_DESTINATION: u32 = destination(req::field::PRIVATE.start);
/// The same of a SIDR_REQ.
pub const SIDR_REQ_DESTINATION: u32 = destination(sidr::request::PRIVATE.start);

const fn destination(private: usize) -> u32 {
    (MESSAGE + private + ip_header::field::DESTINATION.start) as u32
}

const _: () = assert!(req::field::SERVICE_ID.start == sidr::request::SERVICE_ID.start);
