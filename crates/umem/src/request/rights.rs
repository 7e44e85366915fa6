//! The rights that a registration asks for, with the kernel's numbers, and what a device offers of
//! them.

bitflags::bitflags! {
    /// Access rights with the numbers of `enum ib_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AccessFlags: u32 {
        /// Local write.
        const LOCAL_WRITE = 1;
        /// Remote write.
        const REMOTE_WRITE = 1 << 1;
        /// Remote read.
        const REMOTE_READ = 1 << 2;
        /// Remote atomic.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging.
        const ON_DEMAND = 1 << 6;
        /// Huge pages.
        const HUGETLB = 1 << 7;
        /// Flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Relaxed ordering.
        const RELAXED_ORDERING = 1 << 20;
    }

    /// What a re-registration changes (`enum ibv_rereg_mr_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Rereg: u32 {
        /// Address, length and iova.
        const TRANSLATION = 1;
        /// Protection domain.
        const PD = 2;
        /// Access rights.
        const ACCESS = 4;
    }
}

/// Bits that a device may not know and must then ignore (`IB_ACCESS_OPTIONAL`): 20 to 29.
pub const OPTIONAL: AccessFlags = AccessFlags::from_bits_retain(0x3ff0_0000);

impl AccessFlags {
    /// Whether the memory must be writable (`ib_access_writable`).
    pub fn wants_write(self) -> bool {
        let writing =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        self.intersects(writing | AccessFlags::MW_BIND)
    }
}

/// What a device offers beyond the plain rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offered {
    /// On-demand paging.
    pub on_demand: bool,
    /// Flush to global visibility.
    pub flush_global: bool,
    /// Flush to persistence.
    pub flush_persistent: bool,
}
