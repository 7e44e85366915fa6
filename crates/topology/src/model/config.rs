//! PCI configuration space as bytes (PCI Local Bus 6.1, PCIe Base 7.5 to 7.9).
//!
//! A reader without privilege gets 64 bytes: then the capabilities are unknown.

use pcie::{Acs, AcsBits, Kind, Link};

/// Configuration space of one function, as far as it was read.
#[derive(Clone, Copy)]
pub(crate) struct Config<'a>(pub &'a [u8]);

const CAPABILITY_LIST: u16 = 1 << 4;
const PCI_EXPRESS: u8 = 0x10;
const ACS: u16 = 0x0d;
const ATS: u16 = 0x0f;

impl<'a> Config<'a> {
    fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.0.get(at..at + 2)?.try_into().ok()?))
    }

    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.get(at..at + 4)?.try_into().ok()?))
    }

    /// Vendor and device id.
    pub(crate) fn id(&self) -> Option<(u16, u16)> {
        Some((self.u16(0)?, self.u16(2)?))
    }

    /// Class code.
    pub(crate) fn class(&self) -> Option<u32> {
        Some(self.u32(8)? >> 8)
    }

    /// Whether the conventional capabilities were read.
    fn whole(&self) -> bool {
        self.0.len() >= 256
    }

    /// Where the PCI Express capability begins; `Ok(None)` if there is none, `Err` if that is not
    /// known.
    fn express(&self) -> Result<Option<usize>, Unread> {
        if self.u16(6).ok_or(Unread)? & CAPABILITY_LIST == 0 {
            return Ok(None);
        }
        let mut at = usize::from(self.u8(0x34).ok_or(Unread)? & !3);
        // a list may not be longer than the space has room for
        for _ in 0..48 {
            if at < 0x40 {
                return Ok(None);
            }
            if self.u8(at).ok_or(Unread)? == PCI_EXPRESS {
                return Ok(Some(at));
            }
            at = usize::from(self.u8(at + 1).ok_or(Unread)? & !3);
        }
        Ok(None)
    }

    /// What kind of function it says it is; `None` if not read.
    pub(crate) fn kind(&self) -> Option<Kind> {
        let bridge = self.u8(0x0e)? & 0x7f == 1;
        let plain = if bridge { Kind::Bridge } else { Kind::Endpoint };
        let Some(express) = self.express().ok()? else { return Some(plain) };
        Some(match (self.u16(express + 2)? >> 4) & 0xf {
            4 => Kind::RootPort,
            5 => Kind::SwitchUpstream,
            6 => Kind::SwitchDownstream,
            _ => plain,
        })
    }

    /// The link as it runs, and at its best.
    pub(crate) fn links(&self) -> (Option<Link>, Option<Link>) {
        let Ok(Some(express)) = self.express() else { return (None, None) };
        let link = |register: Option<u32>| {
            let register = register?;
            let speed_gts = match register & 0xf {
                1 => 2.5,
                2 => 5.0,
                3 => 8.0,
                4 => 16.0,
                5 => 32.0,
                6 => 64.0,
                _ => return None,
            };
            Link::lanes(speed_gts, (register >> 4) & 0x3f).ok()
        };
        (link(self.u16(express + 0x12).map(u32::from)), link(self.u32(express + 0x0c)))
    }

    /// Where an extended capability begins; `Err` if the space was not read so far.
    fn extended(&self, wanted: u16) -> Result<Option<usize>, Unread> {
        if self.whole() && self.express() == Ok(None) {
            return Ok(None);
        }
        let mut at = 0x100;
        for _ in 0..960 {
            let header = self.u32(at).ok_or(Unread)?;
            if header == 0 || header == u32::MAX {
                return Ok(None);
            }
            if header as u16 == wanted {
                return Ok(Some(at));
            }
            at = (header >> 20) as usize & !3;
            if at < 0x100 {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// ACS.
    pub(crate) fn acs(&self) -> Acs {
        match self.extended(ACS) {
            Err(Unread) => Acs::Unknown,
            Ok(None) => Acs::Absent,
            Ok(Some(at)) => match self.u16(at + 6) {
                Some(control) => Acs::Enabled(AcsBits::from_bits_truncate(control as u8)),
                None => Acs::Unknown,
            },
        }
    }

    /// Bits that ACS can set; `None` if there is none or it was not read.
    pub(crate) fn acs_capable(&self) -> Option<AcsBits> {
        let at = self.extended(ACS).ok()??;
        Some(AcsBits::from_bits_truncate(self.u16(at + 4)? as u8))
    }

    /// Whether ATS is on; `None` if not read.
    pub(crate) fn ats(&self) -> Option<bool> {
        match self.extended(ATS) {
            Err(Unread) => None,
            Ok(None) => Some(false),
            Ok(Some(at)) => Some(self.u16(at + 6)? & (1 << 15) != 0),
        }
    }
}

/// The bytes that would tell were not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unread;

/// The value of a keyword in the read-only part of Vital Product Data (PCI Local Bus, appendix I):
/// `SN`, `PN`, `VU`, `V3`.
pub(crate) fn vpd(bytes: &[u8], keyword: &[u8; 2]) -> Option<String> {
    const READ_ONLY: u8 = 0x90;
    let mut rest = bytes;
    while let [tag, ..] = *rest {
        let (skip, len) = match tag {
            0x78 | 0x00 => return None,
            large if large & 0x80 != 0 => {
                (3, usize::from(u16::from_le_bytes([*rest.get(1)?, *rest.get(2)?])))
            }
            small => (1, usize::from(small & 7)),
        };
        let item = rest.get(skip..skip + len)?;
        if tag == READ_ONLY {
            let mut fields = item;
            while let [a, b, len, tail @ ..] = fields {
                let value = tail.get(..usize::from(*len))?;
                if [*a, *b] == *keyword {
                    return Some(String::from_utf8_lossy(value).trim().to_owned());
                }
                fields = &tail[usize::from(*len)..];
            }
        }
        rest = &rest[skip + len..];
    }
    None
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A root port's space with the given length: link at 16 GT/s x8 of 32 GT/s x16, ACS with RR
    /// and CR on, ATS off.
    pub(crate) fn root_port(len: usize) -> Vec<u8> {
        let mut space = vec![0; 4096];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[0x86, 0x80, 0x30, 0x20]);
        put(6, &CAPABILITY_LIST.to_le_bytes());
        put(0x09, &[0x00, 0x04, 0x06]);
        put(0x0e, &[1]);
        put(0x34, &[0x40]);
        put(0x40, &[0x01, 0x50]); // power management, then
        put(0x50, &[PCI_EXPRESS, 0, 0x42, 0]);
        put(0x50 + 0x0c, &(5u32 | 16 << 4).to_le_bytes());
        put(0x50 + 0x12, &(4u16 | 8 << 4).to_le_bytes());
        put(0x100, &(0x0001u32 | 1 << 16 | 0x140 << 20).to_le_bytes()); // AER, then
        put(0x140, &(u32::from(ACS) | 1 << 16).to_le_bytes());
        put(0x144, &(AcsBits::all() - AcsBits::EC).bits().to_le_bytes());
        put(0x146, &(AcsBits::RR | AcsBits::CR).bits().to_le_bytes());
        space.truncate(len);
        space
    }

    #[test]
    fn a_whole_space_tells_all() {
        let space = root_port(4096);
        let config = Config(&space);
        assert_eq!(config.id(), Some((0x8086, 0x2030)));
        assert_eq!(config.class(), Some(0x060400));
        assert_eq!(config.kind(), Some(Kind::RootPort));
        assert_eq!(config.acs(), Acs::Enabled(AcsBits::RR | AcsBits::CR));
        assert_eq!(config.acs_capable(), Some(AcsBits::all() - AcsBits::EC));
        assert_eq!(config.ats(), Some(false));
        let (now, best) = config.links();
        assert_eq!(now, Link::lanes(16.0, 8).ok());
        assert_eq!(best, Link::lanes(32.0, 16).ok());
    }

    #[test]
    fn what_was_not_read_is_unknown() {
        let space = root_port(256);
        assert_eq!(Config(&space).kind(), Some(Kind::RootPort));
        assert_eq!(Config(&space).acs(), Acs::Unknown);
        assert_eq!(Config(&space).ats(), None);
        let space = root_port(64);
        assert_eq!(Config(&space).kind(), None);
        assert_eq!(Config(&space).links(), (None, None));
        assert_eq!(Config(&[]).id(), None);
    }

    #[test]
    fn conventional_pci_has_no_extended_capabilities() {
        let mut space = root_port(256);
        space[6] = 0;
        assert_eq!(Config(&space).acs(), Acs::Absent);
        assert_eq!(Config(&space).kind(), Some(Kind::Bridge));
    }

    #[test]
    fn vital_product_data() {
        let mut bytes = vec![0x82, 4, 0];
        bytes.extend(b"Name");
        bytes.extend([0x90, 14, 0]);
        bytes.extend(b"SN\x02ab");
        bytes.extend(b"VU\x06vuid-1");
        bytes.push(0x78);
        assert_eq!(vpd(&bytes, b"VU").unwrap(), "vuid-1");
        assert_eq!(vpd(&bytes, b"SN").unwrap(), "ab");
        assert_eq!(vpd(&bytes, b"PN"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(mut space in proptest::collection::vec(any::<u8>(), 0..600)) {
            if space.len() > 0x40 {
                space[6] |= 0x10;
                space[0x34] = 0x40;
            }
            let config = Config(&space);
            let _ = (config.kind(), config.acs(), config.ats(), config.links(), config.class());
            let _ = vpd(&space, b"VU");
        }
    }
}
