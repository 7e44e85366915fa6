//! The register file of BAR 0: where each register lies, and what a command's words mean.

/// Bytes of BAR 0.
pub const BAR_LEN: u64 = 64 << 10;
/// Where BAR 0 has the interrupt table.
pub const MSIX_TABLE: u32 = 0x8000;
/// Where BAR 0 has its pending bits.
pub const MSIX_PENDING: u32 = 0xc000;

/// The identity register's value.
pub const IDENTITY: u32 = u32::from_le_bytes(*b"PGPU");
/// The version register's value.
pub const VERSION: u32 = 1;

/// Bytes of device memory.
pub const MEMORY: usize = 0x08;
/// Where a copy comes from.
pub const SOURCE: usize = 0x10;
/// Where a command writes to.
pub const TARGET: usize = 0x18;
/// Bytes that a command writes.
pub const LENGTH: usize = 0x20;
/// What a fill writes.
pub const PATTERN: usize = 0x28;
/// Starts a command.
pub const COMMAND: usize = 0x30;
/// How the last command went, a [`Status`].
pub const STATUS: usize = 0x34;
const END: usize = 0x38;

/// A command that copies.
pub const COPY: u32 = 1;
/// A command that fills.
pub const FILL: u32 = 2;
/// The source is a DMA address.
pub const FROM_HOST: u32 = 1 << 8;
/// The target is a DMA address.
pub const TO_HOST: u32 = 1 << 9;

/// How a command stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Status {
    /// None came since the last reset.
    #[default]
    Idle = 0,
    /// It runs.
    Busy = 1,
    /// It has ended, and all bytes are where they belong.
    Done = 2,
    /// There is no such command, or its range leaves device memory.
    Invalid = 3,
    /// Host memory at its DMA addresses cannot be reached; some bytes may have been moved.
    Fault = 4,
}

/// Where bytes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operand {
    /// An offset in device memory.
    Device(u64),
    /// A DMA address.
    Host(u64),
}

/// What a command asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Job {
    pub(crate) source: Source,
    pub(crate) target: Operand,
    pub(crate) len: u64,
}

/// What a command writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Memory(Operand),
    Pattern([u8; 8]),
}

/// The registers that a driver writes, and those that never change.
pub(crate) struct Registers([u8; END]);

impl Registers {
    pub(crate) fn new(memory_bytes: u64) -> Registers {
        let mut registers = Registers([0; END]);
        registers.0[0..4].copy_from_slice(&IDENTITY.to_le_bytes());
        registers.0[4..8].copy_from_slice(&VERSION.to_le_bytes());
        registers.0[MEMORY..SOURCE].copy_from_slice(&memory_bytes.to_le_bytes());
        registers
    }

    /// Reads from `offset` on; what lies past the last register is left.
    pub(crate) fn read(&self, offset: u64, status: Status, data: &mut [u8]) {
        let mut bytes = self.0;
        bytes[STATUS..END].copy_from_slice(&(status as u32).to_le_bytes());
        let from = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
        data.iter_mut().zip(from.unwrap_or_default()).for_each(|(to, from)| *to = *from);
    }

    /// Writes from `offset` on; what is no register of the driver's is dropped. Whether a command
    /// came.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let Ok(offset) = usize::try_from(offset) else { return false };
        for (at, &byte) in (offset..STATUS).zip(data) {
            if at >= SOURCE {
                self.0[at] = byte;
            }
        }
        offset == COMMAND && data.len() >= 4
    }

    /// The command as the registers have it; none for words that mean nothing.
    pub(crate) fn job(&self) -> Option<Job> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.0[at..at + 8]);
            word
        };
        let number = |at| u64::from_le_bytes(word(at));
        let place =
            |at, host| if host { Operand::Host(number(at)) } else { Operand::Device(number(at)) };
        let command = number(COMMAND) as u32;
        let (from_host, to_host) = (command & FROM_HOST != 0, command & TO_HOST != 0);
        let source = match command & !(TO_HOST | FROM_HOST) {
            COPY => Source::Memory(place(SOURCE, from_host)),
            FILL if !from_host => Source::Pattern(word(PATTERN)),
            _ => return None,
        };
        Some(Job { source, target: place(TARGET, to_host), len: number(LENGTH) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commanded(command: u32) -> Option<Job> {
        let mut registers = Registers::new(1 << 20);
        assert!(!registers.write(SOURCE as u64, &0x10u64.to_le_bytes()));
        // A processor of 32-bit accesses writes a register in two halves.
        assert!(!registers.write(TARGET as u64, &[1, 0, 0, 0]));
        assert!(!registers.write(TARGET as u64 + 4, &[2, 0, 0, 0]));
        assert!(!registers.write(LENGTH as u64, &3u64.to_le_bytes()));
        assert!(!registers.write(PATTERN as u64, b"12345678"));
        assert!(registers.write(COMMAND as u64, &command.to_le_bytes()));
        registers.job()
    }

    #[test]
    fn commands_say_where_bytes_come_from_and_go() {
        let job = |source, target| Some(Job { source, target, len: 3 });
        let (device, host) = (Operand::Device(0x2_0000_0001), Operand::Host(0x2_0000_0001));
        let from = Source::Memory(Operand::Device(0x10));
        assert_eq!(commanded(COPY), job(from, device));
        assert_eq!(commanded(COPY | TO_HOST), job(from, host));
        let from = Source::Memory(Operand::Host(0x10));
        assert_eq!(commanded(COPY | FROM_HOST), job(from, device));
        let from = Source::Pattern(*b"12345678");
        assert_eq!(commanded(FILL | TO_HOST), job(from, host));
        for wrong in [0, 3, FILL | FROM_HOST, COPY | 1 << 10, u32::MAX] {
            assert_eq!(commanded(wrong), None, "{wrong:#x}");
        }
    }

    #[test]
    fn what_a_driver_may_not_write_stays() {
        let mut registers = Registers::new(1 << 20);
        registers.write(0, &[0xff; 64]);
        registers.write(u64::MAX, &[0xff; 8]);
        let mut found = [0; 16];
        registers.read(0, Status::Done, &mut found);
        assert_eq!(&found[..4], b"PGPU");
        assert_eq!(found[8..], (1u64 << 20).to_le_bytes());
        let mut found = [0xee; 8];
        registers.read(STATUS as u64, Status::Done, &mut found);
        assert_eq!(found, [2, 0, 0, 0, 0xee, 0xee, 0xee, 0xee], "past the end is left");
    }
}
