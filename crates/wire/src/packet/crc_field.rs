//! Arithmetic in the field that CRC-32 lives in: polynomials over GF(2) modulo the CRC's generator.
//!
//! Bits are reflected as in the CRC register: bit 31 is x^0, bit 0 is x^31. Appending a zero byte
//! to a message multiplies the register by x^8. Everything is `const`, so fixed distances become
//! tables at compile time.

/// The generator x^32 + x^26 + … + 1 without its highest term, reflected.
const GENERATOR: u32 = 0xedb8_8320;

/// The polynomial 1.
pub(crate) const ONE: u32 = 1 << 31;

/// `a` times `b`.
pub(crate) const fn mul(a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut shifted = b;
    let mut i = 32;
    while i > 0 {
        i -= 1;
        if a >> i & 1 != 0 {
            product ^= shifted;
        }
        shifted = times_x(shifted);
    }
    product
}

const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 != 0 { GENERATOR } else { 0 }
}

/// `a` divided by x: undoes [`times_x`], whose result has its top bit set exactly when it added the
/// generator.
const fn over_x(a: u32) -> u32 {
    if a & ONE != 0 { (a ^ GENERATOR) << 1 | 1 } else { a << 1 }
}

/// x^8 to the power of `n`: what `n` bytes that follow do to the register.
pub(crate) const fn x8_pow(n: u32) -> u32 {
    pow(mul_by_x8(ONE), n)
}

/// x^-8 to the power of `n`: undoes [`x8_pow`].
pub(crate) const fn x8_pow_neg(n: u32) -> u32 {
    let mut inverse = ONE;
    let mut i = 0;
    while i < 8 {
        inverse = over_x(inverse);
        i += 1;
    }
    pow(inverse, n)
}

const fn mul_by_x8(mut a: u32) -> u32 {
    let mut i = 0;
    while i < 8 {
        a = times_x(a);
        i += 1;
    }
    a
}

const fn pow(base: u32, mut n: u32) -> u32 {
    let mut result = ONE;
    let mut square = base;
    while n != 0 {
        if n & 1 != 0 {
            result = mul(result, square);
        }
        square = mul(square, square);
        n >>= 1;
    }
    result
}

/// Multiplication by a fixed factor as look-ups, four bits at a time; `N` = 4 for 16-bit arguments,
/// 8 for 32.
#[derive(Clone, Copy)]
pub(crate) struct Times<const N: usize>([[u32; 16]; N]);

impl<const N: usize> Times<N> {
    /// Multiplication by `factor`.
    pub(crate) const fn new(factor: u32) -> Times<N> {
        let mut table = [[0; 16]; N];
        let mut nibble = 0;
        while nibble < N {
            let mut value = 1;
            while value < 16 {
                // Each entry is the sum of two earlier ones, so that only powers of two cost a
                // multiplication.
                let low = value & (value - 1);
                table[nibble][value] = if low == 0 {
                    mul((value as u32) << (4 * nibble), factor)
                } else {
                    table[nibble][low] ^ table[nibble][value ^ low]
                };
                value += 1;
            }
            nibble += 1;
        }
        Times(table)
    }

    /// The low 4·`N` bits of `value` times the factor.
    #[inline]
    pub(crate) fn apply(&self, value: u32) -> u32 {
        let mut product = 0;
        for (nibble, row) in self.0.iter().enumerate() {
            product ^= row[(value >> (4 * nibble) & 15) as usize];
        }
        product
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_and_inverses_cancel() {
        for n in [0, 1, 2, 3, 24, 1000, 65_535] {
            assert_eq!(mul(x8_pow(n), x8_pow_neg(n)), ONE, "n = {n}");
        }
    }

    #[test]
    fn appending_zero_bytes_multiplies_the_register() {
        // A register difference before k bytes is the difference after them, times x^8k.
        for k in [0usize, 1, 5, 40, 4096] {
            let tail = vec![0x5a; k];
            let end = |first: u8| {
                let mut hasher = crc32fast::Hasher::new();
                hasher.update(&[first]);
                hasher.update(&tail);
                hasher.finalize()
            };
            let before = crc32fast::hash(&[1]) ^ crc32fast::hash(&[7]);
            assert_eq!(end(1) ^ end(7), mul(before, x8_pow(k as u32)), "k = {k}");
        }
    }

    #[test]
    fn table_equals_multiplication() {
        let factor = x8_pow(37);
        let (short, long) = (Times::<4>::new(factor), Times::<8>::new(factor));
        for value in [0, 1, 0x8000, 0xffff, 0x1234, 0xdead_beef, u32::MAX] {
            assert_eq!(long.apply(value), mul(value, factor));
            assert_eq!(short.apply(value), mul(value & 0xffff, factor));
        }
    }
}
