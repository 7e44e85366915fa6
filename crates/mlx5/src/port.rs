//! The InfiniBand port as commands show it: vport context, GIDs and P_Keys (PRM `hca_vport_context`), port registers
//! (`ACCESS_REG`: `ptys_reg`, `pmtu_reg`, `pvlc_reg`) and the management datagrams that the firmware answers (`MAD_IFC`).

use crate::bits::{Field, put};
use crate::dump;
use crate::firmware;
use crate::function::Shared;
use crate::nic;
use crate::opcode::{Answer, Status};
use hca::subnet::{MANAGER_LID, PREFIX, gid_of_guid};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use subnet::Mad;
use subnet::smp::{self, Node};

const DEFAULT_PKEY: u16 = 0xffff;
/// Entries of the table: the least that a driver knows.
const PKEYS: usize = 128;
const GIDS: usize = 8;
/// Index by which a driver asks for all entries.
const ALL: u16 = 0xffff;

/// Where the port is and what it is called.
#[derive(Debug)]
pub(crate) struct Port {
    guid: u64,
    lid: u16,
    /// Capabilities that the driver switched on.
    capabilities: AtomicU32,
}

/// `hca_vport_context` in the answer.
const CONTEXT_LEN: usize = 0x200;
const HAS_SMI: Field = Field::new(0x101, 1);
const PHYSICAL_STATE: Field = Field::new(0x110, 4);
const PORT_STATE: Field = Field::new(0x118, 4);
const VPORT_STATE: Field = Field::new(0x11c, 4);
const SYSTEM_IMAGE_GUID: Field = Field::new(0x140, 64);
const PORT_GUID: Field = Field::new(0x180, 64);
const NODE_GUID: Field = Field::new(0x1c0, 64);
const CAPABILITY_MASK: Field = Field::new(0x200, 32);
/// Which of them a driver may change, and in a command which it does.
const CAPABILITY_SELECT: Field = Field::new(0x220, 32);
/// `hca_vport_context` in the command that changes it.
const MODIFIED: usize = 16;
const LID: Field = Field::new(0x300, 16);
const SM_LID: Field = Field::new(0x320, 16);
const SUBNET_TIMEOUT: Field = Field::new(0x31b, 5);

/// LinkUp (IBA 14.2.5.6).
const LINK_UP: u64 = 5;
/// Active.
const ACTIVE: u64 = 4;
/// IsSM and IsCommunicationManagementSupported, which the driver switches on when it does.
const SWITCHABLE: u32 = 1 << 1 | 1 << 16;
/// CapabilityMask without those.
const CAPABILITIES: u32 = smp::ADAPTER_CAPABILITIES & !SWITCHABLE;

pub(crate) const GID_INDEX: Field = Field::new(0x70, 16);

impl Port {
    pub(crate) fn new(guid: u64, lid: u16) -> Port {
        Port { guid, lid, capabilities: AtomicU32::new(CAPABILITIES) }
    }

    pub(crate) fn guid(&self) -> u64 {
        self.guid
    }

    /// As after power-on.
    pub(crate) fn reset(&self) {
        self.capabilities.store(CAPABILITIES, Relaxed);
    }

    /// `MODIFY_HCA_VPORT_CONTEXT`: only capabilities change.
    pub(crate) fn modify(&self, input: &[u8]) -> Answer {
        let context = input.get(MODIFIED..).unwrap_or_default();
        let which = CAPABILITY_SELECT.get32(context);
        if which & !SWITCHABLE != 0 {
            return Err(Status::BadParameter);
        }
        let on = CAPABILITY_MASK.get32(context) & which;
        let now = self.capabilities.load(Relaxed);
        self.capabilities.store(now & !which | on, Relaxed);
        Ok(vec![0; 8])
    }

    /// `QUERY_HCA_VPORT_CONTEXT`.
    pub(crate) fn context(&self) -> Answer {
        let mut answer = vec![0; 8];
        let mut context = vec![0; CONTEXT_LEN];
        for (field, value) in [
            (HAS_SMI, 1),
            (PHYSICAL_STATE, LINK_UP),
            (PORT_STATE, ACTIVE),
            (VPORT_STATE, ACTIVE),
            (SYSTEM_IMAGE_GUID, self.guid),
            (PORT_GUID, self.guid),
            (NODE_GUID, self.guid),
            (CAPABILITY_MASK, self.capabilities.load(Relaxed).into()),
            (CAPABILITY_SELECT, SWITCHABLE.into()),
            (LID, self.lid.into()),
            (SM_LID, MANAGER_LID.into()),
            (SUBNET_TIMEOUT, 18),
        ] {
            field.set(&mut context, value);
        }
        answer.extend(context);
        Ok(answer)
    }

    /// `QUERY_HCA_VPORT_GID`: one entry, or all of them.
    pub(crate) fn gids(&self, input: &[u8]) -> Answer {
        let index = GID_INDEX.get(input) as u16;
        // Linux takes the subnet's prefix from the last entry, so that one has it too.
        let empty = (u128::from(PREFIX) << 64).to_be_bytes();
        let gid = |index: usize| if index == 0 { gid_of_guid(self.guid) } else { empty };
        let all: Vec<[u8; 16]> = match index {
            ALL => (0..GIDS).map(gid).collect(),
            index if usize::from(index) < GIDS => vec![gid(index.into())],
            _ => return Err(Status::BadIndex),
        };
        let mut answer = vec![0; 8];
        put(&mut answer, 4, &(all.len() as u16).to_be_bytes());
        answer.extend(all.concat());
        Ok(answer)
    }

