//! The header of administration (IBA 15.2.1.1) behind the common one and that of the multi-packet
//! protocol, and the numbers of its attributes and of what it may answer.

/// The class version.
pub const VERSION: u8 = 2;

/// Where the fields stand, counted from the beginning of the datagram.
pub mod field {
    use crate::field::Field;

    /// Key by which the asker is trusted.
    pub const SM_KEY: Field = 36..44;
    /// Distance from one record of a table to the next, in units of eight bytes.
    pub const ATTRIBUTE_OFFSET: Field = 44..46;
    /// Which components of the record count.
    pub const COMPONENT_MASK: Field = 48..56;
    /// The record, or a part of a table of them.
    pub const DATA: Field = 56..256;
    /// The header of the class without that of the multi-packet protocol.
    pub const WHOLE: Field = SM_KEY.start..DATA.start;
}

/// Attributes (IBA 15.2.5).
pub mod attribute {
    /// What an administrator can do.
    pub const CLASS_PORT_INFO: u16 = 0x01;
    /// An event.
    pub const NOTICE: u16 = 0x02;
    /// NodeRecord.
    pub const NODE: u16 = 0x11;
    /// PortInfoRecord.
    pub const PORT_INFO: u16 = 0x12;
    /// SwitchInfoRecord.
    pub const SWITCH_INFO: u16 = 0x14;
    /// SMInfoRecord.
    pub const SM_INFO: u16 = 0x18;
    /// LinkRecord.
    pub const LINK: u16 = 0x20;
    /// PathRecord.
    pub const PATH: u16 = 0x35;
    /// MCMemberRecord.
    pub const MULTICAST_MEMBER: u16 = 0x38;
}

/// Status of this class (IBA 15.2.2).
pub mod status {
    /// There is no room for what is asked.
    pub const NO_RESOURCES: u16 = 0x0100;
    /// The request contradicts itself or what there is.
    pub const INVALID: u16 = 0x0200;
    /// No record is as asked.
    pub const NO_RECORDS: u16 = 0x0300;
    /// One record was asked for, and there are more.
    pub const TOO_MANY_RECORDS: u16 = 0x0400;
    /// A GID is none of the subnet's.
    pub const INVALID_GID: u16 = 0x0500;
    /// The request leaves out what it must say.
    pub const TOO_FEW_COMPONENTS: u16 = 0x0600;
    /// The asker may not do that.
    pub const DENIED: u16 = 0x0700;
}
