//! The port as a network driver sees it: its vport context (PRM `nic_vport_context`), whether it is
//! up, its GIDs (`roce_addr_layout`) and its counters of frames.

use super::counters::Counters;
use crate::layout::bits::{Field, put};
use crate::layout::head::{Answer, Status};
use crate::object::eq::{DATA_LEN, event};
use crate::object::shared::Shared;
use crate::request::vport::{
    ALLOWED_LIST_SIZE, ALLOWED_LIST_TYPE, DISABLE_LOCAL_LB, MTU, ModifyNicVportContext,
    ModifyVportState, PROMISC, QueryNicVportContext, ROCE_EN, SetRoceAddress,
};
use engine_thread::lock;
use hca::{Device, Fabric};
use link::Station;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use wire::ethernet::{Mac, is_multicast};

/// GIDs of the port.
pub(crate) const GIDS: u64 = 128;
/// MTU that a driver may set, and the one it finds.
pub(super) const MAX_MTU: u16 = 9978;
const FIRST_MTU: u16 = 1522;

const CONTEXT_LEN: usize = 0x100;
/// In [`DISABLE_LOCAL_LB`]: which of its own frames do not come back to the port.
const NO_UNICAST_LOOPS: u64 = 1;
const NO_MULTICAST_LOOPS: u64 = 2;
const GUIDS: [Field; 3] = [Field::new(0x140, 64), Field::new(0x180, 64), Field::new(0x1c0, 64)];
const ADDRESS: usize = 0x7a0 / 8 + 2;
/// Entries of a list.
pub(crate) const LOG_MAX_LIST: u64 = 7;
/// Bytes of the register of pauses (`pfcc_reg`).
pub(super) const PAUSES_LEN: usize = 16;
/// Unicast and multicast addresses, VLANs.
const LISTS: usize = 3;

/// Which fields `MODIFY_NIC_VPORT_CONTEXT` means.
const SELECT_ROCE: u32 = 1 << 1;
const SELECT_LIST: u32 = 1 << 2;
const SELECT_PROMISCUOUS: u32 = 1 << 4;
const SELECT_CHANGE_EVENT: u32 = 1 << 5;
const SELECT_MTU: u32 = 1 << 6;
const SELECT_MULTICAST_LOOPS: u32 = 1 << 10;
const SELECT_UNICAST_LOOPS: u32 = 1 << 11;

struct VportState {
    mac: Mac,
    up: bool,
    mtu: u16,
    admin_mtu: u16,
    roce: bool,
    /// [`DISABLE_LOCAL_LB`].
    no_loops: u64,
    promiscuous: u64,
    lists: [Vec<[u8; 8]>; LISTS],
    pauses: [u8; PAUSES_LEN],
}

impl Default for VportState {
    fn default() -> VportState {
        VportState {
            mac: Mac::default(),
            up: true,
            mtu: FIRST_MTU,
            admin_mtu: FIRST_MTU,
            roce: false,
            no_loops: 0,
            promiscuous: 0,
            lists: Default::default(),
            pauses: [0; PAUSES_LEN],
        }
    }
}

/// The kind of a frame by its destination: unicast, multicast or broadcast.
pub(super) fn kind(dst: Mac) -> usize {
    if dst == [0xff; 6] { 2 } else { usize::from(is_multicast(dst)) }
}

/// The port.
#[derive(Default)]
pub(crate) struct Vport {
    state: Mutex<VportState>,
    pub(super) counters: Counters,
}

