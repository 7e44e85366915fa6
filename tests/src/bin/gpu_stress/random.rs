//! Numbers that a seed repeats (xorshift64*).

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end.max(1)
    }

    /// Some bytes of a range, at least one.
    pub fn part(&mut self, len: u64) -> std::ops::Range<u64> {
        let start = self.below(len);
        start..start + 1 + self.below(len - start)
    }
}
