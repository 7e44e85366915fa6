//! Numbers of the commands (PRM "Command Interface", `MLX5_CMD_OP_*`), and what is answered about a command as a whole.

pub(crate) const QUERY_HCA_CAP: u16 = 0x100;
pub(crate) const QUERY_ADAPTER: u16 = 0x101;
pub(crate) const INIT_HCA: u16 = 0x102;
pub(crate) const TEARDOWN_HCA: u16 = 0x103;
pub(crate) const ENABLE_HCA: u16 = 0x104;
pub(crate) const DISABLE_HCA: u16 = 0x105;
pub(crate) const QUERY_PAGES: u16 = 0x107;
pub(crate) const MANAGE_PAGES: u16 = 0x108;
pub(crate) const SET_HCA_CAP: u16 = 0x109;
pub(crate) const QUERY_ISSI: u16 = 0x10a;
pub(crate) const SET_ISSI: u16 = 0x10b;
pub(crate) const SET_DRIVER_VERSION: u16 = 0x10d;
pub(crate) const CREATE_MKEY: u16 = 0x200;
pub(crate) const QUERY_MKEY: u16 = 0x201;
pub(crate) const DESTROY_MKEY: u16 = 0x202;
pub(crate) const QUERY_SPECIAL_CONTEXTS: u16 = 0x203;
pub(crate) const PAGE_FAULT_RESUME: u16 = 0x204;
pub(crate) const ALLOC_MEMIC: u16 = 0x205;
pub(crate) const DEALLOC_MEMIC: u16 = 0x206;
pub(crate) const MODIFY_MEMIC: u16 = 0x207;
pub(crate) const CREATE_EQ: u16 = 0x301;
pub(crate) const DESTROY_EQ: u16 = 0x302;
pub(crate) const CREATE_CQ: u16 = 0x400;
pub(crate) const DESTROY_CQ: u16 = 0x401;
pub(crate) const QUERY_CQ: u16 = 0x402;
pub(crate) const MODIFY_CQ: u16 = 0x403;
pub(crate) const CREATE_QP: u16 = 0x500;
pub(crate) const DESTROY_QP: u16 = 0x501;
pub(crate) const RST2INIT_QP: u16 = 0x502;
pub(crate) const INIT2RTR_QP: u16 = 0x503;
pub(crate) const RTR2RTS_QP: u16 = 0x504;
pub(crate) const RTS2RTS_QP: u16 = 0x505;
pub(crate) const QP_2ERR: u16 = 0x507;
pub(crate) const QP_2RST: u16 = 0x50a;
pub(crate) const QUERY_QP: u16 = 0x50b;
pub(crate) const SQD_RTS_QP: u16 = 0x50c;
pub(crate) const MAD_IFC: u16 = 0x50d;
pub(crate) const INIT2INIT_QP: u16 = 0x50e;
pub(crate) const CREATE_PSV: u16 = 0x600;
pub(crate) const DESTROY_PSV: u16 = 0x601;
pub(crate) const ARM_RQ: u16 = 0x703;
pub(crate) const CREATE_XRC_SRQ: u16 = 0x705;
pub(crate) const DESTROY_XRC_SRQ: u16 = 0x706;
pub(crate) const QUERY_XRC_SRQ: u16 = 0x707;
pub(crate) const ARM_XRC_SRQ: u16 = 0x708;
pub(crate) const CREATE_XRQ: u16 = 0x717;
pub(crate) const DESTROY_XRQ: u16 = 0x718;
pub(crate) const QUERY_XRQ: u16 = 0x719;
pub(crate) const QUERY_HCA_VPORT_CONTEXT: u16 = 0x762;
pub(crate) const MODIFY_HCA_VPORT_CONTEXT: u16 = 0x763;
pub(crate) const QUERY_HCA_VPORT_GID: u16 = 0x764;
pub(crate) const QUERY_HCA_VPORT_PKEY: u16 = 0x765;
pub(crate) const QUERY_VPORT_COUNTER: u16 = 0x770;
pub(crate) const ALLOC_Q_COUNTER: u16 = 0x771;
pub(crate) const DEALLOC_Q_COUNTER: u16 = 0x772;
pub(crate) const QUERY_Q_COUNTER: u16 = 0x773;
pub(crate) const ALLOC_PD: u16 = 0x800;
pub(crate) const DEALLOC_PD: u16 = 0x801;
pub(crate) const ALLOC_UAR: u16 = 0x802;
pub(crate) const DEALLOC_UAR: u16 = 0x803;
pub(crate) const ACCESS_REG: u16 = 0x805;
pub(crate) const ATTACH_TO_MCG: u16 = 0x806;
pub(crate) const DETACH_FROM_MCG: u16 = 0x807;
pub(crate) const NOP: u16 = 0x80d;
pub(crate) const ALLOC_XRCD: u16 = 0x80e;
pub(crate) const DEALLOC_XRCD: u16 = 0x80f;
pub(crate) const ALLOC_TRANSPORT_DOMAIN: u16 = 0x816;
pub(crate) const DEALLOC_TRANSPORT_DOMAIN: u16 = 0x817;
pub(crate) const CREATE_RMP: u16 = 0x90c;
pub(crate) const MODIFY_RMP: u16 = 0x90d;
pub(crate) const DESTROY_RMP: u16 = 0x90e;
pub(crate) const QUERY_RMP: u16 = 0x90f;
pub(crate) const CREATE_GENERAL_OBJECT: u16 = 0xa00;
pub(crate) const DESTROY_GENERAL_OBJECT: u16 = 0xa03;
pub(crate) const CREATE_UCTX: u16 = 0xa04;
pub(crate) const DESTROY_UCTX: u16 = 0xa06;
pub(crate) const CREATE_UMEM: u16 = 0xa08;
pub(crate) const DESTROY_UMEM: u16 = 0xa0a;
pub(crate) const QUERY_VUID: u16 = 0xb22;

