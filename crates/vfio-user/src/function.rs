//! What a PCI function is: its face in configuration space, and what it does when its registers are
//! touched.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Who a function is, for drivers that look for it (header of configuration space, PCIe 7.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PciIdentity {
    /// Vendor.
    pub vendor: u16,
    /// Device, of the vendor.
    pub device: u16,
    /// Vendor of the board.
    pub subsystem_vendor: u16,
    /// Board, of that vendor.
    pub subsystem: u16,
    /// Revision.
    pub revision: u8,
    /// Base class, subclass and programming interface in the low 24 bits, such as `0x020700` for an
    /// InfiniBand adapter.
    pub class: u32,
}

/// What a BAR says of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BarKind {
    /// Registers below 4 GiB.
    Memory32,
    /// Anywhere; takes the next BAR's place too, so it is an even one that the next must leave
    /// free.
    Memory64 {
        /// Reading has no side effect: bridges may merge and fetch ahead, and it may lie above 4
        /// GiB behind them.
        prefetchable: bool,
    },
}

/// One window of a function's memory.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Bytes: a power of two, 4 KiB at least.
    pub size: u64,
    /// Where it may lie.
    pub kind: BarKind,
    /// The bytes themselves, where they are plain memory: the machine maps the descriptor's first
    /// `size` bytes, and its accesses no longer come to [`Function::bar_read`] and
    /// [`Function::bar_write`].
    pub memory: Option<Arc<OwnedFd>>,
}

/// Where the interrupt table lies (PCIe 7.7.2). The server keeps both; accesses to them never come
/// to the function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Msix {
    /// Vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR of the table and of the pending bits.
    pub bar: u8,
    /// Offset of the table in it, a multiple of 8: 16 bytes a vector.
    pub table: u32,
    /// Offset of the pending bits, a multiple of 8: one bit a vector, in whole words of 8 bytes.
    pub pending: u32,
}

/// All of a function that configuration space shows. It does not change while the function is
/// served.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// The identity of the function in configuration space.
    pub identity: PciIdentity,
    /// The BARs, by their number.
    pub bars: [Option<Bar>; 6],
    /// The interrupt vectors; `None` for a function that has none.
    pub msix: Option<Msix>,
    /// Vital product data as PCI 2.2 appendix I lays it out (resources and their end tag), up to 32
    /// KiB.
    pub vpd: Option<Vec<u8>>,
    /// Bytes of registers in a vendor-specific capability (PCI 3.0, 6.7) that only remember what is
    /// written, up to 64; 0 for no such capability.
    pub vendor_registers: u8,
    /// Device serial number (extended capability 3), an EUI-64.
    pub serial: Option<u64>,
    /// Whether it says that it can translate addresses (ATS, extended capability 15).
    pub ats: bool,
    /// Whether it is one function of several behind one slot that says what may pass between them
    /// (ACS, extended capability 13: peer-to-peer request redirect, completion redirect and egress
    /// are offered).
    pub acs: bool,
}

/// A PCI function: what a guest's driver drives.
///
/// Calls come from the thread that serves its client, one after the other, but for writes that
/// [take time](Function::takes_time). A write is posted, as PCI's are: the guest goes on before
/// [`Function::bar_write`] returns. None of the others may wait for the guest, which may wait for
/// them.
pub trait Function: Send + Sync {
    /// What configuration space shows; asked once, when serving begins.
    fn description(&self) -> Description;
    /// Reads a BAR. The range lies inside of it and outside of the interrupt table. What is not
    /// there reads as the caller finds `data`: all zero.
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]);
    /// Writes a BAR. The range lies inside of it and outside of the interrupt table.
    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]);
    /// Whether what a write there sets off may now reach memory by messages
    /// ([`crate::Host::writes_by_messages`]), or wait for who does. Another thread carries such
    /// writes out, one after the other; accesses that came after it do not wait for it, and none is
    /// under way in [`Function::reset`].
    fn takes_time(&self, bar: u8, offset: u64) -> bool {
        let _ = (bar, offset);
        false
    }
    /// Forgets everything, as after power-on: a function-level or bus reset, a rebooted machine, a
    /// client that has gone. DMA that is under way when it returns must not touch memory that a
    /// later driver hands out.
    fn reset(&self);
}

/// The base address register's low bits (PCIe 7.5.1.2.1).
impl BarKind {
    pub(crate) fn bits(self) -> u32 {
        match self {
            BarKind::Memory32 => 0,
            BarKind::Memory64 { prefetchable: false } => 4,
            BarKind::Memory64 { prefetchable: true } => 0xc,
        }
    }

    pub(crate) fn is_64_bit(self) -> bool {
        matches!(self, BarKind::Memory64 { .. })
    }
}

/// What is wrong with a description.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DescriptionError {
    /// A BAR's size or place.
    #[error(
        "BAR {0} is not a power of two of 4 KiB or more that fits its kind, or lacks its upper half"
    )]
    Bar(usize),
    /// The interrupt table.
    #[error("the interrupt table does not fit its BAR")]
    Msix,
    /// The vital product data.
    #[error("vital product data is limited to 32 KiB")]
    Vpd,
    /// The vendor-specific capability.
    #[error("a vendor-specific capability is limited to 64 bytes of registers")]
    Vendor,
}

impl Msix {
    /// Bytes of the table.
    pub(crate) fn table_len(&self) -> u64 {
        u64::from(self.vectors) * 16
    }

    /// Bytes of the pending bits.
    pub(crate) fn pending_len(&self) -> u64 {
        u64::from(self.vectors).div_ceil(64) * 8
    }
}

impl Description {
    /// Bytes of a BAR; 0 where there is none.
    pub fn bar_size(&self, bar: usize) -> u64 {
        self.bars.get(bar).and_then(Option::as_ref).map_or(0, |bar| bar.size)
    }

    pub(crate) fn check(&self) -> Result<(), DescriptionError> {
        for (index, bar) in self.bars.iter().enumerate() {
            let Some(bar) = bar else { continue };
            let wide = bar.kind.is_64_bit();
            let free_above = matches!(self.bars.get(index + 1), Some(None));
            let fits = wide || bar.size <= 1 << 31;
            if !bar.size.is_power_of_two() || bar.size < 4096 || !fits || (wide && !free_above) {
                return Err(DescriptionError::Bar(index));
            }
        }
        if let Some(msix) = &self.msix {
            let size = self.bar_size(msix.bar.into());
            let table = u64::from(msix.table);
            let pending = u64::from(msix.pending);
            let (table_end, pending_end) = (table + msix.table_len(), pending + msix.pending_len());
            let apart = table_end <= pending || pending_end <= table;
            let aligned = table % 8 == 0 && pending % 8 == 0;
            let count = (1..=2048).contains(&msix.vectors);
            if !aligned || !count || !apart || table_end > size || pending_end > size {
                return Err(DescriptionError::Msix);
            }
        }
        if self.vpd.as_ref().is_some_and(|vpd| vpd.len() > 1 << 15) {
            return Err(DescriptionError::Vpd);
        }
        if self.vendor_registers > 64 {
            return Err(DescriptionError::Vendor);
        }
        Ok(())
    }
}
