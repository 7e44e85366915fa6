//! The initialization segment: registers at the start of BAR 0 (PRM "Initialization Segment",
//! `initial_seg` of `mlx5_ifc.h`, `struct mlx5_init_seg`).
//!
//! The driver reads versions from it, tells where the command queue is, rings for commands and
//! watches that the health counter advances.

use crate::command::mailbox::{LOG_ENTRIES, LOG_STRIDE};
use crate::layout::bits::put;
use crate::layout::identity::FIRMWARE;

/// The length of the segment in bytes.
pub(crate) const LEN: u64 = 0x4000;
const COMMAND_INTERFACE_REVISION: u16 = 5;

const QUEUE_ADDRESS_HIGH: u64 = 0x10;
const QUEUE_ADDRESS_LOW: u64 = 0x14;
/// A bit for each entry of the command queue.
pub(crate) const DOORBELL: u64 = 0x18;
const TIMER: usize = 0x1000;
const HEALTH_COUNTER: usize = 0x1010;
/// It must have advanced when the driver looks again, every 2 seconds.
const HEALTH_PERIOD_NS: u64 = 10_000_000;

/// What a write to the segment means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Written {
    /// Only a register changed.
    Register,
    /// Commands of these entries of the queue wait (a bit each).
    Doorbell(u32),
    /// The driver takes the command queue away, or sets it up anew.
    Queue,
}

/// In the low word of the queue's address (`nic_interface`): no driver is at work. A driver that
/// finds it there knows that the function was reset behind its back, and begins anew.
const DISABLED: u32 = 1 << 8;

/// The registers.
pub(crate) struct InitSegment {
    queue_high: u32,
    queue_low: u32,
}

impl Default for InitSegment {
    fn default() -> InitSegment {
        InitSegment { queue_high: 0, queue_low: DISABLED }
    }
}

impl InitSegment {
    /// Address of the command queue, if the driver set it up for a full driver (`nic_interface` 0).
    pub(crate) fn queue(&self) -> Option<u64> {
        let address = u64::from(self.queue_high) << 32 | u64::from(self.queue_low & !0xfff);
        let interface = self.queue_low >> 8 & 3;
        (address != 0 && interface == 0).then_some(address)
    }

    /// Reads registers; `now_ns` is the time on the clock of completions.
    pub(crate) fn read(&self, now_ns: u64, offset: u64, data: &mut [u8]) {
        let image = self.image(now_ns);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, byte) in data.iter_mut().enumerate() {
            *byte = start.checked_add(at).and_then(|at| image.get(at)).copied().unwrap_or(0);
        }
    }

    fn image(&self, now_ns: u64) -> Vec<u8> {
        let mut image = vec![0; HEALTH_COUNTER + 4];
        let (major, minor, sub) = FIRMWARE;
        put(&mut image, 0, &minor.to_be_bytes());
        put(&mut image, 2, &major.to_be_bytes());
        put(&mut image, 4, &COMMAND_INTERFACE_REVISION.to_be_bytes());
        put(&mut image, 6, &sub.to_be_bytes());
        put(&mut image, 0x10, &self.queue_high.to_be_bytes());
        let size = LOG_ENTRIES << 4 | LOG_STRIDE;
        put(&mut image, 0x14, &(self.queue_low & !0xff | size).to_be_bytes());
        put(&mut image, TIMER, &now_ns.to_be_bytes());
        let health = (now_ns / HEALTH_PERIOD_NS) as u32 & 0xff_ffff;
        put(&mut image, HEALTH_COUNTER, &health.to_be_bytes());
        image
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Written {
        let mut written = Written::Register;
        for (at, word) in (0u64..).step_by(4).zip(data.chunks(4)) {
            let Ok(word) = word.try_into().map(u32::from_be_bytes) else { break };
            match offset.saturating_add(at) {
                QUEUE_ADDRESS_HIGH => self.queue_high = word,
                QUEUE_ADDRESS_LOW => {
                    self.queue_low = word;
                    written = Written::Queue;
                }
                DOORBELL => written = Written::Doorbell(word),
                _ => {}
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_finds_versions_and_sets_the_queue_up() {
        let mut segment = InitSegment::default();
        let mut word = [0; 4];
        segment.read(0, 0x14, &mut word);
        assert_eq!(word[2..], [1, 5 << 4 | 6], "no driver; 32 entries of 64 bytes");
        segment.read(0, 4, &mut word);
        assert_eq!(word[..2], [0, 5]);
        assert_eq!(segment.queue(), None);
        segment.write(0x10, &0x12u32.to_be_bytes());
        assert_eq!(segment.write(0x14, &0x3456_7000u32.to_be_bytes()), Written::Queue);
        assert_eq!(segment.queue(), Some(0x12_3456_7000));
        assert_eq!(segment.write(0x18, &5u32.to_be_bytes()), Written::Doorbell(5));
        segment.write(0x14, &0x3456_7100u32.to_be_bytes());
        assert_eq!(segment.queue(), None, "the interface without a driver");
        segment.read(0, u64::MAX, &mut word);
        segment.write(u64::MAX, &[1; 64]);
        assert_eq!(word, [0; 4]);
    }
}