impl Vport {
    fn lock(&self) -> MutexGuard<'_, VportState> {
        lock(&self.state)
    }

    pub(super) fn set_mac(&self, mac: Mac) {
        self.lock().mac = mac;
    }

    /// As after power-on, but for what was counted.
    pub(super) fn reset(&self, hca: &Device) {
        let mut state = self.lock();
        *state = VportState { mac: state.mac, ..VportState::default() };
        drop(state);
        let Fabric::Ethernet(port) = hca.network() else { return };
        for index in 0..GIDS as u32 {
            let _ = port.set_gid(index, None);
        }
    }

    /// `QUERY_NIC_VPORT_CONTEXT`.
    pub(super) fn query(&self, guid: u64, request: &QueryNicVportContext) -> Answer {
        let state = self.lock();
        let kind = request.allowed_list_type;
        let list = state.lists.get(usize::from(kind)).ok_or(Status::BadParameter)?;
        let mut context = vec![0; CONTEXT_LEN];
        for (field, value) in [
            (ROCE_EN, state.roce.into()),
            (DISABLE_LOCAL_LB, state.no_loops),
            (MTU, state.mtu.into()),
            (PROMISC, state.promiscuous),
            (ALLOWED_LIST_TYPE, kind.into()),
            (ALLOWED_LIST_SIZE, list.len() as u64),
        ] {
            field.set(&mut context, value);
        }
        GUIDS.iter().for_each(|field| field.set(&mut context, guid));
        put(&mut context, ADDRESS, &state.mac);
        let mut answer = vec![0; 8];
        answer.extend(context);
        answer.extend(list.concat());
        Ok(answer)
    }

    /// `MODIFY_NIC_VPORT_CONTEXT`. Which frames arrive the steering tables say; the lists are only
    /// remembered.
    pub(super) fn modify(&self, request: &ModifyNicVportContext) -> Answer {
        let which = request.field_select;
        let known = SELECT_ROCE
            | SELECT_LIST
            | SELECT_PROMISCUOUS
            | SELECT_CHANGE_EVENT
            | SELECT_MTU
            | SELECT_MULTICAST_LOOPS
            | SELECT_UNICAST_LOOPS;
        let context = request.context.as_ref().ok_or(Status::BadInputLength)?;
        if which & !known != 0 {
            return Err(Status::BadParameter);
        }
        let mut state = self.lock();
        if which & SELECT_LIST != 0 {
            let count = usize::from(context.allowed_list_size);
            if count > 1 << LOG_MAX_LIST {
                return Err(Status::Limits);
            }
            let list = context.allowed_list.get(..count).ok_or(Status::BadInputLength)?;
            let place = state.lists.get_mut(usize::from(context.allowed_list_type));
            *place.ok_or(Status::BadParameter)? = list.to_vec();
        }
        if which & SELECT_ROCE != 0 {
            state.roce = context.roce_en;
        }
        for (select, flag) in
            [(SELECT_MULTICAST_LOOPS, NO_MULTICAST_LOOPS), (SELECT_UNICAST_LOOPS, NO_UNICAST_LOOPS)]
        {
            if which & select != 0 {
                state.no_loops = state.no_loops & !flag | context.disable_local_lb & flag;
            }
        }
        if which & SELECT_PROMISCUOUS != 0 {
            state.promiscuous = context.promisc;
        }
        if which & SELECT_MTU != 0 {
            state.mtu = context.mtu;
        }
        Ok(vec![0; 8])
    }

    /// `QUERY_VPORT_STATE`.
    pub(super) fn state(&self) -> Answer {
        const ADMIN: Field = Field::new(0x78 - 0x40, 4);
        const NOW: Field = Field::new(0x7c - 0x40, 4);
        let up = self.is_up().into();
        let mut answer = vec![0; 8];
        ADMIN.set(&mut answer, up);
        NOW.set(&mut answer, up);
        Ok(answer)
    }

    /// `MODIFY_VPORT_STATE`.
    pub(super) fn set_state(&self, shared: &Shared, request: &ModifyVportState) -> Answer {
        self.set_up(shared, request.admin_state != 0);
        Ok(vec![0; 8])
    }

    /// Whether a frame that the port sends comes back to it.
    pub(super) fn loops(&self, dst: Mac) -> bool {
        let flag = if is_multicast(dst) { NO_MULTICAST_LOOPS } else { NO_UNICAST_LOOPS };
        self.lock().no_loops & flag == 0
    }

    pub(super) fn is_up(&self) -> bool {
        self.lock().up
    }

    /// Takes the link up or down, as the driver wants it, and raises the event for that.
    pub(super) fn set_up(&self, shared: &Shared, up: bool) {
        const DOWN: u8 = 1;
        const ACTIVE: u8 = 4;
        if std::mem::replace(&mut self.lock().up, up) != up {
            self.counters.link_downs.fetch_add((!up).into(), Relaxed);
            let mut data = [0; DATA_LEN];
            data[8] = 1 << 4; // the port
            shared.eqs.post(event::PORT_CHANGE, if up { ACTIVE } else { DOWN }, &data);
        }
    }

    pub(super) fn admin_mtu(&self) -> u16 {
        self.lock().admin_mtu
    }

    pub(super) fn set_admin_mtu(&self, mtu: u16) {
        self.lock().admin_mtu = mtu.min(MAX_MTU);
    }

    /// Adds what was counted to the answer of `QUERY_VPORT_COUNTER`.
    pub(crate) fn count(&self, answer: &mut [u8]) {
        let mut set = |bit: usize, value: &AtomicU64| {
            Field::new(bit - 0x40, 64).set(answer, value.load(Relaxed));
        };
        let Counters { received, sent, unwanted, lost, .. } = &self.counters;
        set(0x80, unwanted);
        set(0x100, lost);
        for (bit, count) in [
            (0x380, &received.kinds[2]),
            (0x400, &sent.kinds[2]),
            (0x480, &received.kinds[0]),
            (0x500, &sent.kinds[0]),
            (0x580, &received.kinds[1]),
            (0x600, &sent.kinds[1]),
        ] {
            set(bit, &count.frames);
            set(bit + 0x40, &count.bytes);
        }
    }

    /// The register of pauses, as it was written last.
    pub(super) fn pauses(&self) -> [u8; PAUSES_LEN] {
        self.lock().pauses
    }

    pub(super) fn set_pauses(&self, register: [u8; PAUSES_LEN]) {
        self.lock().pauses = register;
    }
}

