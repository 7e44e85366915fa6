//! What each process of a fork has for itself.
//!
//! A forked child begins a life of its own. On Linux it shares its parent's device file, and may go
//! on making objects of it. Here the engine stays the parent's, so what a context, a protection
//! domain or a channel needs of an engine is made anew when the child first uses it ([`PerLife`]).
//! The other objects are their parent's and fail with EIO ([`Made`]): locks inside them may be held
//! for ever by threads that exist only there.

use crate::base::ffi::{Errno, Res};
use crate::base::fork_lock::{ForkLock, Held, Turn};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use std::time::Instant;

/// Forks between the first process and this one.
static LIFE: AtomicU32 = AtomicU32::new(0);

static FIRST: Turn = Turn::new();
static RENEWING: ForkLock = ForkLock::new(&FIRST);

/// While the guard lives nothing is made anew: a fork holds it from before until after, if it is to
/// be had before `deadline`.
pub fn hold(deadline: Instant) -> Option<Held> {
    RENEWING.take_before(deadline)
}

/// In a forked child, before any other thread: nobody makes anything anew.
pub fn free() {
    RENEWING.renew();
}

/// Likewise, unless the child carries its parent's life on.
pub fn begin() {
    LIFE.fetch_add(1, Relaxed);
}

fn now() -> u32 {
    LIFE.load(Relaxed)
}

/// When an object was made.
#[derive(Clone, Copy, Debug)]
pub struct Made(u32);

impl Made {
    /// In the life that goes on.
    pub fn now() -> Made {
        Made(now())
    }

    /// EIO for an object of the parent process.
    pub fn check(self) -> Res<()> {
        if self.0 == now() { Ok(()) } else { Err(Errno(libc::EIO)) }
    }
}

struct Entry<T> {
    made: Made,
    value: T,
}

/// A value for each life. Those of earlier lives are not dropped: what their end would do is the
/// parent's to do.
pub struct PerLife<T> {
    /// Never null; what it pointed to before stays.
    current: AtomicPtr<Entry<T>>,
    /// Gives `Send` and `Sync` where `T` has them.
    _owns: std::marker::PhantomData<T>,
}

impl<T> PerLife<T> {
    /// The value of this life.
    pub fn new(value: T) -> PerLife<T> {
        let entry = Box::into_raw(Box::new(Entry { made: Made::now(), value }));
        PerLife { current: AtomicPtr::new(entry), _owns: std::marker::PhantomData }
    }

    fn entry(&self) -> &Entry<T> {
        // SAFETY: the pointer came from a box that is not freed before `self` is.
        unsafe { &*self.current.load(Acquire) }
    }

    /// The value of the latest life in which somebody asked.
    pub fn latest(&self) -> &T {
        &self.entry().value
    }

    /// The value of this life, if there is one.
    pub fn present(&self) -> Res<&T> {
        let entry = self.entry();
        entry.made.check()?;
        Ok(&entry.value)
    }

    /// The value of this life; where there is none yet, `renew` makes it from the last one. It must
    /// not renew another.
    pub fn get<E>(&self, renew: impl FnOnce(&T) -> Result<T, E>) -> Result<&T, E> {
        if self.entry().made.check().is_err() {
            let _held = RENEWING.take();
            let last = self.entry();
            if last.made.check().is_err() {
                let entry = Entry { made: Made::now(), value: renew(&last.value)? };
                self.current.store(Box::into_raw(Box::new(entry)), Release);
            }
        }
        Ok(self.latest())
    }
}

impl<T> Drop for PerLife<T> {
    fn drop(&mut self) {
        if self.entry().made.check().is_ok() {
            // SAFETY: it came from a box, and nobody borrows `self` any more.
            drop(unsafe { Box::from_raw(*self.current.get_mut()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::Arc;

    #[test]
    fn a_child_makes_its_own_and_leaves_its_parents() {
        let (ours, made) = (Arc::new(1), Made::now());
        let value = PerLife::new(ours.clone());
        let renew = |last: &Arc<i32>| Ok::<_, Infallible>(Arc::new(**last + 1));
        assert_eq!(value.get(renew), Ok(&Arc::new(1)));
        assert_eq!(made.check(), Ok(()));
        // SAFETY: the child only looks at values of its own and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            begin();
            let stale = made.check() == Err(Errno(libc::EIO)) && value.present().is_err();
            let failed = value.get(|_| Err(Errno(7))) == Err(Errno(7));
            let renewed = value.get(renew) == Ok(&Arc::new(2)) && **value.latest() == 2;
            let mine = value.latest().clone();
            drop(value);
            let dropped = Arc::strong_count(&mine) == 1 && Arc::strong_count(&ours) == 2;
            let good = stale && failed && renewed && dropped;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = -1;
        // SAFETY: `status` is a live local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(value.get(renew), Ok(&Arc::new(1)));
        drop(value);
        assert_eq!(Arc::strong_count(&ours), 1);
    }
}
