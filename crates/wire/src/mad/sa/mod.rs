//! Subnet administration (IBA 15.2): the header of its datagrams, their records, and the masks that
//! say what of a record a request means.

mod class_port_info;
mod component;
mod header;
mod member;
mod path;
mod records;

pub use class_port_info::ClassPortInfo;
pub use component::{Component, Template};
pub use header::{VERSION, attribute, field, status};
pub use member::McMemberRecord;
pub use path::PathRecord;
pub use records::{LinkRecord, NodeRecord, PortInfoRecord, SmInfoRecord, SwitchInfoRecord};
