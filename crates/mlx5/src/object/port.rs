//! The InfiniBand port as commands show it: vport context, GIDs and P_Keys (PRM
//! `hca_vport_context`), and the management datagrams that the firmware answers (`MAD_IFC`).

use crate::layout::bits::{Field, put};
use crate::layout::head::{Answer, Status};
use crate::request::port::{
    CAP_MASK1, CAP_MASK1_FIELD_SELECT, MadIfc, ModifyHcaVportContext, QueryTable,
};
use hca::subnet::{MANAGER_LID, PREFIX, gid_of_guid};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use subnet::Mad;
use subnet::smp::{self, Node};
use wire::mad::{field, method, status};

/// Entries of the table: the least that a driver knows.
const PKEYS: usize = 128;
const GIDS: usize = 8;
/// Index by which a driver asks for all entries.
const ALL: u16 = 0xffff;

/// The port: its addresses, and the capabilities that are on.
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
    pub(crate) fn modify(&self, request: &ModifyHcaVportContext) -> Answer {
        let which = request.cap_mask1_field_select;
        if which & !SWITCHABLE != 0 {
            return Err(Status::BadParameter);
        }
        let on = request.cap_mask1 & which;
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
            (CAP_MASK1, self.capabilities.load(Relaxed).into()),
            (CAP_MASK1_FIELD_SELECT, SWITCHABLE.into()),
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
    pub(crate) fn gids(&self, QueryTable { index }: &QueryTable) -> Answer {
        // Linux takes the subnet's prefix from the last entry, so that one has it too.
        let empty = (u128::from(PREFIX) << 64).to_be_bytes();
        let gid = |index: usize| if index == 0 { gid_of_guid(self.guid) } else { empty };
        let all: Vec<[u8; 16]> = match *index {
            ALL => (0..GIDS).map(gid).collect(),
            index if usize::from(index) < GIDS => vec![gid(index.into())],
            _ => return Err(Status::BadIndex),
        };
        let mut answer = vec![0; 8];
        put(&mut answer, 4, &(all.len() as u16).to_be_bytes());
        answer.extend(all.concat());
        Ok(answer)
    }

    /// `QUERY_HCA_VPORT_PKEY`. Places without a key must be 0: a driver makes a queue pair for each
    /// that is not.
    pub(crate) fn pkeys(&self, QueryTable { index }: &QueryTable) -> Answer {
        let pkey = |index: usize| if index == 0 { hca::DEFAULT_PKEY } else { 0 };
        let all: Vec<u16> = match *index {
            ALL => (0..PKEYS).map(pkey).collect(),
            index if usize::from(index) < PKEYS => vec![pkey(index.into())],
            _ => return Err(Status::BadIndex),
        };
        let mut answer = vec![0; 8];
        answer.extend(all.iter().flat_map(|pkey| u32::from(*pkey).to_be_bytes()));
        Ok(answer)
    }
}

impl Port {
    /// `MAD_IFC`: the firmware's agent for management of this node.
    pub(crate) fn mad(&self, MadIfc { mad: datagram }: &MadIfc) -> Answer {
        let mut mad: Mad = std::array::from_fn(|at| datagram.get(at).copied().unwrap_or_default());
        let capabilities = self.capabilities.load(Relaxed);
        let node = Node::Adapter { guid: self.guid, lid: self.lid, capabilities };
        let managed = smp::CLASSES.contains(&mad[field::CLASS]);
        match managed.then(|| smp::answer_of(node, 1, &mad)).flatten() {
            Some(answer) => mad = answer,
            None => {
                mad[field::METHOD] = method::GET_RESPONSE;
                put(&mut mad, field::STATUS.start, &status::BAD_ATTRIBUTE.to_be_bytes());
            }
        }
        let mut answer = vec![0; 8];
        answer.extend(mad);
        Ok(answer)
    }
}
