//! ClassPortInfo (IBA 13.4.8.1) as administration uses it (IBA 15.2.5.1).

use super::super::header::BASE_VERSION;
use super::header::VERSION;
use crate::field::{Field, be16, be32, put};

/// What an administrator can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassPortInfo {
    /// CapabilityMask.
    pub capabilities: u16,
    /// CapabilityMask2, 27 bits.
    pub capabilities_2: u32,
    /// An answer comes within 4.096 µs · 2^n, 5 bits.
    pub response_time: u8,
}

impl ClassPortInfo {
    /// Length of the record, in bytes.
    pub const LEN: usize = 72;
    /// IsUDMulticastSupported, a bit of [`ClassPortInfo::capabilities`].
    pub const MULTICAST: u16 = 1 << 9;
    /// IsSendOnlyFullMemberSupported, a bit of [`ClassPortInfo::capabilities_2`].
    pub const SEND_ONLY_MEMBERS: u32 = 1 << 1;

    const VERSIONS: Field = 0..2;
    const CAPABILITIES: Field = 2..4;
    const CAPABILITIES_2_AND_RESPONSE_TIME: Field = 4..8;

    /// What a record says; what is not there is zero.
    pub fn parse(record: &[u8]) -> ClassPortInfo {
        let word = be32(record, ClassPortInfo::CAPABILITIES_2_AND_RESPONSE_TIME);
        ClassPortInfo {
            capabilities: be16(record, ClassPortInfo::CAPABILITIES),
            capabilities_2: word >> 5,
            response_time: (word & 0x1f) as u8,
        }
    }

    /// The record.
    pub fn emit(&self) -> [u8; ClassPortInfo::LEN] {
        let mut out = [0; ClassPortInfo::LEN];
        let word = self.capabilities_2 << 5 | u32::from(self.response_time & 0x1f);
        put(&mut out, ClassPortInfo::VERSIONS, &[BASE_VERSION, VERSION]);
        put(&mut out, ClassPortInfo::CAPABILITIES, &self.capabilities.to_be_bytes());
        put(&mut out, ClassPortInfo::CAPABILITIES_2_AND_RESPONSE_TIME, &word.to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_laid_out_as_specified() {
        let info = ClassPortInfo {
            capabilities: ClassPortInfo::MULTICAST,
            capabilities_2: ClassPortInfo::SEND_ONLY_MEMBERS,
            response_time: 18,
        };
        assert_eq!(info.emit()[..8], [1, 2, 2, 0, 0, 0, 0, 0x52]);
        assert_eq!(ClassPortInfo::parse(&info.emit()), info);
    }
}
