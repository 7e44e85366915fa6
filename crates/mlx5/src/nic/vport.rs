//! The port as a network driver sees it: its vport context (PRM `nic_vport_context`), whether it is up, its GIDs (`roce_addr_layout`)
//! and its counters of frames.

use super::counters::Counters;
use crate::bits::{Field, put};
use crate::eq::{DATA_LEN, event};
use crate::function::Shared;
use crate::opcode::{Answer, Status};
use hca::Device;
use link::Station;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::frame::{Mac, is_multicast};

/// GIDs of the port.
pub(crate) const GIDS: u64 = 128;
/// MTU that a driver may set, and the one it finds.
pub(super) const MAX_MTU: u16 = 9978;
const FIRST_MTU: u16 = 1522;

const CONTEXT_LEN: usize = 0x100;
const ROCE: Field = Field::new(0x1f, 1);
/// Which of its own frames do not come back to the port.
const LOOPBACK: Field = Field::new(0x1d, 2);
const NO_UNICAST_LOOPS: u64 = 1;
const NO_MULTICAST_LOOPS: u64 = 2;
const MTU: Field = Field::new(0x130, 16);
const GUIDS: [Field; 3] = [Field::new(0x140, 64), Field::new(0x180, 64), Field::new(0x1c0, 64)];
const PROMISCUOUS: Field = Field::new(0x780, 3);
const LIST_KIND: Field = Field::new(0x785, 3);
const LIST_SIZE: Field = Field::new(0x790, 16);
const ADDRESS: usize = 0x7a0 / 8 + 2;
const LIST: usize = 0x100;
/// Entries of a list.
pub(crate) const LOG_MAX_LIST: u64 = 7;
/// Bytes of the register of pauses (`pfcc_reg`).
pub(super) const PAUSES_LEN: usize = 16;
/// Unicast and multicast addresses, VLANs.
const LISTS: usize = 3;

/// Which fields `MODIFY_NIC_VPORT_CONTEXT` means.
const SELECT: Field = Field::new(0x60, 32);
const MODIFIED: usize = 0x800 / 8;
const SELECT_ROCE: u64 = 1 << 1;
const SELECT_LIST: u64 = 1 << 2;
const SELECT_PROMISCUOUS: u64 = 1 << 4;
const SELECT_CHANGE_EVENT: u64 = 1 << 5;
const SELECT_MTU: u64 = 1 << 6;
const SELECT_MULTICAST_LOOPS: u64 = 1 << 10;
const SELECT_UNICAST_LOOPS: u64 = 1 << 11;
/// The kind of list that a query wants.
const WANTED_LIST: Field = Field::new(0x65, 3);

struct State {
    mac: Mac,
    up: bool,
    mtu: u16,
    admin_mtu: u16,
    roce: bool,
    /// [`LOOPBACK`].
    no_loops: u64,
    promiscuous: u64,
    lists: [Vec<[u8; 8]>; LISTS],
    pauses: [u8; PAUSES_LEN],
}