macro_rules! names {
    ($($name:ident)*) => {
        /// What a command is called.
        pub(crate) fn name(opcode: u16) -> Option<&'static str> {
            match opcode {
                $($name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

names! {
    QUERY_HCA_CAP
    QUERY_ADAPTER
    INIT_HCA
    TEARDOWN_HCA
    ENABLE_HCA
    DISABLE_HCA
    QUERY_PAGES
    MANAGE_PAGES
    SET_HCA_CAP
    QUERY_ISSI
    SET_ISSI
    SET_DRIVER_VERSION
    CREATE_MKEY
    QUERY_MKEY
    DESTROY_MKEY
    QUERY_SPECIAL_CONTEXTS
    PAGE_FAULT_RESUME
    ALLOC_MEMIC
    DEALLOC_MEMIC
    MODIFY_MEMIC
    CREATE_EQ
    DESTROY_EQ
    CREATE_CQ
    DESTROY_CQ
    QUERY_CQ
    MODIFY_CQ
    CREATE_QP
    DESTROY_QP
    RST2INIT_QP
    INIT2RTR_QP
    RTR2RTS_QP
    RTS2RTS_QP
    QP_2ERR
    QP_2RST
    QUERY_QP
    SQD_RTS_QP
    MAD_IFC
    INIT2INIT_QP
    CREATE_PSV
    DESTROY_PSV
    ARM_RQ
    CREATE_XRC_SRQ
    DESTROY_XRC_SRQ
    QUERY_XRC_SRQ
    ARM_XRC_SRQ
    CREATE_XRQ
    DESTROY_XRQ
    QUERY_XRQ
    QUERY_HCA_VPORT_CONTEXT
    MODIFY_HCA_VPORT_CONTEXT
    QUERY_HCA_VPORT_GID
    QUERY_HCA_VPORT_PKEY
    QUERY_VPORT_COUNTER
    ALLOC_Q_COUNTER
    DEALLOC_Q_COUNTER
    QUERY_Q_COUNTER
    ALLOC_PD
    DEALLOC_PD
    ALLOC_UAR
    DEALLOC_UAR
    ACCESS_REG
    ATTACH_TO_MCG
    DETACH_FROM_MCG
    NOP
    ALLOC_XRCD
    DEALLOC_XRCD
    ALLOC_TRANSPORT_DOMAIN
    DEALLOC_TRANSPORT_DOMAIN
    CREATE_RMP
    MODIFY_RMP
    DESTROY_RMP
    QUERY_RMP
    CREATE_GENERAL_OBJECT
    DESTROY_GENERAL_OBJECT
    CREATE_UCTX
    DESTROY_UCTX
    CREATE_UMEM
    DESTROY_UMEM
}

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
