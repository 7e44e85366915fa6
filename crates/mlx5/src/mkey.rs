//! Memory keys (PRM "Memory Key Context" `mkc`): what a driver says of a region, as the HCA's keys take it. The context is kept
//! as the driver gave it; a request that changes some of its fields (UMR) changes them there, and the HCA's key follows.

use crate::bits::Field;
use crate::bsf;
use crate::bus::Dma;
use crate::caps::OWN_DEVICE;
use crate::function::Shared;
use crate::key_list::{self, KeyList};
use crate::memic;
use crate::mkc;
use crate::opcode::Status;
use crate::psv;
use crate::stride;
use crate::translation::{self, Translation};
use crate::umr::Changer;
use hca::{Access, Below, KeySpace, Signed};
use hca::{PdId, keys::Mkey};
use pcie::Route;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use umem::{DmaSpace, Segment, Umem};

/// Most entries of a list: of pages of 4 KiB, 16 GiB, as a driver has below an implicit key on machines of 56-bit addresses.
const MAX_ENTRIES: u64 = 1 << 22;
/// Most bytes of a list that a query tells.
const MAX_TOLD: u64 = 1 << 16;
/// Bytes of a context.
pub(crate) const CONTEXT_LEN: usize = 64;
/// Where `create_mkey_in` has it, and where the translation follows.
const CONTEXT: std::ops::Range<usize> = 16..16 + CONTEXT_LEN;
const LIST: usize = 0x110;
/// In `create_mkey_in`: the entries of the list say whether pages are there.
const PAGING: Field = Field::new(0x60, 1);
/// Units of 16 bytes that follow in the command.
const OCTOWORDS: Field = Field::new(0x300, 32);

const FREE: Field = Field::new(0x1, 1);
const ACCESS_MODE_HIGH: Field = Field::new(0x3, 3);
const UMR_ENABLED: Field = Field::new(0x10, 1);
const ATOMIC: Field = Field::new(0x11, 1);
const REMOTE_WRITE: Field = Field::new(0x12, 1);
const REMOTE_READ: Field = Field::new(0x13, 1);
const LOCAL_WRITE: Field = Field::new(0x14, 1);
const LOCAL_READ: Field = Field::new(0x15, 1);
const ACCESS_MODE_LOW: Field = Field::new(0x16, 2);
const QPN: Field = Field::new(0x20, 24);
const TAG: Field = Field::new(0x38, 8);
const LENGTH_64: Field = Field::new(0x60, 1);
const REMOTE_INVALIDATE: Field = Field::new(0x67, 1);
const PD: Field = Field::new(0x68, 24);
const START: Field = Field::new(0x80, 64);
const LEN: Field = Field::new(0xc0, 64);
/// It has block signatures, or may have them.
const SIGNED: Field = Field::new(0x61, 1);
/// Changes with every failed check that a driver has seen.
const FAILED_CHECKS: Field = Field::new(0x65, 1);
/// Units of 16 bytes that the description of its signatures may have.
const SIGNATURE_OCTOWORDS: Field = Field::new(0x100, 32);
/// The device of a crossing key's target.
const TARGET_DEVICE: Field = Field::new(0x180, 16);
/// Units of 16 bytes that the key's list may have; of a crossing key its target.
const CAPACITY: Field = Field::new(0x1a0, 32);
const LOG_PAGE_SIZE: Field = Field::new(0x1da, 6);
const LOG_PAGE_SIZE_HIGH: Field = Field::new(0x1da, 1);
const LOG_PAGE_SIZE_LOW: Field = Field::new(0x1db, 5);

/// How a key finds its memory (`MLX5_MKC_ACCESS_MODE_*`).
mod mode {
    pub(super) const PHYSICAL: u64 = 0;
    pub(super) const PAGES: u64 = 1;
    pub(super) const KEYS: u64 = 2;
    pub(super) const EVEN_KEYS: u64 = 3;
    pub(super) const DEVICE_MEMORY: u64 = 5;
    pub(super) const CROSSING: u64 = 6;
}

/// Open to every queue pair.
const ANY_QP: u32 = 0xff_ffff;

