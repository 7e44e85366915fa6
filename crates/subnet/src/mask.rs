//! Component masks (IBA 15.2.1.1): which components of a record a request names, and whether a record has them so.

use crate::bytes::get;

/// Where a component is in a record, in bits; 128 at most, within 17 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Component {
    at: usize,
    len: usize,
}

/// A component of whole bytes.
pub(crate) const fn bytes(at: usize, len: usize) -> Component {
    Component { at: at * 8, len: len * 8 }
}

/// One of `len` bits from bit `at` on.
pub(crate) const fn bits(at: usize, len: usize) -> Component {
    Component { at, len }
}

impl Component {
    pub(crate) fn of(self, record: &[u8]) -> u128 {
        let whole = u128::from_be_bytes(get(record, self.at / 8));
        let shifted = whole << (self.at % 8);
        shifted >> (128 - self.len)
    }
}

/// What a request says of records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template<'a> {
    pub(crate) mask: u64,
    pub(crate) record: &'a [u8],
}

impl Template<'_> {
    pub(crate) fn names(&self, component: usize) -> bool {
        self.mask >> component & 1 == 1
    }

    /// Whether `record` has every component named among `known`, by their numbers, as the request does.
    pub(crate) fn matches(&self, record: &[u8], known: &[(usize, Component)]) -> bool {
        known
            .iter()
            .filter(|(number, _)| self.names(*number))
            .all(|(_, component)| component.of(record) == component.of(self.record))
    }

    /// Whether the selected range at `at` (a selector of 2 bits, and a code of 6) holds `value`. `selector` and `component` are
    /// their numbers; without one of them anything goes.
    pub(crate) fn selects(&self, selector: usize, component: usize, at: usize, value: u8) -> bool {
        if !self.names(selector) || !self.names(component) {
            return true;
        }
        let [byte] = get(self.record, at);
        let wanted = byte & 0x3f;
        match byte >> 6 {
            GREATER => value > wanted,
            LESS => value < wanted,
            EXACTLY => value == wanted,
            // The largest available.
            _ => true,
        }
    }
}

const GREATER: u8 = 0;
const LESS: u8 = 1;
/// Selector of the value itself.
pub(crate) const EXACTLY: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_compared_where_they_are_named() {
        let known = [(0, bytes(0, 2)), (3, bits(20, 20))];
        let wanted = [1, 2, 0xa3, 4, 5, 6];
        let named = |mask| Template { mask, record: &wanted };
        let other = [1, 2, 0xb3, 4, 5, 7];
        assert!(named(0b1001).matches(&other, &known), "only the high bits of byte 2 differ");
        assert!(!named(0b1000).matches(&[1, 2, 0xb3, 4, 4, 7], &known));
        assert!(named(0b0001).matches(&[1, 2], &known));
        assert!(!named(0b0001).matches(&[1, 3], &known));
    }

    #[test]
    fn selectors_give_ranges() {
        let selects = |byte: u8, value| {
            let record = [byte];
            Template { mask: 0b11, record: &record }.selects(0, 1, 0, value)
        };
        assert!(selects(GREATER << 6 | 4, 5) && !selects(GREATER << 6 | 5, 5));
        assert!(selects(LESS << 6 | 6, 5) && !selects(LESS << 6 | 5, 5));
        assert!(selects(EXACTLY << 6 | 5, 5) && !selects(EXACTLY << 6 | 4, 5));
        assert!(selects(3 << 6, 5));
    }
}
