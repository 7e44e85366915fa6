//! The pieces that a translated range lies in, in a place of fixed size: an access must not
//! allocate.

/// Pieces at most: a packet touches two units.
const MOST: usize = 2;

/// Bytes that follow each other, and the number of the way there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) number: u16,
}

/// The pieces of a range, in order.
pub(crate) struct Pieces {
    at: [Piece; MOST],
    used: usize,
}

impl Pieces {
    #[inline]
    pub(crate) fn new() -> Pieces {
        Pieces { at: [Piece { addr: 0, len: 0, number: 0 }; MOST], used: 0 }
    }

    /// Adds bytes, to the last piece if they follow it; `false` when full.
    #[inline]
    pub(crate) fn push(&mut self, addr: u64, number: u16, len: u64) -> bool {
        if let Some(last) = self.at[..self.used].last_mut()
            && last.number == number
            && last.addr.wrapping_add(last.len) == addr
        {
            last.len += len;
            return true;
        }
        let Some(place) = self.at.get_mut(self.used) else { return false };
        *place = Piece { addr, len, number };
        self.used += 1;
        true
    }

    #[inline]
    pub(crate) fn found(&self) -> &[Piece] {
        &self.at[..self.used]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_one_piece() {
        let mut pieces = Pieces::new();
        assert!(pieces.push(0x1800, 0, 0x800) && pieces.push(0x2000, 0, 0x1000));
        assert_eq!(pieces.found(), [Piece { addr: 0x1800, len: 0x1800, number: 0 }]);
        assert!(pieces.push(0x3000, 1, 0x1000), "another way");
        assert!(!pieces.push(0x5000, 1, 0x1000), "another address, and no room");
        assert!(pieces.push(0x4000, 1, 4));
        assert_eq!((pieces.found().len(), pieces.found()[1].len), (2, 0x1004));
    }
}
