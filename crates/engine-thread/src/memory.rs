//! Whether the system still has memory.
//!
//! Rust ends the process whose small allocation fails, so an allocator in other people's processes
//! keeps something back for when malloc refuses. Small allocations that may fail take from it too,
//! and never hear of it: whoever makes many of them asks here in between.

/// What there is room for after [`has_memory`]; pieces of what an allocator keeps back are smaller.
pub const ROOM_BYTES: usize = 64 << 10;

/// Whether malloc has [`ROOM_BYTES`] in one piece.
pub fn has_memory() -> bool {
    let mut room: Vec<u8> = Vec::new();
    let found = room.try_reserve_exact(ROOM_BYTES).is_ok();
    // Otherwise the compiler takes the allocation for done.
    std::hint::black_box(&room);
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_memory() {
        assert!(super::has_memory());
    }
}
