//! Values that cross the boundary of the HCA: work requests, completions, attributes.
//!
//! Bit flags and enumerations carry the numeric values of the verbs API, so that a front end
//! converts them by value.

mod address;
mod completion;
mod custom;
mod domain;
mod event;
mod key;
mod qp;
mod receive;
mod send;

pub use address::{AhAttr, Gid};
pub use completion::{Completion, TmInfo, WcFlags, WcOpcode, WcStatus};
pub use custom::{CustomWork, Worked};
pub use domain::{PdId, XrcdId};
pub use event::EventType;
pub use key::{IndirectInit, KeyConfig, KeyLayout, SignatureChange, Stride};
pub(crate) use qp::MIGRATED;
pub use qp::{AttrMask, QpAttr, QpCap, QpState, QpType};
pub use receive::RecvWr;
pub(crate) use send::total_length;
pub use send::{
    Bind, Datagram, Destination, Flush, InlineData, MAX_MESSAGE, MwType, Payload, Remote,
    SendFlags, SendOp, SendWr, SgList, Sge,
};
/// Access rights of a key or a QP (`enum ibv_access_flags`): those of a registration.
pub use umem::AccessFlags as Access;
