//! ClassPortInfo of subnet administration (IBA 13.4.8.1, 15.2.5.1): what this administrator can do.

use crate::bytes::put;

/// IsUDMulticastSupported.
const MULTICAST: u16 = 1 << 9;
/// IsSendOnlyFullMemberSupported, in CapabilityMask2.
const SEND_ONLY_MEMBERS: u32 = 1 << 1;
/// An answer comes within 4.096 µs * 2^18, about a second.
const RESPONSE_TIME: u32 = 18;

/// The record.
pub(crate) fn record() -> Vec<u8> {
    let mut info = vec![0; 72];
    put(&mut info, 0, &[1, 2]); // base version, class version
    put(&mut info, 2, &MULTICAST.to_be_bytes());
    put(&mut info, 4, &(SEND_ONLY_MEMBERS << 5 | RESPONSE_TIME).to_be_bytes());
    info
}