/// Fields that a request may change, by the bit of its mask (`MLX5_MKEY_MASK_*`).
const CHANGEABLE: [(u64, &[Field]); 15] = [
    (1 << 0, &[LEN, LENGTH_64]),
    (1 << 1, &[LOG_PAGE_SIZE_LOW]),
    (1 << 42, &[LOG_PAGE_SIZE_HIGH]),
    (1 << 6, &[START]),
    (1 << 7, &[PD]),
    (1 << 8, &[REMOTE_INVALIDATE]),
    (MASK_FAILED_CHECKS, &[FAILED_CHECKS]),
    (MASK_SIGNED, &[SIGNED]),
    (1 << 13, &[TAG]),
    (1 << 14, &[QPN]),
    (1 << 17, &[LOCAL_READ]),
    (1 << 18, &[LOCAL_WRITE]),
    (1 << 19, &[REMOTE_READ]),
    (1 << 20, &[REMOTE_WRITE]),
    (1 << 21, &[ATOMIC]),
];
const MASK_FREE: u64 = 1 << 29;
const MASK_FAILED_CHECKS: u64 = 1 << 9;
const MASK_SIGNED: u64 = 1 << 12;

struct State {
    context: [u8; CONTEXT_LEN],
    /// The whole key.
    key: u32,
    /// What the HCA has under it now.
    umem: Arc<Umem>,
    /// Its block signatures.
    signed: Option<Signed>,
}

/// What a key stands over.
#[derive(Clone)]
enum Behind {
    Memory(Arc<Translation>, Arc<Route>),
    Keys(Arc<KeySpace<KeyList>>),
    /// The device's own, from an offset on.
    Own(memic::Region, u64),
}

impl Behind {
    /// As a command says that has `context`; keys below it are in domain `pd`.
    fn new(shared: &Shared, input: &[u8], context: &[u8], pd: PdId) -> Result<Behind, Status> {
        let budget = &shared.budget;
        let room = CAPACITY.get(context).max(OCTOWORDS.get(input)) * 16;
        let entries = |len| {
            let entries = room / len;
            if entries > MAX_ENTRIES { Err(Status::Limits) } else { Ok(entries) }
        };
        let keys = |list, below| {
            Behind::Keys(Arc::new(KeySpace::new(Arc::downgrade(&shared.hca), list, below)))
        };
        let Dma { memory, route } = requester(shared, input)?;
        Ok(match ACCESS_MODE_HIGH.get(context) << 2 | ACCESS_MODE_LOW.get(context) {
            mode::PHYSICAL => {
                Behind::Memory(Arc::new(Translation::physical(memory, budget)?), route)
            }
            mode::PAGES => {
                let capacity = entries(translation::ENTRY_LEN)?;
                Behind::Memory(Arc::new(Translation::pages(memory, capacity, budget)?), route)
            }
            mode::KEYS => {
                let capacity = entries(key_list::ENTRY_LEN)?;
                if capacity > 1 << key_list::LOG_MAX_ENTRIES {
                    return Err(Status::Limits);
                }
                keys(KeyList::own_lengths(capacity, budget)?, Below::Domain(pd))
            }
            mode::EVEN_KEYS => {
                keys(KeyList::even(entries(key_list::ENTRY_LEN)?, budget)?, Below::Domain(pd))
            }
            // Its length is checked here, so that no request may change it.
            mode::DEVICE_MEMORY if !UMR_ENABLED.is_set(context) && !LENGTH_64.is_set(context) => {
                let (region, at) = shared.memic.region(START.get(context), LEN.get(context))?;
                Behind::Own(region, at)
            }
            mode::CROSSING if TARGET_DEVICE.get(context) == OWN_DEVICE && !is_empty(context) => {
                keys(KeyList::crossing(CAPACITY.get32(context), budget)?, Below::Any)
            }
            _ => return Err(Status::BadParameter),
        })
    }

    /// Whether its list names parts of other keys, which are looked up in its own domain: who writes it reaches no memory beyond.
    fn is_laid_out_by_programs(&self) -> bool {
        matches!(self, Behind::Keys(keys) if keys.parts().has_entries())
    }

    /// Bytes of an entry of its list; 0 for one without.
    fn entry_len(&self) -> u64 {
        match self {
            Behind::Memory(memory, _) if memory.has_pages() => translation::ENTRY_LEN,
            Behind::Keys(keys) if keys.parts().has_entries() => key_list::ENTRY_LEN,
            _ => 0,
        }
    }

