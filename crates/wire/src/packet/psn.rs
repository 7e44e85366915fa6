//! Packet sequence numbers: 24 bits, compared on a circle (IBA 9.7.2).

/// A packet sequence number, always below 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    /// How many values there are.
    pub const SPAN: u32 = 1 << 24;

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & (Psn::SPAN - 1))
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `count` places further on the circle.
    pub const fn plus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// The number `count` places before on the circle.
    pub const fn minus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(count))
    }

    /// How far `self` lies after `base`: negative when it lies before. From -2^23 to 2^23 - 1.
    pub const fn after(self, base: Psn) -> i32 {
        ((self.0.wrapping_sub(base.0) << 8) as i32) >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_at_24_bits() {
        assert_eq!(Psn::new(Psn::SPAN).get(), 0);
        assert_eq!(Psn::new(0xff_ffff).plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(5).plus(u32::MAX).get(), 4);
    }

    #[test]
    fn distance_is_signed_and_crosses_the_wrap() {
        let base = Psn::new(0xff_fff0);
        for distance in [0, 1, 15, 16, 17, 1 << 22, (1 << 23) - 1] {
            assert_eq!(base.plus(distance).after(base), distance as i32);
            assert_eq!(base.minus(distance).after(base), -(distance as i32));
        }
        assert_eq!(base.plus(1 << 23).after(base), -(1 << 23));
    }
}
