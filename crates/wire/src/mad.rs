//! Management datagrams: 256 bytes, a common header and what a class makes of the rest (IBA 13.4).

use crate::cm::Kind;

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;

/// Where the message begins, behind the common header.
const BODY: usize = 24;
const BASE_VERSION: u8 = 1;
/// Communication management (IBA 13.4.4), and its version.
const CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

/// The two communication ids that most messages begin with, as their sender sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ids {
    /// The sender's.
    pub local: u32,
    /// The receiver's; 0 when the sender does not know it yet.
    pub remote: u32,
}

/// A datagram being written or read. Offsets count from the message's begin; all of them are constants within it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mad([u8; MAD_LEN]);

impl Mad {
    /// A message of the communication management class, otherwise zero.
    pub(crate) fn new(kind: Kind, tid: u64) -> Mad {
        let mut mad = Mad([0; MAD_LEN]);
        mad.0[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND]);
        mad.0[8..16].copy_from_slice(&tid.to_be_bytes());
        mad.0[16..18].copy_from_slice(&(kind as u16).to_be_bytes());
        mad
    }

    /// A message of nothing but its ids: RTU and DREP are.
    pub fn with_ids(kind: Kind, tid: u64, ids: Ids) -> Mad {
        let mut mad = Mad::new(kind, tid);
        mad.set(0, &ids.local.to_be_bytes());
        mad.set(4, &ids.remote.to_be_bytes());
        mad
    }

    /// A datagram that was received.
    pub fn from_bytes(bytes: &[u8; MAD_LEN]) -> Mad {
        Mad(*bytes)
    }

    /// The datagram as it is sent.
    pub fn bytes(&self) -> &[u8; MAD_LEN] {
        &self.0
    }

    /// Kind of a message of communication management; `None` for anything else.
    pub fn kind(&self) -> Option<Kind> {
        if self.0[..4] != [BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND] {
            return None;
        }
        Kind::of(u16::from_be_bytes([self.0[16], self.0[17]]))
    }

    /// Transaction id.
    pub fn tid(&self) -> u64 {
        u64::from_be_bytes(self.array_from(8))
    }

    /// The ids that it begins with. Those of a REQ have no receiver's, those of the SIDR messages are none.
    pub fn ids(&self) -> Ids {
        Ids { local: self.u32(0), remote: self.u32(4) }
    }

    pub(crate) fn set_attr_mod(&mut self, value: u32) {
        self.0[20..24].copy_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn attr_mod(&self) -> u32 {
        u32::from_be_bytes(self.array_from(20))
    }

    fn array_from<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }

    pub(crate) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.array_from(BODY + at)
    }

    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.0[BODY + at]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub(crate) fn u24(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.u8(at), self.u8(at + 1), self.u8(at + 2)])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    pub(crate) fn set(&mut self, at: usize, bytes: &[u8]) {
        self.0[BODY + at..BODY + at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn set_u24(&mut self, at: usize, value: u32) {
        let [_, bytes @ ..] = value.to_be_bytes();
        self.set(at, &bytes);
    }
}
