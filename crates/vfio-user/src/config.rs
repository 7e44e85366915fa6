//! Configuration space of a function: the header, and the capabilities that its description asks
//! for. Registers are bytes under a mask of those bits that a write changes; few writes have an
//! effect besides, and [`Config::write`] tells of it.

use crate::function::{Description, Msix};

/// Bytes of configuration space.
pub(crate) const LEN: usize = 4096;

const COMMAND: usize = 0x04;
/// Memory space, bus master, parity error response, SERR#, interrupt disable (PCIe 7.5.1.1.3).
const COMMAND_BITS: u16 = 0x0546;
const MEMORY_SPACE: u8 = 1 << 1;
const BUS_MASTER: u8 = 1 << 2;
const BARS: usize = 0x10;
const BARS_END: usize = 0x28;
const CAPABILITIES: usize = 0x34;

/// Where each capability lies.
const POWER: usize = 0x40;
const VPD: usize = 0x48;
const MSIX: usize = 0x50;
const EXPRESS: usize = 0x60;
const VENDOR: usize = 0xa0;
const EXTENDED: usize = 0x100;

/// Bit 15 of Device Control: function-level reset (PCIe 7.5.3.4), seen in its upper byte.
const DEVICE_CONTROL_HIGH: usize = EXPRESS + 9;
const RESET: u8 = 1 << 7;
/// Upper byte of the VPD address register, whose top bit says that a transfer is complete (PCI 2.2,
/// 6.8.1).
const VPD_ADDRESS_HIGH: usize = VPD + 3;
const VPD_DONE: u8 = 1 << 7;
const VPD_DATA: usize = VPD + 4;

/// What a write did besides being kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Effect {
    /// The driver asks for a function-level reset.
    pub(crate) reset: bool,
    /// Whether the function may be a bus master from now on, where that changed.
    pub(crate) master: Option<bool>,
}

/// One function's configuration space.
pub(crate) struct Config {
    initial: Vec<u8>,
    bytes: Vec<u8>,
    /// Bits that a write changes.
    writable: Vec<u8>,
    vpd: Vec<u8>,
}

impl Config {
    /// The space as it is after power-on.
    pub(crate) fn new(description: &Description) -> Config {
        let mut space = Config {
            initial: Vec::new(),
            bytes: vec![0; LEN],
            writable: vec![0; LEN],
            vpd: description.vpd.clone().unwrap_or_default(),
        };
        space.header(description);
        let mut last = CAPABILITIES;
        space.power(&mut last);
        if let Some(msix) = &description.msix {
            space.msix(msix, &mut last);
        }
        space.express(&mut last);
        if description.vpd.is_some() {
            space.capability(0x03, VPD, &mut last);
            space.writable[VPD + 2..VPD + 8].fill(0xff);
        }
        if description.vendor_registers > 0 {
            space.vendor(description.vendor_registers, &mut last);
        }
        space.extended(description);
        space.initial = space.bytes.clone();
        space
    }

    /// As after power-on again, but for the BARs' places: the machine keeps those itself and does
    /// not write them again.
    pub(crate) fn reset(&mut self) {
        let bars = self.bytes[BARS..BARS_END].to_vec();
        self.bytes.clone_from(&self.initial);
        self.bytes[BARS..BARS_END].copy_from_slice(&bars);
    }

