//! Functions of one process that are plugged into one machine: they reach each other's memory
//! directly.
//!
//! A machine tells a function of another's BAR without a descriptor (QEMU 11.1 has none for what it
//! mapped itself), so every access would be a message through the machine. Where the other function
//! is served here as well, its memory is at hand.

use engine_thread::lock;
use mm::Mapping;
use std::sync::{Arc, Mutex, Weak};

/// Functions that may find each other in one machine. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Neighbours(Arc<Mutex<Vec<Weak<Windows>>>>);

/// Where one function's memory lies in its machine.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<Vec<Window>>);

/// One BAR of plain memory that answers.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// The process that is the machine.
    pub(crate) machine: u32,
    /// The address of its first byte.
    pub(crate) address: u64,
    pub(crate) memory: Arc<Mapping>,
}

impl Neighbours {
    /// A place for a function.
    pub(crate) fn join(&self) -> Arc<Windows> {
        let windows = Arc::new(Windows::default());
        let mut all = lock(&self.0);
        all.retain(|windows| windows.strong_count() > 0);
        all.push(Arc::downgrade(&windows));
        windows
    }

    /// The memory that lies at `[address, address + size)` in a machine, and where in it that
    /// begins.
    pub(crate) fn find(
        &self,
        machine: u32,
        address: u64,
        size: u64,
    ) -> Option<(Arc<Mapping>, u64)> {
        let end = address.checked_add(size)?;
        let all: Vec<_> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        all.iter().find_map(|windows| {
            let windows = lock(&windows.0);
            let holds = |window: &&Window| {
                let last = window.address.checked_add(window.memory.len());
                window.machine == machine
                    && window.address <= address
                    && last.is_some_and(|last| end <= last)
            };
            let window = windows.iter().find(holds)?;
            Some((window.memory.clone(), address - window.address))
        })
    }
}

impl Windows {
    /// From here on the function's memory lies there, and nowhere else.
    pub(crate) fn set(&self, windows: Vec<Window>) {
        *lock(&self.0) = windows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_in_its_own_machine_and_whole() {
        let neighbours = Neighbours::default();
        let memory = Arc::new(Mapping::anonymous(0x2000).unwrap());
        let windows = neighbours.join();
        windows.set(vec![Window { machine: 7, address: 0x1000, memory }]);
        let found = |machine, address, size| {
            neighbours.find(machine, address, size).map(|(_, offset)| offset)
        };
        assert_eq!(found(7, 0x1000, 0x2000), Some(0));
        assert_eq!(found(7, 0x2000, 0x1000), Some(0x1000));
        assert_eq!(found(8, 0x1000, 0x2000), None, "another machine");
        for (address, size) in [(0xfff, 2), (0x1000, 0x2001), (0x3000, 1), (u64::MAX, 2)] {
            assert_eq!(found(7, address, size), None, "{address:#x}");
        }
        windows.set(Vec::new());
        assert_eq!(found(7, 0x1000, 1), None);
        drop(windows);
        assert!(neighbours.join().0.lock().unwrap().is_empty());
    }
}
