//! A context as its driver gave it (`cqc`, `qpc` and their like): it is kept whole, and a query
//! gives it back with some of its fields as they are now.

use crate::layout::bits::Field;

/// The bytes of a context; fields count from its start.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Context(Vec<u8>);

impl Context {
    pub(crate) fn get(&self, field: Field) -> u64 {
        field.get(&self.0)
    }

    pub(crate) fn get32(&self, field: Field) -> u32 {
        field.get32(&self.0)
    }

    /// Whether a field of one bit is set.
    pub(crate) fn is_set(&self, field: Field) -> bool {
        field.is_set(&self.0)
    }

    /// Stores the low bits of `value`.
    pub(crate) fn set(&mut self, field: Field, value: u64) {
        field.set(&mut self.0, value);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Context {
    fn from(bytes: &[u8]) -> Context {
        Context(bytes.to_vec())
    }
}
