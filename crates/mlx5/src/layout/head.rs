//! What every command and every answer begin with, and why a command is refused (PRM "Command
//! Interface").

use crate::layout::bits::{Field, put};

pub(crate) const OPCODE: Field = Field::new(0x0, 16);
pub(crate) const OP_MOD: Field = Field::new(0x30, 16);
/// The user context that a command is of; 0 is the driver.
pub(crate) const UID: Field = Field::new(0x10, 16);
/// The driver makes something that all users may name (`MLX5_SHARED_RESOURCE_UID`).
pub(crate) const SHARED: u16 = 0xffff;
/// Number of the object that a command is about, in most of them.
pub(crate) const OBJECT: Field = Field::new(0x48, 24);
/// Bytes of status and syndrome before an answer, and least of an answer.
pub(crate) const HEAD_LEN: usize = 8;
pub(crate) const LEAST_LEN: usize = 16;

/// Status of a command that was delivered (PRM "Command Return Status", `MLX5_CMD_STAT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(u8)]
pub(crate) enum Status {
    /// Something failed within the device.
    #[error("internal error")]
    Internal = 0x1,
    /// No such command.
    #[error("bad operation")]
    BadOperation = 0x2,
    /// A parameter is wrong.
    #[error("bad parameter")]
    BadParameter = 0x3,
    /// Not before the function is initialized, or not twice.
    #[error("bad system state")]
    BadSystemState = 0x4,
    /// No such object.
    #[error("bad resource")]
    BadResource = 0x5,
    /// The object is in use.
    #[error("resource busy")]
    Busy = 0x6,
    /// Beyond a limit.
    #[error("limits exceeded")]
    Limits = 0x8,
    /// Not in this state of the object.
    #[error("bad resource state")]
    BadResourceState = 0x9,
    /// An index beyond a table.
    #[error("bad index")]
    BadIndex = 0xa,
    /// No object is left.
    #[error("no resources")]
    NoResources = 0xf,
    /// The queue pair is in another state.
    #[error("bad queue pair state")]
    BadQpState = 0x10,
    /// The command is too short or too long.
    #[error("bad input length")]
    BadInputLength = 0x50,
}

impl From<hca::Error> for Status {
    fn from(error: hca::Error) -> Status {
        match error {
            hca::Error::Invalid(_) => Status::BadParameter,
            hca::Error::NoMemory(_) => Status::NoResources,
            hca::Error::Busy(_) => Status::Busy,
            hca::Error::NotSupported(_) => Status::BadOperation,
            _ => Status::Internal,
        }
    }
}

/// A command's answer beyond status and syndrome, or why there is none.
pub(crate) type Answer = Result<Vec<u8>, Status>;

/// An answer that says nothing but that the command is done.
pub(crate) fn done() -> Answer {
    Ok(vec![0; HEAD_LEN])
}

/// An answer with a number in its usual place.
pub(crate) fn number(number: u32) -> Answer {
    let mut answer = vec![0; HEAD_LEN];
    put(&mut answer, 0, &(number & 0xff_ffff).to_be_bytes());
    Ok(answer)
}

/// Whether a user's command, not the driver's own, makes something.
pub(crate) fn is_of_user(uid: u16) -> bool {
    !matches!(uid, 0 | SHARED)
}

/// Why a command was not delivered (PRM "Command Delivery Status", `MLX5_CMD_DELIVERY_STAT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(u8)]
pub(crate) enum Delivery {
    /// The entry's signature.
    #[error("wrong signature")]
    Signature = 1,
    /// A mailbox's token is not the entry's.
    #[error("wrong token")]
    Token = 2,
    /// A mailbox's number is not its place.
    #[error("wrong block number")]
    BlockNumber = 3,
    /// The answer's chain is too short, not aligned or not there.
    #[error("bad output pointer")]
    OutputPointer = 4,
    /// The command's chain is.
    #[error("bad input pointer")]
    InputPointer = 5,
    /// Less than a command has, or more than a mailbox chain may have.
    #[error("bad input length")]
    InputLength = 7,
    /// The same for the answer.
    #[error("bad output length")]
    OutputLength = 8,
    /// The entry is no command.
    #[error("bad descriptor")]
    Descriptor = 0x10,
}
