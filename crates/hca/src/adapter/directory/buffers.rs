//! The buffers that a neighbour's memory is in, as this process keeps them in their places while it
//! copies, and has them mapped if it uses them often.

use super::Entry;
use super::asked::Asked;
use super::keys::ShownBuffer;
use dmabuf::{Outsider, Reach, Refused, View};
use engine_thread::lock;
use mm::Sink;
use shm::Shm;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a buffer that cannot be used now is not asked for again: that costs as much as many
/// packets.
const PAUSE: Duration = Duration::from_secs(1);

/// Requests to one entry after which its buffer is mapped here: that costs as much as they do.
const OFTEN: u32 = 8;

/// How the bytes of a buffer are reached.
enum Way {
    /// By calls to the system, so many so far.
    Calls(u32),
    /// They are mapped here, or were.
    Mapped(Reach),
    /// By calls, always.
    CallsOnly,
}

/// What is known of the buffer that an entry names.
enum Found {
    Usable(Arc<Outsider>, Way),
    /// It is none that this process can use.
    NotOurs,
    NotBefore(Instant),
}

/// What is known of an entry that names a buffer.
struct Known {
    /// Under which it does.
    generation: u64,
    found: Found,
    /// What of its memory was asked for by packets.
    asked: Asked,
}

/// The buffers of one neighbour, by the places of the entries that name them.
#[derive(Default)]
pub(super) struct Buffers(Mutex<HashMap<usize, Known>>);

/// What a request wants of an entry's buffer.
pub(super) struct Part {
    /// Address of its first byte there.
    pub(super) addr: u64,
    /// Which units it lies in, where the owner's device keeps translations.
    pub(super) units: Option<Range<u64>>,
}

impl Part {
    /// Whether the owner's device has its translations, where it keeps some; from now on it has.
    fn is_known(&self, asked: &mut Asked) -> bool {
        self.units.as_ref().is_none_or(|units| asked.all(units))
    }
}

/// A buffer that a request is to.
pub(super) struct Buffer {
    outsider: Arc<Outsider>,
    shown: ShownBuffer,
    /// The view of it, and where in that the request's first byte is.
    view: Option<(Arc<View>, u64)>,
}

impl Buffer {
    /// So many bytes from `at` on, counted from the request's first byte, if they are mapped here.
    pub(super) fn memory(&self, at: u64, len: u64) -> Option<Sink<'_>> {
        let (view, offset) = self.view.as_ref()?;
        view.memory(offset.checked_add(at)?, len)
    }

    /// Brings so many bytes from `at` on in, if they are mapped here.
    pub(super) fn bring_in(&self, at: u64, len: u64) {
        if let Some((view, offset)) = &self.view {
            view.bring_in(offset.saturating_add(at), len);
        }
    }

    /// Whether nobody has asked for the view before.
    pub(super) fn has_new_view(&self) -> bool {
        self.view.as_ref().is_some_and(|(view, _)| view.is_new())
    }

    /// Keeps it in its place, if it is where its entry says. Never allocates or waits.
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        self.outsider.enter(self.shown.moves()).then(|| Inside(&self.outsider))
    }
}

/// A buffer that stays where it is as long as this value lives.
pub(super) struct Inside<'a>(&'a Outsider);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Way {
    /// The view for a request to `addr` there, if there is to be one.
    fn view(
        &mut self,
        outsider: &Outsider,
        pid: u32,
        addr: u64,
        shown: ShownBuffer,
    ) -> Option<(Arc<View>, u64)> {
        let known = match self {
            Way::Mapped(reach) => reach.at(addr),
            Way::Calls(calls) if *calls < OFTEN => {
                *calls += 1;
                return None;
            }
            Way::Calls(_) => None,
            Way::CallsOnly => return None,
        };
        known.or_else(|| {
            let reach = outsider.reach(pid, addr, shown.moves());
            let view = reach.as_ref().ok().and_then(|reach| reach.at(addr));
            *self = match reach {
                Ok(reach) => Way::Mapped(reach),
                Err(Refused::NotOurs) => Way::CallsOnly,
                Err(Refused::NotNow) => Way::Calls(0),
            };
            view
        })
    }
}

impl Buffers {
    /// The buffer that an entry in `shm` of process `pid` names, for a request to a part of it.
    /// Opens it the first time, so what is answered counts only if the entry still is what it was.
    pub(super) fn get(
        &self,
        shm: &Shm,
        pid: u32,
        (at, generation): Entry,
        shown: ShownBuffer,
        part: &Part,
    ) -> Option<Buffer> {
        let mut known = lock(&self.0);
        match known.get_mut(&at).filter(|known| known.generation == generation) {
            Some(Known { found: Found::Usable(outsider, way), asked, .. }) if outsider.is_own() => {
                return part.is_known(asked).then(|| {
                    let view = way.view(outsider, pid, part.addr, shown);
                    Buffer { outsider: outsider.clone(), shown, view }
                });
            }
            Some(Known { found: Found::NotOurs, .. }) => return None,
            Some(Known { found: Found::NotBefore(then), .. }) if Instant::now() < *then => {
                return None;
            }
            _ => {}
        }
        known.try_reserve(1).ok()?;
        let mut asked = Asked::default();
        let goes = part.is_known(&mut asked);
        let found = match Outsider::new(pid, shown.control()) {
            Ok(outsider) => Found::Usable(outsider, Way::Calls(0)),
            Err(Refused::NotOurs) => Found::NotOurs,
            Err(Refused::NotNow) => Found::NotBefore(Instant::now() + PAUSE),
        };
        let buffer = match &found {
            Found::Usable(outsider, _) if goes => {
                Some(Buffer { outsider: outsider.clone(), shown, view: None })
            }
            _ => None,
        };
        known.insert(at, Known { generation, found, asked });
        // Those whose keys are gone are kept no longer: each keeps pages of its buffer. Only now,
        // for the buffer of a new entry is often that of an old one.
        known.retain(|at, known| shm.word(*at).load(Relaxed) == known.generation);
        buffer
    }
}
