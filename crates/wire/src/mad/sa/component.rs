//! Component masks (IBA 15.2.1.1): which components of a record a request names, and whether a
//! record has them so.

use crate::field::{Field, byte, get};

/// A component of a record: its number in the mask, and its place in bits. It is of whole bytes, or
/// lies within 17 bytes and has 128 bits at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Component {
    number: u32,
    at: usize,
    len: usize,
}

impl Component {
    /// A component that is a field.
    pub const fn bytes(number: u32, field: Field) -> Component {
        Component { number, at: field.start * 8, len: (field.end - field.start) * 8 }
    }

    /// A component of `len` bits from bit `at` of a field on.
    pub const fn bits(number: u32, field: Field, at: usize, len: usize) -> Component {
        Component { number, at: field.start * 8 + at, len }
    }

    /// The bytes that it touches.
    pub const fn field(self) -> Field {
        self.at / 8..(self.at + self.len).div_ceil(8)
    }

    /// Whether two records have it alike; what is not there is zero.
    fn is_equal(self, one: &[u8], other: &[u8]) -> bool {
        if self.len <= 128 {
            return self.value(one) == self.value(other);
        }
        self.field().all(|at| byte(one, at) == byte(other, at))
    }

    fn value(self, record: &[u8]) -> u128 {
        let first = self.at / 8;
        let whole = u128::from_be_bytes(get(record, first..first + 16));
        let shifted = whole << (self.at % 8);
        shifted >> (128 - self.len)
    }
}

/// What a request says of records.
#[derive(Clone, Copy, Debug)]
pub struct Template<'a> {
    /// Which components count.
    pub mask: u64,
    /// A record with them.
    pub record: &'a [u8],
}

impl Template<'_> {
    /// Whether a component counts.
    pub fn names(&self, component: Component) -> bool {
        self.mask.checked_shr(component.number).is_some_and(|mask| mask & 1 == 1)
    }

    /// Whether `record` has every component that counts among `known` as the request has it.
    pub fn matches(&self, record: &[u8], known: &[Component]) -> bool {
        known
            .iter()
            .filter(|component| self.names(**component))
            .all(|component| component.is_equal(record, self.record))
    }

    /// Whether the range that a selector of two bits and the code of six bits behind it name holds
    /// `value`. Without one of them anything is right. `selected` is the code's component, before
    /// whose number the selector's is.
    pub fn selects(&self, selected: Component, value: u8) -> bool {
        let selector = Component { number: selected.number.saturating_sub(1), ..selected };
        if !self.names(selector) || !self.names(selected) {
            return true;
        }
        let byte = byte(self.record, selected.field().start);
        let wanted = byte & SELECTED;
        match byte >> 6 {
            GREATER => value > wanted,
            LESS => value < wanted,
            EXACTLY => value == wanted,
            // The largest available.
            _ => true,
        }
    }

    /// The code of six bits that a selected component of the request has if it names the selector
    /// and means the value itself.
    pub fn exactly(&self, selected: Component) -> Option<u8> {
        let selector = Component { number: selected.number.saturating_sub(1), ..selected };
        let byte = byte(self.record, selected.field().start);
        (byte >> 6 == EXACTLY && self.names(selector)).then_some(byte & SELECTED)
    }
}

const GREATER: u8 = 0;
const LESS: u8 = 1;
/// Selector of the value itself.
const EXACTLY: u8 = 2;
/// The bits of a selected component without its selector.
pub(super) const SELECTED: u8 = 0x3f;

/// A component of a selector and a code: exactly this code.
pub(super) const fn exactly(code: u8) -> u8 {
    EXACTLY << 6 | code & SELECTED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_compared_where_they_are_named() {
        let known = [Component::bytes(0, 0..2), Component::bits(3, 2..5, 4, 20)];
        let wanted = [1, 2, 0xa3, 4, 5, 6];
        let named = |mask| Template { mask, record: &wanted };
        let other = [1, 2, 0xb3, 4, 5, 7];
        assert!(named(0b1001).matches(&other, &known), "only the high bits of byte 2 differ");
        assert!(!named(0b1000).matches(&[1, 2, 0xb3, 4, 4, 7], &known));
        assert!(named(0b0001).matches(&[1, 2], &known));
        assert!(!named(0b0001).matches(&[1, 3], &known));
    }

    #[test]
    fn long_components_are_compared_whole() {
        let known = [Component::bytes(5, 4..68)];
        let (one, mut other) = ([7; 72], [7; 72]);
        (other[3], other[68]) = (0, 0);
        let wanted = Template { mask: 1 << 5, record: &one };
        assert!(wanted.matches(&other, &known));
        other[67] = 0;
        assert!(!wanted.matches(&other, &known));
    }

    #[test]
    fn selectors_give_ranges() {
        let selected = Component::bytes(1, 0..1);
        let selects = |byte: u8, value| {
            let record = [byte];
            Template { mask: 0b11, record: &record }.selects(selected, value)
        };
        assert!(selects(GREATER << 6 | 4, 5) && !selects(GREATER << 6 | 5, 5));
        assert!(selects(LESS << 6 | 6, 5) && !selects(LESS << 6 | 5, 5));
        assert!(selects(exactly(5), 5) && !selects(exactly(4), 5));
        assert!(selects(3 << 6, 5));
        let record = [exactly(4)];
        let half = Template { mask: 0b01, record: &record };
        assert!(half.selects(selected, 5), "the code does not count");
        assert_eq!(half.exactly(selected), Some(4));
        assert_eq!(Template { mask: 0b10, record: &record }.exactly(selected), None);
    }
}
