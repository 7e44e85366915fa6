//! The datagram that a message of communication management is, and what several messages share.

use crate::field::{self, Field};
use crate::mad::{HEADER_LEN, Header, MAD_LEN, class, method};

/// The class version.
const VERSION: u8 = 2;

/// Where the fields that several messages begin with stand, counted from the beginning of the
/// message, as all fields of messages are.
pub(super) mod common {
    use crate::field::Field;

    /// The sender's communication id.
    pub(in crate::mad::cm) const LOCAL_ID: Field = 0..4;
    /// The receiver's communication id.
    pub(in crate::mad::cm) const REMOTE_ID: Field = 4..8;
}

/// Kind of a message: attribute of the class (IBA 12.6, table 105).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// Request for a connection.
    Req = 0x10,
    /// Receipt of a message whose answer takes time.
    Mra = 0x11,
    /// Refusal.
    Rej = 0x12,
    /// Reply to a REQ.
    Rep = 0x13,
    /// Ready to use.
    Rtu = 0x14,
    /// Request to disconnect.
    Dreq = 0x15,
    /// Reply to it.
    Drep = 0x16,
    /// Request for a datagram service's queue pair.
    SidrReq = 0x17,
    /// Reply to it.
    SidrRep = 0x18,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::Req,
        Kind::Mra,
        Kind::Rej,
        Kind::Rep,
        Kind::Rtu,
        Kind::Dreq,
        Kind::Drep,
        Kind::SidrReq,
        Kind::SidrRep,
    ];

    /// The kind of an attribute; those for alternate paths, which RoCE has not, are none.
    pub fn of(attribute: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u16 == attribute)
    }
}

/// The two communication ids that most messages begin with, as their sender sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ids {
    /// The sender's.
    pub local: u32,
    /// The receiver's; 0 when the sender does not know it yet.
    pub remote: u32,
}

/// Enhanced connection establishment: options of one vendor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// Vendor, 24 bits.
    pub vendor_id: u32,
    /// Options of the vendor.
    pub attr_mod: u32,
}

/// Which message a REJ or MRA is about, two bits (IBA 12.6.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct About(pub u8);

impl About {
    /// The REQ.
    pub const REQ: About = About(0);
    /// The REP.
    pub const REP: About = About(1);
    /// Another.
    pub const OTHER: About = About(2);
}

/// A datagram being written or read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mad([u8; MAD_LEN]);

impl Mad {
    /// A message that is zero but for its header.
    pub(super) fn new(kind: Kind, tid: u64) -> Mad {
        Mad::with_modifier(kind, tid, 0)
    }

    /// A message that is zero but for its header, with vendor options in that.
    pub(super) fn with_modifier(kind: Kind, tid: u64, modifier: u32) -> Mad {
        let header = Header {
            class: class::COMMUNICATION_MANAGEMENT,
            class_version: VERSION,
            method: method::SEND,
            transaction_id: tid,
            attribute: kind as u16,
            modifier,
            ..Header::default()
        };
        Mad(header.alone())
    }

    /// A message of nothing but its ids: RTU and DREP are.
    pub fn with_ids(kind: Kind, tid: u64, ids: Ids) -> Mad {
        let mut mad = Mad::new(kind, tid);
        mad.set_ids(ids);
        mad
    }

    pub(super) fn set_ids(&mut self, ids: Ids) {
        self.set(common::LOCAL_ID, &ids.local.to_be_bytes());
        self.set(common::REMOTE_ID, &ids.remote.to_be_bytes());
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
        let header = Header::parse(&self.0)?;
        let known = (class::COMMUNICATION_MANAGEMENT, VERSION, method::SEND);
        let is_message = (header.class, header.class_version, header.method) == known;
        is_message.then(|| Kind::of(header.attribute)).flatten()
    }

    /// Transaction id.
    pub fn tid(&self) -> u64 {
        field::be64(&self.0, crate::mad::field::TRANSACTION_ID)
    }

    /// The ids that it begins with. Those of a REQ have no receiver's, those of the SIDR messages
    /// are none.
    pub fn ids(&self) -> Ids {
        Ids { local: self.u32(common::LOCAL_ID), remote: self.u32(common::REMOTE_ID) }
    }

    /// The modifier of the attribute, which holds vendor options.
    pub(super) fn modifier(&self) -> u32 {
        field::be32(&self.0, crate::mad::field::ATTRIBUTE_MODIFIER)
    }

    fn message(&self) -> &[u8] {
        &self.0[HEADER_LEN..]
    }

    pub(super) fn array<const N: usize>(&self, at: Field) -> [u8; N] {
        field::get(self.message(), at)
    }

    pub(super) fn u8(&self, at: usize) -> u8 {
        field::byte(self.message(), at)
    }

    pub(super) fn u16(&self, at: Field) -> u16 {
        field::be16(self.message(), at)
    }

    pub(super) fn u24(&self, at: Field) -> u32 {
        field::be24(self.message(), at)
    }

    pub(super) fn u32(&self, at: Field) -> u32 {
        field::be32(self.message(), at)
    }

    pub(super) fn u64(&self, at: Field) -> u64 {
        field::be64(self.message(), at)
    }

    pub(super) fn set(&mut self, at: Field, bytes: &[u8]) {
        field::put(&mut self.0[HEADER_LEN..], at, bytes);
    }

    pub(super) fn set_u8(&mut self, at: usize, value: u8) {
        field::put_byte(&mut self.0[HEADER_LEN..], at, value);
    }

    pub(super) fn set_u24(&mut self, at: Field, value: u32) {
        field::put_be24(&mut self.0[HEADER_LEN..], at, value);
    }
}
