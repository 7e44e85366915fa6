//! The header that every management datagram begins with (IBA 13.4.2), and the numbers in it that
//! all classes share.

use crate::field::{be16, be32, be64, get, put};

/// Length of a management datagram, in bytes.
pub const MAD_LEN: usize = 256;
/// Length of the common header, in bytes.
pub const HEADER_LEN: usize = field::ATTRIBUTE_MODIFIER.end;
/// The only version of the common header.
pub const BASE_VERSION: u8 = 1;

/// Where the fields stand.
pub mod field {
    use crate::field::Field;

    /// Version of this header.
    pub const BASE_VERSION: usize = 0;
    /// Class of management.
    pub const CLASS: usize = 1;
    /// Version of what the class defines.
    pub const CLASS_VERSION: usize = 2;
    /// What is asked for or answered.
    pub const METHOD: usize = 3;
    /// Status of an answer.
    pub const STATUS: Field = 4..6;
    /// What a class makes of these bytes: hops of a directed route.
    pub const CLASS_SPECIFIC: Field = 6..8;
    /// Ties an answer to its question.
    pub const TRANSACTION_ID: Field = 8..16;
    /// What the datagram is about.
    pub const ATTRIBUTE_ID: Field = 16..18;
    /// Which part of the attribute, or more about it.
    pub const ATTRIBUTE_MODIFIER: Field = 20..24;
}

/// Classes of management (IBA 13.4.4).
pub mod class {
    /// Subnet management, routed by LID.
    pub const SUBNET_MANAGEMENT: u8 = 0x01;
    /// Subnet administration.
    pub const SUBNET_ADMINISTRATION: u8 = 0x03;
    /// Communication management.
    pub const COMMUNICATION_MANAGEMENT: u8 = 0x07;
    /// Subnet management along a directed route.
    pub const DIRECTED_ROUTE: u8 = 0x81;
}

/// Methods (IBA 13.4.5, 15.2.2).
pub mod method {
    /// Asks for an attribute.
    pub const GET: u8 = 0x01;
    /// Changes an attribute.
    pub const SET: u8 = 0x02;
    /// Carries a message of its class.
    pub const SEND: u8 = 0x03;
    /// Tells of an event.
    pub const REPORT: u8 = 0x06;
    /// Asks for a table of records.
    pub const GET_TABLE: u8 = 0x12;
    /// Deletes a record.
    pub const DELETE: u8 = 0x15;
    /// Set in the method of every answer.
    pub const RESPONSE: u8 = 0x80;
    /// Answers [`GET`] and [`SET`].
    pub const GET_RESPONSE: u8 = GET | RESPONSE;
}

/// Status of an answer, as all classes give it (IBA 13.4.7).
pub mod status {
    /// The class version is not supported.
    pub const BAD_VERSION: u16 = 1 << 2;
    /// The method is not supported.
    pub const BAD_METHOD: u16 = 2 << 2;
    /// Method and attribute are not supported together.
    pub const BAD_ATTRIBUTE: u16 = 3 << 2;
    /// A field of the attribute or its modifier is invalid.
    pub const BAD_FIELD: u16 = 7 << 2;
}

/// The common header of a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Class of management.
    pub class: u8,
    /// Version of what the class defines.
    pub class_version: u8,
    /// What is asked for or answered.
    pub method: u8,
    /// Status of an answer.
    pub status: u16,
    /// What the class makes of these bytes.
    pub class_specific: [u8; 2],
    /// Ties an answer to its question.
    pub transaction_id: u64,
    /// What the datagram is about.
    pub attribute: u16,
    /// Which part of the attribute, or more about it.
    pub modifier: u32,
}

impl Header {
    /// The header of a datagram; `None` if it is of another version.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Option<Header> {
        (mad[field::BASE_VERSION] == BASE_VERSION).then(|| Header {
            class: mad[field::CLASS],
            class_version: mad[field::CLASS_VERSION],
            method: mad[field::METHOD],
            status: be16(mad, field::STATUS),
            class_specific: get(mad, field::CLASS_SPECIFIC),
            transaction_id: be64(mad, field::TRANSACTION_ID),
            attribute: be16(mad, field::ATTRIBUTE_ID),
            modifier: be32(mad, field::ATTRIBUTE_MODIFIER),
        })
    }

    /// Writes the header to the front of a datagram.
    pub fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        mad[field::BASE_VERSION] = BASE_VERSION;
        mad[field::CLASS] = self.class;
        mad[field::CLASS_VERSION] = self.class_version;
        mad[field::METHOD] = self.method;
        put(mad, field::STATUS, &self.status.to_be_bytes());
        put(mad, field::CLASS_SPECIFIC, &self.class_specific);
        put(mad, field::TRANSACTION_ID, &self.transaction_id.to_be_bytes());
        put(mad, field::ATTRIBUTE_ID, &self.attribute.to_be_bytes());
        put(mad, field::ATTRIBUTE_MODIFIER, &self.modifier.to_be_bytes());
    }

    /// A datagram of this header and nothing else.
    pub fn alone(&self) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        self.emit(&mut mad);
        mad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_made() {
        let header = Header {
            class: class::SUBNET_ADMINISTRATION,
            class_version: 2,
            method: method::GET_TABLE,
            status: 0x0102,
            class_specific: [3, 4],
            transaction_id: 0x0506_0708_090a_0b0c,
            attribute: 0x0d0e,
            modifier: 0x0f10_1112,
        };
        let mut mad = header.alone();
        let expected =
            [1, 3, 2, 0x12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 0, 15, 16, 17, 18];
        assert_eq!(mad[..HEADER_LEN], expected);
        assert_eq!(mad[HEADER_LEN..], [0; MAD_LEN - HEADER_LEN]);
        assert_eq!(Header::parse(&mad), Some(header));
        mad[0] = 2;
        assert_eq!(Header::parse(&mad), None);
    }
}
