//! The function as PCI shows it.

use crate::engine::Engine;
use crate::registers::{BAR_LEN, MSIX_PENDING, MSIX_TABLE, Registers};
use crate::vram::Vram;
use engine_thread::lock;
use std::io;
use std::sync::{Arc, Mutex};
use vfio_user::{Bar, BarKind, Description, Function, Host, Msix, PciIdentity};

/// PCI vendor: that of emulators' own devices.
pub const VENDOR: u16 = 0x1234;
/// PCI device.
pub const DEVICE: u16 = 0x7067;
/// 3D controller.
const CLASS_3D: u32 = 0x03_0200;

const REGISTERS: u8 = 0;
const MEMORY: u8 = 2;

/// A virtual GPU.
pub struct VirtualGpu {
    vram: Arc<Vram>,
    engine: Engine,
    registers: Mutex<Registers>,
}

impl VirtualGpu {
    /// One with `memory_bytes` of device memory, whose engine reaches the memory of `host`'s
    /// machine.
    ///
    /// # Errors
    /// `InvalidInput` with a [`crate::SizeError`] for a size that is no power of two from 1 MiB to
    /// 64 GiB, else why there is no memory or no thread.
    pub fn new(host: Host, memory_bytes: u64) -> io::Result<VirtualGpu> {
        let vram = Arc::new(Vram::new(memory_bytes)?);
        let engine = Engine::new(vram.clone(), host)?;
        Ok(VirtualGpu { vram, engine, registers: Mutex::new(Registers::new(memory_bytes)) })
    }

    fn registers(&self) -> std::sync::MutexGuard<'_, Registers> {
        lock(&self.registers)
    }
}

impl Function for VirtualGpu {
    fn description(&self) -> Description {
        let kind = |prefetchable| BarKind::Memory64 { prefetchable };
        let registers = Bar { size: BAR_LEN, kind: kind(false), memory: None };
        let memory =
            Bar { size: self.vram.bytes(), kind: kind(true), memory: Some(self.vram.fd()) };
        Description {
            identity: PciIdentity {
                vendor: VENDOR,
                device: DEVICE,
                subsystem_vendor: VENDOR,
                subsystem: 1,
                revision: 1,
                class: CLASS_3D,
            },
            bars: [Some(registers), None, Some(memory), None, None, None],
            msix: Some(Msix {
                vectors: 1,
                bar: REGISTERS,
                table: MSIX_TABLE,
                pending: MSIX_PENDING,
            }),
            ..Description::default()
        }
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        match bar {
            REGISTERS => self.registers().read(offset, self.engine.status(), data),
            // A machine that has not mapped it.
            MEMORY => drop(self.vram.read(offset, data)),
            _ => {}
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        match bar {
            REGISTERS => {
                let mut registers = self.registers();
                if registers.write(offset, data) {
                    self.engine.start(registers.job());
                }
            }
            MEMORY => drop(self.vram.write(offset, data)),
            _ => {}
        }
    }

    fn reset(&self) {
        self.engine.reset();
        *self.registers() = Registers::new(self.vram.bytes());
        self.vram.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::{
        COMMAND, COPY, FILL, FROM_HOST, LENGTH, PATTERN, SOURCE, STATUS, Status, TARGET, TO_HOST,
    };

    const BYTES: u64 = 1 << 20;

    fn gpu() -> VirtualGpu {
        VirtualGpu::new(Host::new(), BYTES).unwrap()
    }

    fn status(gpu: &VirtualGpu) -> u32 {
        let mut word = [0; 4];
        gpu.bar_read(REGISTERS, STATUS as u64, &mut word);
        u32::from_le_bytes(word)
    }

    /// Runs a command to its end.
    fn run(gpu: &VirtualGpu, command: u32, words: &[(usize, u64)]) -> u32 {
        for (register, word) in words {
            gpu.bar_write(REGISTERS, *register as u64, &word.to_le_bytes());
        }
        gpu.bar_write(REGISTERS, COMMAND as u64, &command.to_le_bytes());
        while status(gpu) == Status::Busy as u32 {
            std::thread::yield_now();
        }
        status(gpu)
    }

    fn memory(gpu: &VirtualGpu, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        gpu.bar_read(MEMORY, offset, &mut bytes);
        bytes
    }

    #[test]
    fn the_engine_fills_and_copies_device_memory() {
        let gpu = gpu();
        let pattern = u64::from_le_bytes(*b"abcdefgh");
        // Longer than what it does between two looks, and no multiple of the pattern.
        let len = 200_003;
        let fill = [(TARGET, 5), (LENGTH, len), (PATTERN, pattern)];
        assert_eq!(run(&gpu, FILL, &fill), Status::Done as u32);
        let expected: Vec<u8> = b"abcdefgh".iter().copied().cycle().take(len as usize).collect();
        assert_eq!(memory(&gpu, 5, len as usize), expected);
        assert_eq!(memory(&gpu, 0, 5), [0; 5]);
        assert_eq!(memory(&gpu, 5 + len, 3), [0; 3]);
        let to = BYTES - len;
        assert_eq!(run(&gpu, COPY, &[(SOURCE, 5), (TARGET, to)]), Status::Done as u32);
        assert_eq!(memory(&gpu, to, len as usize), expected);
        gpu.reset();
        assert_eq!(status(&gpu), Status::Idle as u32);
        assert_eq!(memory(&gpu, to, 8), [0; 8], "a reset zeroes device memory");
    }

    #[test]
    fn what_it_cannot_reach_is_told() {
        let gpu = gpu();
        let range = [(SOURCE, 0), (TARGET, BYTES - 7), (LENGTH, 8)];
        for command in [COPY, FILL, FILL | FROM_HOST, 0, u32::MAX] {
            assert_eq!(run(&gpu, command, &range), Status::Invalid as u32, "{command:#x}");
        }
        let wraps = [(TARGET, u64::MAX), (LENGTH, 2)];
        assert_eq!(run(&gpu, FILL | TO_HOST, &wraps), Status::Invalid as u32);
        // There is no machine, hence no memory of one.
        let range = [(SOURCE, 4096), (TARGET, 0), (LENGTH, 8)];
        assert_eq!(run(&gpu, COPY | FROM_HOST, &range), Status::Fault as u32);
        assert_eq!(run(&gpu, COPY, &range), Status::Done as u32, "a failure ends nothing");
        assert_eq!(run(&gpu, FILL, &[(LENGTH, 0)]), Status::Done as u32);
    }
}