impl Default for State {
    fn default() -> State {
        State {
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

/// Of frames by destination: unicast, multicast, broadcast.
pub(super) fn kind(dst: Mac) -> usize {
    if dst == [0xff; 6] { 2 } else { usize::from(is_multicast(dst)) }
}

/// The port.
#[derive(Default)]
pub(crate) struct Vport {
    state: Mutex<State>,
    pub(super) counters: Counters,
}

impl Vport {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_mac(&self, mac: Mac) {
        self.lock().mac = mac;
    }

    /// As after power-on, but for what was counted.
    pub(super) fn reset(&self, hca: &Device) {
        let mut state = self.lock();
        *state = State { mac: state.mac, ..State::default() };
        drop(state);
        for index in 0..GIDS as u32 {
            let _ = hca.set_gid(index, None);
        }
    }

    /// `QUERY_NIC_VPORT_CONTEXT`.
    pub(super) fn query(&self, guid: u64, input: &[u8]) -> Answer {
        let state = self.lock();
        let kind = WANTED_LIST.get(input);
        let list = state.lists.get(kind as usize).ok_or(Status::BadParameter)?;
        let mut context = vec![0; CONTEXT_LEN];
        for (field, value) in [
            (ROCE, state.roce.into()),
            (LOOPBACK, state.no_loops),
            (MTU, state.mtu.into()),
            (PROMISCUOUS, state.promiscuous),
            (LIST_KIND, kind),
            (LIST_SIZE, list.len() as u64),
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

    /// `MODIFY_NIC_VPORT_CONTEXT`. Which frames arrive the steering tables say; the lists are only remembered.
    pub(super) fn modify(&self, input: &[u8]) -> Answer {
        let which = SELECT.get(input);
        let known = SELECT_ROCE
            | SELECT_LIST
            | SELECT_PROMISCUOUS
            | SELECT_CHANGE_EVENT
            | SELECT_MTU
            | SELECT_MULTICAST_LOOPS
            | SELECT_UNICAST_LOOPS;
        let context = input.get(MODIFIED..).ok_or(Status::BadInputLength)?;
        if which & !known != 0 {
            return Err(Status::BadParameter);
        }
        let mut state = self.lock();
        if which & SELECT_LIST != 0 {
            let count = LIST_SIZE.get(context) as usize;
            if count > 1 << LOG_MAX_LIST {
                return Err(Status::Limits);
            }
            let list = context.get(LIST..).unwrap_or_default();
            let list = list.get(..count * 8).ok_or(Status::BadInputLength)?.as_chunks().0;
            let place = state.lists.get_mut(LIST_KIND.get(context) as usize);
            *place.ok_or(Status::BadParameter)? = list.to_vec();
        }
        if which & SELECT_ROCE != 0 {
            state.roce = ROCE.is_set(context);
        }
        for (select, flag) in
            [(SELECT_MULTICAST_LOOPS, NO_MULTICAST_LOOPS), (SELECT_UNICAST_LOOPS, NO_UNICAST_LOOPS)]
        {
            if which & select != 0 {
                state.no_loops = state.no_loops & !flag | LOOPBACK.get(context) & flag;
            }
        }
        if which & SELECT_PROMISCUOUS != 0 {
            state.promiscuous = PROMISCUOUS.get(context);
        }
        if which & SELECT_MTU != 0 {
            state.mtu = MTU.get(context) as u16;
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
    pub(super) fn set_state(&self, shared: &Shared, input: &[u8]) -> Answer {
        const ADMIN: Field = Field::new(0x78, 4);
        self.set_up(shared, ADMIN.get(input) != 0);
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

    /// The driver wants the link up, or down, and is told that it is.
    pub(super) fn set_up(&self, shared: &Shared, up: bool) {
        const DOWN: u8 = 1;
        const ACTIVE: u8 = 4;
        if std::mem::replace(&mut self.lock().up, up) != up {
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
pub(super) fn set_address(hca: &Device, input: &[u8]) -> Answer {
    const INDEX: Field = Field::new(0x40, 16);
    const GID: usize = 0x80 / 8;
    const TAGGED: Field = Field::new(0x80 + 0x83, 1);
    const VLAN: Field = Field::new(0x80 + 0x84, 12);
    const MAC: usize = GID + 0x90 / 8;
    const VERSION: Field = Field::new(0x80 + 0xd8, 8);
    const ROCE_V2: u64 = 2;
    /// All ones is reserved, and 0 is no VLAN (IEEE 802.1Q).
    const VLANS: std::ops::Range<u16> = 1..0xfff;
    let index = INDEX.get(input);
    if index >= GIDS {
        return Err(Status::BadIndex);
    }
    let gid: [u8; 16] =
        *input.get(GID..).and_then(<[u8]>::first_chunk).ok_or(Status::BadInputLength)?;
    let mac = *input.get(MAC..).and_then(<[u8]>::first_chunk).ok_or(Status::BadInputLength)?;
    let vlan = TAGGED.is_set(input).then(|| VLAN.get(input) as u16);
    let wanted = gid != [0; 16];
    if wanted && (VERSION.get(input) != ROCE_V2 || vlan.is_some_and(|id| !VLANS.contains(&id))) {
        return Err(Status::BadParameter);
    }
    hca.set_gid(index as u32, wanted.then_some(Station { gid, mac, vlan }))?;
    Ok(vec![0; 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_flags_are_remembered() {
        let vport = Vport::default();
        let mut input = vec![0; MODIFIED + LIST + 16];
        SELECT.set(&mut input, SELECT_LIST | SELECT_ROCE | SELECT_MTU);
        let context = &mut input[MODIFIED..];
        ROCE.set(context, 1);
        MTU.set(context, 1500);
        LIST_KIND.set(context, 1);
        LIST_SIZE.set(context, 2);
        context[LIST..].copy_from_slice(&[7; 16]);
        vport.modify(&input).unwrap();
        let mut wanted = vec![0; 16];
        WANTED_LIST.set(&mut wanted, 1);
        let answer = vport.query(5, &wanted).unwrap();
        let context = &answer[8..];
        assert_eq!((ROCE.get(context), MTU.get(context), LIST_SIZE.get(context)), (1, 1500, 2));
        assert_eq!(context[LIST..], [7; 16]);
        LIST_SIZE.set(&mut input[MODIFIED..], 3);
        assert_eq!(vport.modify(&input), Err(Status::BadInputLength));
        assert!(vport.loops([2; 6]) && vport.loops([3; 6]));
        SELECT.set(&mut input, SELECT_UNICAST_LOOPS);
        LOOPBACK.set(&mut input[MODIFIED..], 3);
        vport.modify(&input).unwrap();
        assert!(!vport.loops([2; 6]) && vport.loops([3; 6]), "only the one that is meant");
        SELECT.set(&mut input, 1 << 3);
        assert_eq!(vport.modify(&input), Err(Status::BadParameter), "the address stays");
    }
}
