//! Memory keys as commands make them and requests change them (PRM "Memory Key Context", "UMR
//! WQE"). The HCA's key follows the context.

use crate::keys::changer::Changer;
use crate::keys::key_list::{self, KeyList};
use crate::keys::mkey::{Behind, KeyObject, MkeyState, is_empty, mkey};
use crate::keys::translation::Translation;
use crate::keys::{psv, translation};
use crate::layout::bits::Field;
use crate::layout::head::Status;
use crate::layout::limits::OWN_DEVICE;
use crate::layout::mkc::{
    ATOMIC, AccessMode, CAPACITY, CONTEXT_LEN, FAILED_CHECKS, FREE, LEN, LENGTH_64, LOCAL_READ,
    LOCAL_WRITE, LOG_PAGE_SIZE, LOG_PAGE_SIZE_HIGH, LOG_PAGE_SIZE_LOW, PD, QPN, REMOTE_INVALIDATE,
    REMOTE_READ, REMOTE_WRITE, SIGNATURE_OCTOWORDS, SIGNED, START, TAG, TARGET_DEVICE, UMR_ENABLED,
};
use crate::layout::{bsf, stride};
use crate::machine::bus::Dma;
use crate::object::shared::Shared;
use crate::request::memory::CreateMkey;
use hca::keys::Mkey;
use hca::{Access, Below, PdId, Signed};
use std::sync::{Arc, Mutex};
use umem::Umem;
/// Most entries of a list: of pages of 4 KiB, 16 GiB, as a driver has below an implicit key on
/// machines of 56-bit addresses.
const MAX_ENTRIES: u64 = 1 << 22;

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

/// As a command says that has `context`; keys below it are in domain `pd`.
fn behind(
    shared: &Shared,
    request: &CreateMkey,
    context: &[u8],
    pd: PdId,
) -> Result<Behind, Status> {
    let budget = &shared.budget;
    let room = CAPACITY.get(context).max(request.translations_octword_actual_size) * 16;
    let entries = |len| {
        let entries = room / len;
        if entries > MAX_ENTRIES { Err(Status::Limits) } else { Ok(entries) }
    };
    let keys = |list, below| Behind::Keys(Arc::new(shared.hca.key_space(list, below)));
    let Dma { memory, route } = requester(shared, request)?;
    Ok(match AccessMode::of(context).ok_or(Status::BadParameter)? {
        AccessMode::Pa => Behind::Memory(Arc::new(Translation::physical(memory, budget)?), route),
        AccessMode::Mtt => {
            let capacity = entries(translation::ENTRY_LEN)?;
            Behind::Memory(Arc::new(Translation::pages(memory, capacity, budget)?), route)
        }
        AccessMode::Klms => {
            let capacity = entries(key_list::ENTRY_LEN)?;
            if capacity > 1 << key_list::LOG_MAX_ENTRIES {
                return Err(Status::Limits);
            }
            keys(KeyList::own_lengths(capacity, budget)?, Below::Domain(pd))
        }
        AccessMode::Ksm => {
            keys(KeyList::even(entries(key_list::ENTRY_LEN)?, budget)?, Below::Domain(pd))
        }
        // Its length is checked here, so that no request may change it.
        AccessMode::Memic if !UMR_ENABLED.is_set(context) && !LENGTH_64.is_set(context) => {
            let (region, at) = shared.memic.region(START.get(context), LEN.get(context))?;
            Behind::Own(region, at)
        }
        AccessMode::Crossing if TARGET_DEVICE.get(context) == OWN_DEVICE && !is_empty(context) => {
            keys(KeyList::crossing(CAPACITY.get32(context), budget)?, Below::Any)
        }
        _ => return Err(Status::BadParameter),
    })
}

/// The function whose requests those of a key are: the Data Direct function's, if the command says
/// so and may.
fn requester(shared: &Shared, request: &CreateMkey) -> Result<Dma, Status> {
    if !request.data_direct {
        return Ok(shared.bus.dma());
    }
    let function = shared.bus.data_direct();
    let capable = shared.hca.attr().data_direct && function.is_some();
    let attributes = request.attributes.as_ref().map_err(|status| *status)?;
    attributes.check_data_direct(capable).map_err(|_| Status::BadParameter)?;
    function.ok_or(Status::BadParameter)
}

impl KeyObject {
    /// As `create_mkey_in` describes it.
    pub(crate) fn create(shared: &Shared, request: &CreateMkey) -> Result<KeyObject, Status> {
        let context = request.context.ok_or(Status::BadInputLength)?;
        let pd = pd_of(shared, &context)?;
        let behind = behind(shared, request, &context, pd)?;
        let bytes = request.translations_octword_actual_size * 16;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let list = request.klm_pas_mtt.get(..bytes).ok_or(Status::BadInputLength)?;
        behind.store(0, list, request.pg_access)?;
        let mkey = mkey(&behind, &context, pd, None)?;
        let umem = mkey.umem.clone();
        let key = insert(shared, TAG.get(&context) as u8, mkey)?;
        behind.name(key);
        let may_be_signed = SIGNED.is_set(&context) && SIGNATURE_OCTOWORDS.get(&context) > 0;
        let state = Mutex::new(MkeyState { context, key, umem, signed: None });
        Ok(KeyObject { behind, may_be_signed, state })
    }

    /// Changes the key on behalf of `changer`, in whose domain the key must be and stay. Accesses
    /// under what it was have ended when this returns.
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
            // The list says where each byte is: accesses in progress go on, over pages of
            // another size.
            state.context = context;
            return Ok(());
        }
        let umem = new.umem.clone();
        let tag = TAG.get(&context) as u8;
        let (key, old) = shared.hca.keys().replace_tagged(state.key, tag, new)?;
        self.behind.name(key);
        *state = MkeyState { context, key, umem, signed };
        drop(state);
        old.umem.revoke();
        Ok(())
    }

    /// The block signatures that a change leaves.
    fn signatures(
        &self,
        shared: &Shared,
        of: Option<PdId>,
        state: &MkeyState,
        change: &Change,
    ) -> Result<Option<Signed>, Status> {
        let ends = change.mask & MASK_SIGNED != 0 && !SIGNED.is_set(&change.context);
        let signed = match &change.format {
            Some(format) => {
                if ends || !self.may_be_signed {
                    return Err(Status::BadParameter);
                }
                format
                    .psvs
                    .iter()
                    .try_for_each(|number| psv::check(&shared.objects.psvs, *number, of))?;
                Some(Signed::new(format.rules))
            }
            None if ends => None,
            None => state.signed.clone(),
        };
        if change.mask & MASK_FAILED_CHECKS != 0 {
            // The driver has heard of the last one; the next is reported again.
            signed.as_ref().and_then(Signed::take);
        }
        Ok(signed)
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
