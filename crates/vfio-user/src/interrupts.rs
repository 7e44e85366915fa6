//! Interrupt vectors: event descriptors that the client hands in, one a vector.

use engine_thread::{read, write};
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::sync::RwLock;

/// The vectors of one function.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    events: RwLock<Vec<Option<OwnedFd>>>,
}

impl Interrupts {
    /// Adds one to the event of `vector`, if it has one.
    pub(crate) fn raise(&self, vector: u16) {
        let events = read(&self.events);
        if let Some(Some(event)) = events.get(usize::from(vector)) {
            // An event whose counter is full (EAGAIN) is raised already; one of another kind is the
            // client's own loss.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    /// Forgets all events and has `vectors` places for new ones.
    pub(crate) fn clear(&self, vectors: u16) {
        let mut events = write(&self.events);
        events.clear();
        events.resize_with(vectors.into(), || None);
    }

    /// Puts `given` in the places from `start` on: `count` of them; empty ones where nothing is
    /// given.
    ///
    /// # Errors
    /// `INVAL` for places that there are not, or another number of descriptors than places.
    pub(crate) fn assign(&self, start: u32, count: u32, given: Vec<OwnedFd>) -> Result<()> {
        let mut events = write(&self.events);
        let end = start.checked_add(count).ok_or(Errno::INVAL)?;
        let places = events.get_mut(start as usize..end as usize).ok_or(Errno::INVAL)?;
        if !given.is_empty() && given.len() != places.len() {
            return Err(Errno::INVAL);
        }
        // A full event must not hold up who raises it.
        for event in &given {
            rustix::io::ioctl_fionbio(event, true)?;
        }
        let mut given = given.into_iter();
        places.fill_with(|| given.next());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn value(event: &OwnedFd) -> u64 {
        let mut word = [0; 8];
        match rustix::io::read(event, &mut word) {
            Ok(_) => u64::from_ne_bytes(word),
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                0
            }
        }
    }

    #[test]
    fn a_vector_raises_its_own_event_and_none_after_it_is_taken_away() {
        let interrupts = Interrupts::default();
        interrupts.raise(0);
        interrupts.clear(4);
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        interrupts.assign(2, 1, vec![event.try_clone().unwrap()]).unwrap();
        for vector in [0, 1, 3, 4, 9] {
            interrupts.raise(vector);
        }
        assert_eq!(value(&event), 0);
        interrupts.raise(2);
        interrupts.raise(2);
        assert_eq!(value(&event), 2);
        interrupts.assign(0, 4, Vec::new()).unwrap();
        interrupts.raise(2);
        assert_eq!(value(&event), 0);
    }

    #[test]
    fn places_that_are_not_there_are_refused() {
        let interrupts = Interrupts::default();
        interrupts.clear(4);
        assert_eq!(interrupts.assign(3, 2, Vec::new()), Err(Errno::INVAL));
        assert_eq!(interrupts.assign(u32::MAX, 2, Vec::new()), Err(Errno::INVAL));
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        assert_eq!(interrupts.assign(0, 2, vec![event]), Err(Errno::INVAL));
    }

    #[test]
    fn a_full_event_holds_nobody_up() {
        let interrupts = Interrupts::default();
        interrupts.clear(1);
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        interrupts.assign(0, 1, vec![event]).unwrap();
        interrupts.raise(0);
    }
}
