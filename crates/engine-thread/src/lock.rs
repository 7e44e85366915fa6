//! Locks that outlive a panic of their holder.
//!
//! The panic of a thread that held one is reported where the thread ends. Whoever comes after takes
//! what it left: nobody is refused because of it.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};
use std::time::Duration;

/// Takes a mutex, whatever became of its last holder.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a mutex that nobody has.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Takes a lock for reading, whatever became of its last writer.
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock for reading that no writer has or awaits.
pub fn try_read<T: ?Sized>(lock: &RwLock<T>) -> Option<RwLockReadGuard<'_, T>> {
    match lock.try_read() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Takes a lock for writing, whatever became of its last writer.
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification. It may return without one, so the caller looks at its condition again.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// [`wait`], for `limit` at most.
pub fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poison(hold: impl FnOnce() + Send + 'static) {
        crate::spawn(c"poisons", 256 << 10, hold).unwrap().join();
    }

    #[test]
    fn what_a_panic_left_is_there_for_the_next() {
        let mutex = Box::leak(Box::new(Mutex::new(1)));
        let both = Box::leak(Box::new(RwLock::new(1)));
        let (held, written): (&Mutex<i32>, &RwLock<i32>) = (mutex, both);
        poison(|| {
            *held.lock().unwrap() = 2;
            let _written = written.write().unwrap();
            let _held = held.lock();
            panic!("as it should");
        });
        assert!(mutex.is_poisoned() && both.is_poisoned());
        assert_eq!(try_lock(mutex).as_deref(), Some(&2));
        let condvar = Condvar::new();
        let guard = wait_timeout(&condvar, lock(mutex), Duration::from_nanos(1));
        assert_eq!(*guard, 2);
        assert!(try_lock(mutex).is_none());
        *write(both) += 1;
        assert_eq!(*read(both), 2);
    }
}
