//! Addresses that occur twice. Files written by hand and captures put together from several
//! machines have them.

use pcie::Address;
use std::collections::HashSet;

/// Domains that no machine has, for what repeats.
const SPARE: u32 = 0xfffe_0000;

/// Hands out each address once.
#[derive(Default)]
pub(crate) struct Distinct {
    seen: HashSet<Address>,
    /// What was changed, for the reader's notes.
    pub(crate) notes: Vec<String>,
}

impl Distinct {
    /// The address, or one like it in a spare domain if it was taken.
    pub(crate) fn take(&mut self, address: Address) -> Address {
        let mut own = address;
        let mut spare = SPARE;
        while !self.seen.insert(own) {
            own.domain = spare;
            spare += 1;
        }
        if own != address {
            self.notes.push(format!("{address} appears again; the later one is shown as {own}"));
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_gets_another_domain() {
        let mut distinct = Distinct::default();
        let address: Address = "0000:c5:00.0".parse().unwrap();
        assert_eq!(distinct.take(address), address);
        assert!(distinct.notes.is_empty());
        assert_eq!(distinct.take(address).to_string(), "fffe0000:c5:00.0");
        assert_eq!(distinct.take(address).to_string(), "fffe0001:c5:00.0");
        assert_eq!(distinct.notes.len(), 2);
    }
}