    /// Whether its entries have one length, which the context gives.
    fn is_even(&self) -> bool {
        match self {
            Behind::Memory(memory, _) => memory.has_pages(),
            Behind::Keys(keys) => keys.parts().is_even(),
            Behind::Own(..) => false,
        }
    }

    fn holds(&self, start: u64, len: u64, shift: u32) -> bool {
        match self {
            Behind::Memory(memory, _) => memory.holds(start, len, shift),
            // Accesses beyond the list find nothing.
            Behind::Keys(_) | Behind::Own(..) => true,
        }
    }

    fn place(&self, start: u64, shift: u32, pd: PdId) {
        match self {
            Behind::Memory(memory, _) => memory.place(start, shift),
            Behind::Keys(keys) => {
                keys.set_domain(pd);
                keys.parts().place(start, shift);
            }
            Behind::Own(..) => {}
        }
    }

    /// The key is called `key` from now on.
    fn name(&self, key: u32) {
        if let Behind::Memory(memory, _) = self {
            memory.name(key);
        }
    }

    fn store(&self, first: u64, bytes: &[u8], checked: bool) -> Result<(), Status> {
        match self {
            Behind::Memory(memory, _) => memory.store(first, bytes, checked),
            Behind::Keys(keys) => keys.parts().store(first, bytes),
            Behind::Own(..) if bytes.is_empty() => Ok(()),
            Behind::Own(..) => Err(Status::BadParameter),
        }
    }

    /// The first entries of its list, as they are stored.
    fn entries(&self) -> Vec<u8> {
        match self {
            Behind::Memory(memory, _) => memory.entries(MAX_TOLD / translation::ENTRY_LEN),
            Behind::Keys(keys) => keys.parts().entries(MAX_TOLD / key_list::ENTRY_LEN),
            Behind::Own(..) => Vec::new(),
        }
    }

    fn space(&self) -> Arc<dyn DmaSpace> {
        match self {
            Behind::Memory(memory, _) => memory.clone(),
            Behind::Keys(keys) => keys.clone(),
            Behind::Own(region, _) => region.memory.clone(),
        }
    }

    /// By which address the key's first byte is named, and where it is in the space.
    fn first(&self, start: u64) -> (u64, u64) {
        match self {
            // The context says where the bytes are; their addresses count from 0.
            Behind::Own(_, at) => (0, *at),
            Behind::Memory(..) | Behind::Keys(_) => (start, 0),
        }
    }

    fn route(&self) -> Arc<Route> {
        match self {
            Behind::Memory(_, route) => route.clone(),
            // The keys below count; the device's own bytes cross no link.
            Behind::Keys(_) | Behind::Own(..) => Arc::new(Route::local()),
        }
    }
}

/// Whether no byte is under it: a driver that adds a length to an address gets there by wrapping.
fn is_empty(context: &[u8]) -> bool {
    LEN.get(context) == 0 && !LENGTH_64.is_set(context)
}

/// The function whose requests those of a key are: the Data Direct function's, if the command says so and may.
fn requester(shared: &Shared, input: &[u8]) -> Result<Dma, Status> {
    if !mkc::DATA_DIRECT.is_set(input) {
        return Ok(shared.bus.dma());
    }
    let function = shared.bus.data_direct();
    let capable = shared.hca.attr().data_direct && function.is_some();
    mkc::parse(input)?.check_data_direct(capable).map_err(|_| Status::BadParameter)?;
    function.ok_or(Status::BadParameter)
}

/// A key.
pub(crate) struct KeyObject {
    behind: Behind,
    /// It was made for block signatures.
    may_be_signed: bool,
    state: Mutex<State>,
}

/// What a request does to a key.
pub(crate) struct Change {
    /// Which fields of `context` are meant.
    pub(crate) mask: u64,
    pub(crate) context: [u8; CONTEXT_LEN],
    /// First byte of the list that is written, and what.
    pub(crate) list: Option<(u64, Vec<u8>)>,
    /// Its new block signatures.
    pub(crate) format: Option<bsf::Format>,
    /// The key must be free, or must not be.
    pub(crate) free: Option<bool>,
}

