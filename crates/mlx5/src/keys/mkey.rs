//! Memory keys (PRM "Memory Key Context" `mkc`): what a driver says of a region, as the HCA's keys
//! take it. The context is kept as the driver gave it; a request that changes some of its fields
//! (UMR) changes them there, and the HCA's key follows.

use crate::keys::key_list::{self, KeyList};
use crate::keys::memic;
use crate::keys::translation::{self, Translation};
use crate::layout::head::Status;
use crate::layout::mkc::{
    ATOMIC, CONTEXT_LEN, FREE, LEN, LENGTH_64, LIST, LOCAL_WRITE, LOG_PAGE_SIZE, QPN,
    REMOTE_INVALIDATE, REMOTE_READ, REMOTE_WRITE, START, TAG,
};
use engine_thread::lock;
use hca::{Access, KeySpace, Signed};
use hca::{PdId, keys::Mkey};
use pcie::Route;
use std::sync::{Arc, Mutex, MutexGuard};
use umem::{DmaSpace, Segment, Umem};

/// Most bytes of a list that a query tells.
const MAX_TOLD: u64 = 1 << 16;

/// Open to every queue pair.
const ANY_QP: u32 = 0xff_ffff;

/// What a key is now.
pub(crate) struct MkeyState {
    pub(crate) context: [u8; CONTEXT_LEN],
    /// The whole key.
    pub(crate) key: u32,
    /// What the HCA has under it now.
    pub(crate) umem: Arc<Umem>,
    /// Its block signatures.
    pub(crate) signed: Option<Signed>,
}

/// What a key stands over.
#[derive(Clone)]
pub(crate) enum Behind {
    Memory(Arc<Translation>, Arc<Route>),
    Keys(Arc<KeySpace<KeyList>>),
    /// The device's own, from an offset on.
    Own(memic::Region, u64),
}

impl Behind {
    /// Whether its list names parts of other keys, which are looked up in its own domain: who
    /// writes it reaches no memory beyond.
    pub(crate) fn is_laid_out_by_programs(&self) -> bool {
        matches!(self, Behind::Keys(keys) if keys.parts().has_entries())
    }

    /// Bytes of an entry of its list; 0 for one without.
    pub(crate) fn entry_len(&self) -> u64 {
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

    /// Names the key `key` from now on.
    pub(crate) fn name(&self, key: u32) {
        if let Behind::Memory(memory, _) = self {
            memory.name(key);
        }
    }

    pub(crate) fn store(&self, first: u64, bytes: &[u8], checked: bool) -> Result<(), Status> {
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
pub(crate) fn is_empty(context: &[u8]) -> bool {
    LEN.get(context) == 0 && !LENGTH_64.is_set(context)
}

/// A key.
pub(crate) struct KeyObject {
    pub(crate) behind: Behind,
    /// It was made for block signatures.
    pub(crate) may_be_signed: bool,
    pub(crate) state: Mutex<MkeyState>,
}

impl KeyObject {
    pub(crate) fn state(&self) -> MutexGuard<'_, MkeyState> {
        lock(&self.state)
    }

    /// The whole key, as it is now.
    pub(crate) fn key(&self) -> u32 {
        self.state().key
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
}

/// The HCA's key for a context; a free one has no byte.
pub(crate) fn mkey(
    behind: &Behind,
    context: &[u8],
    pd: PdId,
    signed: Option<Signed>,
) -> Result<Mkey, Status> {
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
