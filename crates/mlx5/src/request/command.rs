//! The commands that there are (PRM "Command Interface", `MLX5_CMD_OP_*`): their names, their
//! opcodes, and what each carries.

use super::part::{Parse, request};
use super::{cq, event, function, memory, nic, port, qp, srq, steering, user, vport};
use crate::layout::head::{OBJECT, OP_MOD, OPCODE, UID};

request! {
    /// What every command begins with.
    Head {
        opcode: u16 = OPCODE,
        /// The user context that the command is of.
        uid: u16 = UID,
        op_mod: u16 = OP_MOD,
        /// What most commands have the number of their object in.
        object: u32 = OBJECT,
    }

    /// A command that carries nothing but the number of its object.
    About {
        number: u32 = OBJECT,
    }
}

/// A command as it was decoded.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) head: Head,
    /// How long the command is in bytes.
    pub(crate) len: usize,
    pub(crate) command: Command,
}

impl Request {
    pub(crate) fn parse(input: &[u8]) -> Request {
        let head = Head::parse(input);
        let command = Command::parse(head.opcode, input);
        Request { head, len: input.len(), command }
    }
}

macro_rules! commands {
    ($(
        $(#[$attribute:meta])*
        $group:ident {
            $($name:ident = $opcode:literal $command:ident $(($request:ty))?)*
        }
    )*) => {
        /// A command, by what it is about.
        #[derive(Debug)]
        pub(crate) enum Command {
            $($(#[$attribute])* $group($group),)*
            /// One that is not built.
            Unknown,
        }

        $(
            $(#[$attribute])*
            #[derive(Debug)]
            pub(crate) enum $group {
                $($command $(($request))?,)*
            }
        )*

        impl Command {
            fn parse(opcode: u16, input: &[u8]) -> Command {
                match opcode {
                    $($($opcode => Command::$group(
                        $group::$command $((<$request as Parse>::parse(input)))?
                    ),)*)*
                    _ => Command::Unknown,
                }
            }
        }

        /// What a command is called.
        pub(crate) fn name(opcode: u16) -> Option<&'static str> {
            match opcode {
                $($($opcode => Some(stringify!($name)),)*)*
                _ => None,
            }
        }
    };
}

commands! {
    /// Commands that bring the function up and ask what it can do.
    Function {
        QUERY_HCA_CAP = 0x100 QueryHcaCap(function::QueryHcaCap)
        QUERY_ADAPTER = 0x101 QueryAdapter
        INIT_HCA = 0x102 InitHca
        TEARDOWN_HCA = 0x103 TeardownHca(function::TeardownHca)
        ENABLE_HCA = 0x104 EnableHca
        DISABLE_HCA = 0x105 DisableHca
        QUERY_PAGES = 0x107 QueryPages
        MANAGE_PAGES = 0x108 ManagePages(function::ManagePages)
        SET_HCA_CAP = 0x109 SetHcaCap(function::SetHcaCap)
        QUERY_ISSI = 0x10a QueryIssi
        SET_ISSI = 0x10b SetIssi(function::SetIssi)
        SET_DRIVER_VERSION = 0x10d SetDriverVersion
        QUERY_SPECIAL_CONTEXTS = 0x203 QuerySpecialContexts
        ACCESS_REG = 0x805 AccessReg(function::AccessReg)
        NOP = 0x80d Nop
        CREATE_UCTX = 0xa04 CreateUctx(user::CreateUctx)
        DESTROY_UCTX = 0xa06 DestroyUctx(user::DestroyUctx)
        QUERY_VUID = 0xb22 QueryVuid(function::QueryVuid)
    }

    /// Commands about the port.
    Port {
        MAD_IFC = 0x50d MadIfc(port::MadIfc)
        QUERY_HCA_VPORT_CONTEXT = 0x762 QueryHcaVportContext
        MODIFY_HCA_VPORT_CONTEXT = 0x763 ModifyHcaVportContext(port::ModifyHcaVportContext)
        QUERY_HCA_VPORT_GID = 0x764 QueryHcaVportGid(port::QueryTable)
        QUERY_HCA_VPORT_PKEY = 0x765 QueryHcaVportPkey(port::QueryTable)
        QUERY_VPORT_COUNTER = 0x770 QueryVportCounter
    }

    /// Commands about objects that are no queues.
    Resource {
        CREATE_MKEY = 0x200 CreateMkey(memory::CreateMkey)
        QUERY_MKEY = 0x201 QueryMkey(About)
        DESTROY_MKEY = 0x202 DestroyMkey(About)
        PAGE_FAULT_RESUME = 0x204 PageFaultResume(event::PageFaultResume)
        ALLOC_MEMIC = 0x205 AllocMemic(memory::AllocMemic)
        DEALLOC_MEMIC = 0x206 DeallocMemic(memory::DeallocMemic)
        MODIFY_MEMIC = 0x207 ModifyMemic(memory::ModifyMemic)
        CREATE_PSV = 0x600 CreatePsv(memory::CreatePsv)
        DESTROY_PSV = 0x601 DestroyPsv(About)
        ALLOC_Q_COUNTER = 0x771 AllocQCounter
        DEALLOC_Q_COUNTER = 0x772 DeallocQCounter(qp::DeallocQCounter)
        QUERY_Q_COUNTER = 0x773 QueryQCounter(qp::QueryQCounter)
        ALLOC_PD = 0x800 AllocPd
        DEALLOC_PD = 0x801 DeallocPd(About)
        ALLOC_UAR = 0x802 AllocUar
        DEALLOC_UAR = 0x803 DeallocUar(About)
        ALLOC_XRCD = 0x80e AllocXrcd
        DEALLOC_XRCD = 0x80f DeallocXrcd(About)
        ALLOC_TRANSPORT_DOMAIN = 0x816 AllocTransportDomain
        DEALLOC_TRANSPORT_DOMAIN = 0x817 DeallocTransportDomain(About)
        CREATE_GENERAL_OBJECT = 0xa00 CreateGeneralObject(user::GeneralObject)
        DESTROY_GENERAL_OBJECT = 0xa03 DestroyGeneralObject(user::GeneralObject)
        CREATE_UMEM = 0xa08 CreateUmem(memory::CreateUmem)
        DESTROY_UMEM = 0xa0a DestroyUmem(About)
    }

    /// Commands about event and completion queues, and shared receive queues.
    Queue {
        CREATE_EQ = 0x301 CreateEq(event::CreateEq)
        DESTROY_EQ = 0x302 DestroyEq(event::DestroyEq)
        CREATE_CQ = 0x400 CreateCq(cq::CreateCq)
        DESTROY_CQ = 0x401 DestroyCq(About)
        QUERY_CQ = 0x402 QueryCq(About)
        MODIFY_CQ = 0x403 ModifyCq(cq::ModifyCq)
        ARM_RQ = 0x703 ArmRq(srq::ArmRq)
        CREATE_XRC_SRQ = 0x705 CreateXrcSrq(srq::CreateXrcSrq)
        DESTROY_XRC_SRQ = 0x706 DestroyXrcSrq(About)
        QUERY_XRC_SRQ = 0x707 QueryXrcSrq(About)
        ARM_XRC_SRQ = 0x708 ArmXrcSrq(srq::ArmXrcSrq)
        CREATE_XRQ = 0x717 CreateXrq(srq::CreateXrq)
        DESTROY_XRQ = 0x718 DestroyXrq(About)
        QUERY_XRQ = 0x719 QueryXrq(About)
        CREATE_RMP = 0x90c CreateRmp(srq::CreateRmp)
        MODIFY_RMP = 0x90d ModifyRmp(srq::ModifyRmp)
        DESTROY_RMP = 0x90e DestroyRmp(About)
        QUERY_RMP = 0x90f QueryRmp(About)
    }

    /// Commands about queue pairs.
    QueuePair {
        CREATE_QP = 0x500 CreateQp(qp::CreateQp)
        DESTROY_QP = 0x501 DestroyQp(About)
        RST2INIT_QP = 0x502 Rst2InitQp(qp::ModifyQp)
        INIT2RTR_QP = 0x503 Init2RtrQp(qp::ModifyQp)
        RTR2RTS_QP = 0x504 Rtr2RtsQp(qp::ModifyQp)
        RTS2RTS_QP = 0x505 Rts2RtsQp(qp::ModifyQp)
        QP_2ERR = 0x507 Qp2Err(qp::ModifyQp)
        QP_2RST = 0x50a Qp2Rst(qp::ModifyQp)
        QUERY_QP = 0x50b QueryQp(About)
        SQD_RTS_QP = 0x50c SqdRtsQp(qp::ModifyQp)
        INIT2INIT_QP = 0x50e Init2InitQp(qp::ModifyQp)
        ATTACH_TO_MCG = 0x806 AttachToMcg(qp::Membership)
        DETACH_FROM_MCG = 0x807 DetachFromMcg(qp::Membership)
    }

    // Those that follow only a device with an Ethernet port knows.

    /// Commands about the port of an Ethernet.
    Vport {
        QUERY_VPORT_STATE = 0x750 QueryVportState
        MODIFY_VPORT_STATE = 0x751 ModifyVportState(vport::ModifyVportState)
        QUERY_NIC_VPORT_CONTEXT = 0x754 QueryNicVportContext(vport::QueryNicVportContext)
        MODIFY_NIC_VPORT_CONTEXT = 0x755 ModifyNicVportContext(vport::ModifyNicVportContext)
        SET_ROCE_ADDRESS = 0x761 SetRoceAddress(vport::SetRoceAddress)
    }

    /// Commands about send and receive queues of an Ethernet.
    Ring {
        CREATE_SQ = 0x904 CreateSq(nic::CreateSq)
        MODIFY_SQ = 0x905 ModifySq(nic::ModifyQueue)
        DESTROY_SQ = 0x906 DestroySq(About)
        QUERY_SQ = 0x907 QuerySq(About)
        CREATE_RQ = 0x908 CreateRq(nic::CreateRq)
        MODIFY_RQ = 0x909 ModifyRq(nic::ModifyQueue)
        DESTROY_RQ = 0x90a DestroyRq(About)
        QUERY_RQ = 0x90b QueryRq(About)
    }

    /// Commands about transport interfaces and indirection tables.
    Interface {
        CREATE_TIR = 0x900 CreateTir(nic::CreateTir)
        MODIFY_TIR = 0x901 ModifyTir(nic::ModifyTir)
        DESTROY_TIR = 0x902 DestroyTir(About)
        CREATE_TIS = 0x912 CreateTis(nic::CreateTis)
        MODIFY_TIS = 0x913 ModifyTis(nic::ModifyTis)
        DESTROY_TIS = 0x914 DestroyTis(About)
        QUERY_TIS = 0x915 QueryTis(About)
        CREATE_RQT = 0x916 CreateRqt(nic::CreateRqt)
        MODIFY_RQT = 0x917 ModifyRqt(nic::ModifyRqt)
        DESTROY_RQT = 0x918 DestroyRqt(About)
    }

    /// Commands about flow tables and counters of flows.
    Flow {
        SET_FLOW_TABLE_ROOT = 0x92f SetFlowTableRoot(steering::SetFlowTableRoot)
        CREATE_FLOW_TABLE = 0x930 CreateFlowTable(steering::CreateFlowTable)
        DESTROY_FLOW_TABLE = 0x931 DestroyFlowTable(steering::FlowTable)
        CREATE_FLOW_GROUP = 0x933 CreateFlowGroup(steering::CreateFlowGroup)
        DESTROY_FLOW_GROUP = 0x934 DestroyFlowGroup(steering::DestroyFlowGroup)
        SET_FLOW_TABLE_ENTRY = 0x936 SetFlowTableEntry(steering::SetFlowTableEntry)
        DELETE_FLOW_TABLE_ENTRY = 0x938 DeleteFlowTableEntry(steering::DeleteFlowTableEntry)
        ALLOC_FLOW_COUNTER = 0x939 AllocFlowCounter(steering::AllocFlowCounter)
        DEALLOC_FLOW_COUNTER = 0x93a DeallocFlowCounter(steering::DeallocFlowCounter)
        QUERY_FLOW_COUNTER = 0x93b QueryFlowCounter(steering::QueryFlowCounter)
        MODIFY_FLOW_TABLE = 0x93c ModifyFlowTable(steering::ModifyFlowTable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::bits::Field;
    use crate::request::queue::GuestAddress;

    /// A command of `len` bytes with these fields: bits from the start, width and value.
    fn command(opcode: u16, len: usize, fields: &[(usize, usize, u64)]) -> Request {
        let mut input = vec![0; len];
        OPCODE.set(&mut input, opcode.into());
        fields
            .iter()
            .for_each(|&(bit, width, value)| Field::new(bit, width).set(&mut input, value));
        Request::parse(&input)
    }

    #[test]
    fn every_command_decodes_whatever_its_length() {
        for opcode in 0..=u16::MAX {
            let known = name(opcode).is_some();
            for len in if known { &[2, 8, 16, 0x3f, 0x110, 0x1000][..] } else { &[8][..] } {
                let request = command(opcode, *len, &[]);
                assert_eq!(!matches!(request.command, Command::Unknown), known, "{opcode:#x}");
                assert_eq!((request.head.opcode, request.len), (opcode, *len));
            }
        }
    }

    #[test]
    fn a_head_names_user_object_and_modifier() {
        let request = command(0x402, 16, &[(0x10, 16, 7), (0x30, 16, 2), (0x48, 24, 0x12_3456)]);
        assert_eq!(request.head, Head { opcode: 0x402, uid: 7, op_mod: 2, object: 0x12_3456 });
        let Command::Queue(Queue::QueryCq(about)) = request.command else { panic!("QUERY_CQ") };
        assert_eq!(about.number, 0x12_3456);
    }

    #[test]
    fn a_completion_queue_is_in_pages_or_user_memory() {
        let cqc = 0x80;
        let fields = [
            (cqc + 0x8, 3, 1),
            (cqc + 0x54, 6, 5),
            (cqc + 0x63, 5, 10),
            (cqc + 0x68, 24, 16),
            (cqc + 0xa0, 32, 3),
            (cqc + 0xc3, 5, 2),
            (cqc + 0x1c0, 64, 0x4000),
            (0x110 * 8, 64, 0x7000),
        ];
        let parse = |fields: &[_]| match command(0x400, 0x118, fields).command {
            Command::Queue(Queue::CreateCq(wanted)) => wanted,
            other => panic!("{other:?}"),
        };
        let wanted = parse(&fields);
        let (entries, placement) = (&wanted.entries, &wanted.entries.placement);
        assert_eq!((entries.cqe_sz, entries.log_cq_size, wanted.uar_page), (1, 10, 16));
        assert_eq!((wanted.c_eqn, placement.page_offset, placement.page_shift()), (3, 5, 14));
        assert_eq!(placement.pages, [0x7000]);
        assert_eq!(placement.record, GuestAddress { umem: None, offset: 0x4000 });
        assert_eq!(placement.user_memories().count(), 0);
        assert_eq!(wanted.context.bytes().len(), 0x40);
        let umem = [(0x280, 64, 0x100), (0x2c0, 32, 9), (0x2e0, 1, 1)];
        let placement = parse(&[&fields[..], &umem].concat()).entries.placement;
        assert_eq!(placement.entries, GuestAddress { umem: Some(9), offset: 0x100 });
        assert_eq!(placement.user_memories().collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn a_transition_brings_the_way_to_the_peer() {
        let (qpc, ads) = (0xc0, 0xc0 + 0xc0);
        let fields = [
            (0x48, 24, 0x4001),
            (0x80, 32, 0x20),
            (qpc + 0x40, 3, 5),
            (qpc + 0xa8, 24, 0x77),
            (ads + 0x28, 1, 1),
            (ads + 0x30, 16, 0x102),
            (ads + 0x6c, 20, 0xfffff),
            (ads + 0x80, 64, 0xfe80 << 48),
            (ads + 0xc0, 64, 1),
            (ads + 0x130, 48, 0x0203_0405_0607),
            (qpc + 0x4a8, 24, 0x123),
            (qpc + 0x540, 32, 0x8001_0000),
        ];
        let request = command(0x503, 0x110, &fields);
        let Command::QueuePair(QueuePair::Init2RtrQp(wanted)) = request.command else {
            panic!("INIT2RTR_QP")
        };
        assert_eq!((wanted.qpn, wanted.opt_param_mask, wanted.mtu), (0x4001, 0x20, 5));
        assert_eq!((wanted.remote_qpn, wanted.next_rcv_psn), (0x77, 0x123));
        assert_eq!(wanted.q_key, 0x8001_0000);
        let path = wanted.path;
        assert_eq!((path.grh, path.rlid, path.flow_label), (true, 0x102, 0xfffff));
        assert_eq!((path.rgid_rip[..2].to_vec(), path.rgid_rip[15]), (vec![0xfe, 0x80], 1));
        assert_eq!(path.rmac, [2, 3, 4, 5, 6, 7]);
    }
}