impl KeyObject {
    /// As `create_mkey_in` describes it.
    pub(crate) fn create(shared: &Shared, input: &[u8]) -> Result<KeyObject, Status> {
        let context = input.get(CONTEXT).and_then(|bytes| bytes.try_into().ok());
        let context: [u8; CONTEXT_LEN] = context.ok_or(Status::BadInputLength)?;
        let octowords = OCTOWORDS.get(input);
        let pd = pd_of(shared, &context)?;
        let behind = Behind::new(shared, input, &context, pd)?;
        let bytes = usize::try_from(octowords * 16).unwrap_or(usize::MAX);
        let list = input.get(LIST..).unwrap_or_default();
        let list = list.get(..bytes).ok_or(Status::BadInputLength)?;
        behind.store(0, list, PAGING.is_set(input))?;
        let mkey = mkey(&behind, &context, pd, None)?;
        let umem = mkey.umem.clone();
        let key = insert(shared, TAG.get(&context) as u8, mkey)?;
        behind.name(key);
        let may_be_signed = SIGNED.is_set(&context) && SIGNATURE_OCTOWORDS.get(&context) > 0;
        let state = Mutex::new(State { context, key, umem, signed: None });
        Ok(KeyObject { behind, may_be_signed, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole key, as it is now.
    pub(crate) fn key(&self) -> u32 {
        self.state().key
    }

    /// Changes the key on behalf of `changer`, in whose domain the key must be and stay. Accesses under what it was have ended
    /// when this returns.
    pub(crate) fn change(
        &self,
        shared: &Shared,
        changer: Changer,
        change: &Change,
    ) -> Result<(), Status> {
        let of = changer.pd;
        if !changer.fast_registers && !self.behind.is_laid_out_by_programs() {
            return Err(Status::BadResource);
        }
        let mut state = self.state();
        let stays = |pd| of.is_none_or(|of| of == pd);
        if of.is_some() && !pd_of(shared, &state.context).is_ok_and(stays) {
            return Err(Status::BadResource);
        }
        let free = FREE.is_set(&state.context) || state.umem.is_revoked();
        if !UMR_ENABLED.is_set(&state.context) || change.free.is_some_and(|wanted| wanted != free) {
            return Err(Status::BadResourceState);
        }
        if let Some((at, bytes)) = &change.list {
            let (len, at) = (self.behind.entry_len().max(1), *at);
            if !at.is_multiple_of(len) {
                return Err(Status::BadParameter);
            }
            self.behind.store(at / len, bytes, true)?;
        }
        let signed = self.signatures(shared, of, &state, change)?;
        if change.mask == 0 && change.format.is_none() {
            return Ok(());
        }
        let mut context = state.context;
        FREE.set(&mut context, free.into());
        for (bit, fields) in CHANGEABLE {
            if change.mask & bit != 0 {
                fields.iter().for_each(|field| field.set(&mut context, field.get(&change.context)));
            }
        }
        if change.mask & MASK_FREE != 0 {
            FREE.set(&mut context, FREE.get(&change.context));
        }
        let pd = pd_of(shared, &context)?;
        if !stays(pd) {
            return Err(Status::BadResource);
        }
        let new = mkey(&self.behind, &context, pd, signed.clone())?;
        if change.format.is_none() && differ_at_most_in_page_size(&state.context, &context) {
            // The list says where each byte is: whoever is on the way goes on, over pages of another size.
            state.context = context;
            return Ok(());
        }
        let umem = new.umem.clone();
        let tag = TAG.get(&context) as u8;
        let (key, old) = shared.hca.keys().replace_tagged(state.key, tag, new)?;
        self.behind.name(key);
        *state = State { context, key, umem, signed };
        drop(state);
        old.umem.revoke();
        Ok(())
    }

    /// The block signatures that a change leaves.
    fn signatures(
        &self,
        shared: &Shared,
        of: Option<PdId>,
        state: &State,
        change: &Change,
    ) -> Result<Option<Signed>, Status> {
        let ends = change.mask & MASK_SIGNED != 0 && !SIGNED.is_set(&change.context);
        let signed = match &change.format {
            Some(format) => {
                if ends || !self.may_be_signed {
                    return Err(Status::BadParameter);
                }
                format.psvs.iter().try_for_each(|number| psv::check(shared, *number, of))?;
                Some(Signed::new(format.rules.clone()))
            }
            None if ends => None,
            None => state.signed.clone(),
        };
        if change.mask & MASK_FAILED_CHECKS != 0 {
            // The driver has heard of the last one; the next is told again.
            signed.as_ref().and_then(Signed::take);
        }
        Ok(signed)
    }

    /// The answer to a query: its context as it is now, and what its list begins with.
    pub(crate) fn query(&self) -> Vec<u8> {
        let state = self.state();
        let mut context = state.context;
        TAG.set(&mut context, u64::from(state.key & 0xff));
        let free = FREE.is_set(&context) || state.umem.is_revoked();
        FREE.set(&mut context, free.into());
        drop(state);
        let mut answer = vec![0; 8];
        answer.extend(context);
        // Behind status and syndrome, as in the command that makes a key.
        answer.resize(LIST - 8, 0);
        answer.extend(self.behind.entries());
        answer
    }

    /// Ends the key; nothing reaches memory through it afterwards.
    pub(crate) fn destroy(&self, shared: &Shared) -> Result<(), Status> {
        Ok(shared.hca.keys().remove(self.key(), || ())?)
    }
}

/// A new key, whose number no list takes for something else.
fn insert(shared: &Shared, tag: u8, mkey: Mkey) -> Result<u32, Status> {
    let keys = shared.hca.keys();
    let key = keys.insert_tagged(tag, mkey.clone())?;
    if key >> 8 != stride::OPERATION >> 8 {
        return Ok(key);
    }
    // This one stays, in a domain of nobody, and is never given out.
    keys.replace(
        key,
        Mkey::new(shared.no_pd, 0, Access::empty(), Umem::from_segments(vec![], false)),
    )?;
    Ok(keys.insert_tagged(tag, mkey)?)
}

/// Whether two contexts say the same but for the size of pages.
fn differ_at_most_in_page_size(old: &[u8; CONTEXT_LEN], new: &[u8; CONTEXT_LEN]) -> bool {
    let mut alike = *new;
    LOG_PAGE_SIZE.set(&mut alike, LOG_PAGE_SIZE.get(old));
    alike == *old
}

/// The domain that a context names. A key that is not in use may name none.
fn pd_of(shared: &Shared, context: &[u8]) -> Result<PdId, Status> {
    match shared.objects.pds.get(PD.get32(context)) {
        Ok(pd) => Ok(pd.id()),
        Err(_) if FREE.is_set(context) => Ok(shared.no_pd),
        Err(status) => Err(status),
    }
}

/// The HCA's key for a context; a free one has no byte.
fn mkey(behind: &Behind, context: &[u8], pd: PdId, signed: Option<Signed>) -> Result<Mkey, Status> {
    let start = START.get(context);
    let free = FREE.is_set(context);
    let len = match (free, LENGTH_64.is_set(context)) {
        (true, _) => 0,
        (false, true) => u64::MAX,
        (false, false) => LEN.get(context),
    };
    let shift = LOG_PAGE_SIZE.get32(context);
    // A key of all addresses ends where its list does.
    let fits = len == u64::MAX || behind.holds(start, len, shift);
    if !free && (behind.is_even() && shift < 12 || !fits) {
        return Err(Status::BadParameter);
    }
    behind.place(start, shift.max(12), pd);
    let (space, route, (first, addr)) = (behind.space(), behind.route(), behind.first(start));
    // What may be written the key's rights say.
    let umem = Umem::from_segments(vec![Segment { space, addr, len, route }], true);
    let qpn = QPN.get32(context);
    Ok(Mkey {
        qpn: (qpn != ANY_QP && qpn != 0).then_some(qpn),
        invalidated_by_peers: REMOTE_INVALIDATE.is_set(context),
        signed,
        ..Mkey::new(pd, first, access(context), umem)
    })
}

fn access(context: &[u8]) -> Access {
    let rights = [
        (LOCAL_WRITE, Access::LOCAL_WRITE),
        (REMOTE_READ, Access::REMOTE_READ),
        (REMOTE_WRITE, Access::REMOTE_WRITE),
        (ATOMIC, Access::REMOTE_ATOMIC),
    ];
    rights
        .into_iter()
        .filter(|(field, _)| field.is_set(context))
        .fold(Access::empty(), |all, (_, right)| all | right)
}