    /// `QUERY_HCA_VPORT_PKEY`. Places without a key must be 0: a driver makes a queue pair for each that is not.
    pub(crate) fn pkeys(&self, input: &[u8]) -> Answer {
        let index = GID_INDEX.get(input) as u16;
        let pkey = |index: usize| if index == 0 { DEFAULT_PKEY } else { 0 };
        let all: Vec<u16> = match index {
            ALL => (0..PKEYS).map(pkey).collect(),
            index if usize::from(index) < PKEYS => vec![pkey(index.into())],
            _ => return Err(Status::BadIndex),
        };
        let mut answer = vec![0; 8];
        answer.extend(all.iter().flat_map(|pkey| u32::from(*pkey).to_be_bytes()));
        Ok(answer)
    }
}

/// Registers of `ACCESS_REG`.
mod register {
    pub(super) const PMTU: u16 = 0x5003;
    pub(super) const PTYS: u16 = 0x5004;
    pub(super) const PPCNT: u16 = 0x5008;
    pub(super) const PVLC: u16 = 0x500f;
    pub(super) const NODE_DESCRIPTION: u16 = 0x6001;
    pub(super) const HOST_ENDIANNESS: u16 = 0x7004;
}

const REGISTER: Field = Field::new(0x50, 16);
/// Where a register's bytes begin in the command, and in the answer behind its first 8 bytes.
const REGISTER_DATA: usize = 16;
const MAX_MTU: Field = Field::new(0x20, 16);
const ADMIN_MTU: Field = Field::new(0x40, 16);
const OPER_MTU: Field = Field::new(0x60, 16);
const MTU_BYTES: u64 = 4096;
const IB_WIDTH_CAPABILITY: Field = Field::new(0x80, 16);
const IB_PROTOCOL_CAPABILITY: Field = Field::new(0x90, 16);
const IB_WIDTH_OPER: Field = Field::new(0x140, 16);
const IB_PROTOCOL_OPER: Field = Field::new(0x150, 16);
/// 4 lanes, as the register says it.
const WIDTH_4X: u64 = 1 << 2;
/// NDR.
const SPEED: u64 = 1 << 7;
const VL_HARDWARE: Field = Field::new(0x3c, 4);
const VL_OPERATIONAL: Field = Field::new(0x7c, 4);
/// VL0 alone.
const ONE_LANE: u64 = 1;

/// `ACCESS_REG`: what is read, or written and read back.
pub(crate) fn access_register(shared: &Shared, write: bool, input: &[u8]) -> Answer {
    let mut data = input.get(REGISTER_DATA..).unwrap_or_default().to_vec();
    let number = REGISTER.get(input) as u16;
    if shared.hca.mac().is_some() && nic::register(shared, number, write, &mut data)? {
        let mut answer = vec![0; 8];
        answer.extend(data);
        return Ok(answer);
    }
    let fields: &[(Field, u64)] = match number {
        register::HOST_ENDIANNESS | register::NODE_DESCRIPTION => &[],
        register::PPCNT => {
            nic::counters::infiniband(shared, &mut data);
            &[]
        }
        register::PMTU => &[(MAX_MTU, MTU_BYTES), (ADMIN_MTU, MTU_BYTES), (OPER_MTU, MTU_BYTES)],
        register::PTYS => &[
            (IB_WIDTH_CAPABILITY, WIDTH_4X),
            (IB_PROTOCOL_CAPABILITY, SPEED),
            (IB_WIDTH_OPER, WIDTH_4X),
            (IB_PROTOCOL_OPER, SPEED),
        ],
        register::PVLC => &[(VL_HARDWARE, ONE_LANE), (VL_OPERATIONAL, ONE_LANE)],
        dump::REGISTER => {
            dump::read(shared, &mut data)?;
            &[]
        }
        register if firmware::knows(register) => {
            firmware::read(register, &mut data)?;
            &[]
        }
        _ => return Err(Status::BadParameter),
    };
    fields.iter().for_each(|(field, value)| field.set(&mut data, *value));
    if number == register::NODE_DESCRIPTION {
        put(&mut data, 0, smp::ADAPTER_DESCRIPTION);
    }
    let mut answer = vec![0; 8];
    answer.extend(data);
    Ok(answer)
}

/// `MAD_IFC`: the datagram in the command.
const MAD_IN: usize = 0x10;
const CLASS: usize = 1;
const METHOD: usize = 3;
const MAD_STATUS: usize = 4;
const GET_RESPONSE: u8 = 0x81;
/// Method and attribute are not supported together (IBA 13.4.7).
const UNSUPPORTED: u16 = 0x000c;

impl Port {
    /// `MAD_IFC`: the firmware's agent for management of this node.
    pub(crate) fn mad(&self, input: &[u8]) -> Answer {
        let datagram = input.get(MAD_IN..).unwrap_or_default();
        let mut mad: Mad = std::array::from_fn(|at| datagram.get(at).copied().unwrap_or_default());
        let capabilities = self.capabilities.load(Relaxed);
        let node = Node::Adapter { guid: self.guid, lid: self.lid, capabilities };
        let managed = smp::CLASSES.contains(&mad[CLASS]);
        match managed.then(|| smp::answer_of(node, 1, &mad)).flatten() {
            Some(answer) => mad = answer,
            None => {
                mad[METHOD] = GET_RESPONSE;
                put(&mut mad, MAD_STATUS, &UNSUPPORTED.to_be_bytes());
            }
        }
        let mut answer = vec![0; 8];
        answer.extend(mad);
        Ok(answer)
    }
}