    /// Reads from `offset` on; what lies past the end is left.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) {
        let bytes = self.bytes.get(offset..).unwrap_or_default();
        data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }

    /// Writes from `offset` on; what lies past the end is dropped.
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) -> Effect {
        let mut effect = Effect::default();
        for (at, &byte) in (offset..LEN).zip(data) {
            let before = self.bytes[at];
            self.bytes[at] = (before & !self.writable[at]) | (byte & self.writable[at]);
            match at {
                COMMAND if (before ^ self.bytes[at]) & BUS_MASTER != 0 => {
                    effect.master = Some(self.bytes[at] & BUS_MASTER != 0);
                }
                DEVICE_CONTROL_HIGH => effect.reset |= byte & RESET != 0,
                VPD_ADDRESS_HIGH if self.has_vpd() => self.vpd_transfer(),
                _ => {}
            }
        }
        effect
    }

    /// Where a BAR of memory lies; none while the function does not answer there.
    pub(crate) fn bar(&self, index: usize) -> Option<u64> {
        let at = BARS + 4 * index;
        let register = self.bytes.get(at..at + 8)?;
        let low = u32::from_le_bytes(register[..4].try_into().ok()?);
        let high = u32::from_le_bytes(register[4..].try_into().ok()?);
        let high = if low & 6 == 4 { high } else { 0 };
        let answers = self.bytes[COMMAND] & MEMORY_SPACE != 0;
        answers.then_some(u64::from(high) << 32 | u64::from(low & !0xf))
    }

    fn has_vpd(&self) -> bool {
        self.bytes[VPD] == 0x03
    }

    /// Four bytes of product data at the address just written; a write (its top bit set) changes
    /// nothing and is complete.
    fn vpd_transfer(&mut self) {
        let high = self.bytes[VPD_ADDRESS_HIGH];
        if high & VPD_DONE == 0 {
            let address = usize::from(u16::from_le_bytes([self.bytes[VPD + 2], high]));
            for (at, to) in self.bytes[VPD_DATA..VPD_DATA + 4].iter_mut().enumerate() {
                *to = self.vpd.get(address + at).copied().unwrap_or(0);
            }
        }
        self.bytes[VPD_ADDRESS_HIGH] = high ^ VPD_DONE;
    }

    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&bytes);
    }

    fn allow<const N: usize>(&mut self, at: usize, mask: [u8; N]) {
        self.writable[at..at + N].copy_from_slice(&mask);
    }

    fn header(&mut self, description: &Description) {
        let identity = description.identity;
        self.put(0x00, identity.vendor.to_le_bytes());
        self.put(0x02, identity.device.to_le_bytes());
        self.allow(COMMAND, COMMAND_BITS.to_le_bytes());
        // There is a list of capabilities.
        self.put(0x06, [0x10, 0]);
        let class = identity.class.to_le_bytes();
        self.put(0x08, [identity.revision, class[0], class[1], class[2]]);
        self.put(0x2c, identity.subsystem_vendor.to_le_bytes());
        self.put(0x2e, identity.subsystem.to_le_bytes());
        // Cache line size and interrupt line are the driver's to keep things in.
        self.allow(0x0c, [0xff]);
        self.allow(0x3c, [0xff]);
        for (index, bar) in description.bars.iter().enumerate() {
            let Some(bar) = bar else { continue };
            let at = BARS + 4 * index;
            self.put(at, bar.kind.bits().to_le_bytes());
            let mask = !(bar.size - 1);
            self.allow(at, (mask as u32 & !0xf).to_le_bytes());
            if bar.kind.is_64_bit() {
                self.allow(at + 4, ((mask >> 32) as u32).to_le_bytes());
            }
        }
    }

    /// Links a capability behind the one whose pointer lies at `last`.
    fn capability(&mut self, id: u8, at: usize, last: &mut usize) {
        self.bytes[*last] = at as u8;
        self.bytes[at] = id;
        *last = at + 1;
    }

    /// Power management (PCIe 7.5.2): version 3, and a return from D3hot that forgets nothing.
    fn power(&mut self, last: &mut usize) {
        self.capability(0x01, POWER, last);
        self.put(POWER + 2, 3u16.to_le_bytes());
        self.put(POWER + 4, [1 << 3, 0]);
        self.allow(POWER + 4, [3]);
    }

    fn msix(&mut self, msix: &Msix, last: &mut usize) {
        self.capability(0x11, MSIX, last);
        self.put(MSIX + 2, (msix.vectors - 1).to_le_bytes());
        // Enable, and mask of the whole function.
        self.allow(MSIX + 3, [0xc0]);
        self.put(MSIX + 4, (msix.table | u32::from(msix.bar)).to_le_bytes());
        self.put(MSIX + 8, (msix.pending | u32::from(msix.bar)).to_le_bytes());
    }

    /// PCI Express capability (PCIe 7.5.3): an endpoint of version 2 at 64 GT/s, 16 lanes, that can
    /// be reset by itself.
    fn express(&mut self, last: &mut usize) {
        const SPEED: u32 = 6;
        const LINK: u32 = SPEED | 16 << 4;
        self.capability(0x10, EXPRESS, last);
        self.put(EXPRESS + 2, 2u16.to_le_bytes());
        // 512 bytes of payload, extended tags, role-based error reporting, function-level reset.
        self.put(EXPRESS + 4, (2u32 | 1 << 5 | 1 << 15 | 1 << 28).to_le_bytes());
        // Relaxed ordering, extended tags, no snoop, and requests of 512 bytes, as after power-on.
        self.put(EXPRESS + 8, 0x2910u16.to_le_bytes());
        self.allow(EXPRESS + 8, 0x7fffu16.to_le_bytes());
        self.put(EXPRESS + 0x0c, LINK.to_le_bytes());
        self.allow(EXPRESS + 0x10, [0xc3, 0]);
        self.put(EXPRESS + 0x12, (LINK as u16).to_le_bytes());
        // Completion timeouts of all ranges, which may be disabled.
        self.put(EXPRESS + 0x24, 0x1fu32.to_le_bytes());
        self.allow(EXPRESS + 0x28, [0x1f, 0x05]);
        // Every speed up to this one.
        self.put(EXPRESS + 0x2c, ((1u32 << (SPEED + 1)) - 2).to_le_bytes());
        self.put(EXPRESS + 0x30, (SPEED as u16).to_le_bytes());
        self.allow(EXPRESS + 0x30, [0x0f]);
    }

    fn vendor(&mut self, registers: u8, last: &mut usize) {
        self.capability(0x09, VENDOR, last);
        self.put(VENDOR + 2, [4 + registers]);
        self.writable[VENDOR + 4..][..registers.into()].fill(0xff);
    }

    /// Extended capabilities, one behind the other from 0x100 on.
    fn extended(&mut self, description: &Description) {
        let mut at = EXTENDED;
        let mut link = None;
        let mut begin = |space: &mut Config, id: u32, version: u32, len: usize| {
            space.put(at, (id | version << 16).to_le_bytes());
            if let Some(previous) = link.replace(at) {
                space.bytes[previous + 2] |= (at << 4) as u8;
                space.bytes[previous + 3] = (at >> 4) as u8;
            }
            at += len;
            at - len
        };
        if let Some(serial) = description.serial {
            let at = begin(self, 0x03, 1, 12);
            // The lower half of the number first, each half with its most significant byte last
            // (PCIe 7.9.3).
            self.put(at + 4, serial.to_le_bytes());
        }
        if description.acs {
            let at = begin(self, 0x0d, 1, 8);
            // Request redirect, completion redirect, direct translated peer-to-peer (PCIe 7.7.11).
            const OFFERED: u16 = 1 << 2 | 1 << 3 | 1 << 6;
            self.put(at + 4, OFFERED.to_le_bytes());
            self.allow(at + 6, OFFERED.to_le_bytes());
        }
        if description.ats {
            let at = begin(self, 0x0f, 1, 8);
            // Page-aligned requests only, an invalidate queue of 32 (PCIe 10.5.1).
            self.put(at + 4, (1u16 << 5).to_le_bytes());
            self.allow(at + 6, 0x801fu16.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