/// `SET_ROCE_ADDRESS`: a GID with its hardware address and VLAN, or none.
pub(super) fn set_address(hca: &Device, request: &SetRoceAddress) -> Answer {
    const ROCE_V2: u8 = 2;
    /// All ones is reserved, and 0 is no VLAN (IEEE 802.1Q).
    const VLANS: std::ops::Range<u16> = 1..0xfff;
    let index = request.roce_address_index;
    if u64::from(index) >= GIDS {
        return Err(Status::BadIndex);
    }
    let gid = request.source_l3_address.ok_or(Status::BadInputLength)?;
    let mac = request.source_mac.ok_or(Status::BadInputLength)?;
    let vlan = request.vlan_valid.then_some(request.vlan_id);
    let wanted = gid != [0; 16];
    if wanted && (request.roce_version != ROCE_V2 || vlan.is_some_and(|id| !VLANS.contains(&id))) {
        return Err(Status::BadParameter);
    }
    hca.ethernet()?.set_gid(index.into(), wanted.then_some(Station { gid, mac, vlan }))?;
    Ok(vec![0; 8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::vport::NicVportContext;

    #[test]
    fn lists_and_flags_are_remembered() {
        let vport = Vport::default();
        let modify = |field_select, context: &NicVportContext| {
            let context = Some(context.clone());
            vport.modify(&ModifyNicVportContext { field_select, context })
        };
        let mut context = NicVportContext {
            roce_en: true,
            mtu: 1500,
            allowed_list_type: 1,
            allowed_list_size: 2,
            allowed_list: vec![[7; 8]; 2],
            ..NicVportContext::default()
        };
        modify(SELECT_LIST | SELECT_ROCE | SELECT_MTU, &context).unwrap();
        let answer = vport.query(5, &QueryNicVportContext { allowed_list_type: 1 }).unwrap();
        let told = &answer[8..];
        let fields = [ROCE_EN, MTU, ALLOWED_LIST_SIZE].map(|field| field.get(told));
        assert_eq!(fields, [1, 1500, 2]);
        assert_eq!(told[CONTEXT_LEN..], [7; 16]);
        context.allowed_list_size = 3;
        assert_eq!(modify(SELECT_LIST, &context), Err(Status::BadInputLength));
        assert!(vport.loops([2; 6]) && vport.loops([3; 6]));
        context.disable_local_lb = 3;
        modify(SELECT_UNICAST_LOOPS, &context).unwrap();
        assert!(!vport.loops([2; 6]) && vport.loops([3; 6]), "only the one that is meant");
        assert_eq!(modify(1 << 3, &context), Err(Status::BadParameter), "the address stays");
    }
}
