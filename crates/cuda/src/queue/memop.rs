//! Words of memory that a stream writes and waits for.

use super::condition::Condition;
use super::lane::Lane;
use super::line::is_stand_in;
use crate::memory::Word;
use crate::{Context, Error, Res};
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::Duration;

/// One operation of a stream on memory.
pub enum MemOp {
    /// Goes on once the word is so.
    Wait(Word, Condition),
    /// Writes the word.
    Write(Word, u64),
}

/// Looks that follow each other at once, which take some tens of microseconds.
const LOOKS: u32 = 64;
/// Between two looks behind those, first and at most.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

impl MemOp {
    /// Queues operations, which are done one after the other and nothing of the stream's between
    /// them.
    ///
    /// # Errors
    /// What the context died of.
    pub fn queue(lane: &Lane, operations: Vec<MemOp>) -> Res {
        lane.check()?;
        if operations.is_empty() {
            return Ok(());
        }
        let context = lane.context().clone();
        lane.queue_fallible(move || operations.iter().try_for_each(|one| one.carry_out(&context)));
        Ok(())
    }

    fn carry_out(&self, context: &Context) -> Res {
        // What comes before and behind is in the order of the stream for who sees the word, too.
        fence(SeqCst);
        let done = match self {
            MemOp::Wait(word, condition) => wait(word, condition, context),
            MemOp::Write(word, value) => word.store(*value),
        };
        fence(SeqCst);
        done
    }
}

/// Returns once the word is so. It is looked at again and again, since nothing tells of it: who
/// writes it is an HCA, another process or a thread of the program's that stores a number. The
/// pauses grow with the time that it takes, so that neither is much longer than the other.
fn wait(word: &Word, condition: &Condition, context: &Context) -> Res {
    wait_until(context, || word.is(|seen| condition.is_met_by(seen)))
}

fn wait_until(context: &Context, is_so: impl Fn() -> Res<bool>) -> Res {
    let (mut looks, mut pause) = (0, SHORTEST);
    while !is_so()? {
        // What comes behind may not be done, and nobody is to wait for it for ever. Who would have
        // written the word may be a stream of the context, which does nothing any more.
        context.goes_on()?;
        // There was no thread for the stream, and the program's has to go on to write the word.
        if is_stand_in() {
            return Err(Error::OUT_OF_MEMORY);
        }
        if looks < LOOKS {
            looks += 1;
        } else {
            std::thread::sleep(pause);
            pause = LONGEST.min(pause * 2);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Found, Gpu};
    use crate::memory::{Memory, Range, Space, Width};
    use crate::sys::{Access, Mapping, page_size};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    fn lane() -> (Arc<Context>, Lane) {
        let gpu = Gpu::new(Found::for_tests("0000:01:00.0".parse().unwrap()));
        let context = Arc::new(Context::new(64, Arc::new(gpu), 0, false));
        let kind = context.queues.add(false);
        (context.clone(), Lane::new(context, kind))
    }

    /// Words of 64 bits by their index.
    fn words() -> impl Fn(u64) -> Word {
        let mapping = Mapping::anonymous(page_size(), Access::Both).unwrap();
        let (space, start) = (Space::default(), mapping.addr());
        space.add(Range::new(start, page_size(), 0, 0, Memory::Host(mapping, 0)));
        move |index| Word::of(&space, start + index * 8, Width::Eight).unwrap()
    }

    fn is(word: &Word, value: u64) -> bool {
        word.is(|seen| seen == value).unwrap()
    }

    fn wait_then_write(words: &impl Fn(u64) -> Word) -> Vec<MemOp> {
        let condition = Condition::new(1, 7, Width::Eight).unwrap();
        vec![MemOp::Wait(words(0), condition), MemOp::Write(words(1), 9)]
    }

    #[test]
    fn a_stream_goes_on_when_the_word_is_so() {
        let ((context, lane), words) = (lane(), words());
        let looks = Arc::new(AtomicU32::new(0));
        let ([word, behind], counted, inside) =
            ([words(0), words(1)], looks.clone(), context.clone());
        lane.queue_fallible(move || {
            wait_until(&inside, || {
                let is_so = word.is(|seen| seen == 7)?;
                counted.fetch_add(1, SeqCst);
                Ok(is_so)
            })?;
            behind.store(9)
        });
        words(0).store(6).unwrap();
        // Those that follow each other at once, and some in pauses.
        let enough = looks.load(SeqCst) + 2 * LOOKS;
        while looks.load(SeqCst) < enough {
            std::thread::yield_now();
        }
        assert!(!lane.is_done() && is(&words(1), 0));
        words(0).store(7).unwrap();
        assert_eq!(lane.synchronize(), Ok(()));
        assert!(is(&words(1), 9));
        context.end(|| ());
    }

    #[test]
    fn a_context_that_dies_ends_waits_of_all_its_streams() {
        let ((context, lane), words) = (lane(), words());
        let other = Lane::new(context.clone(), context.queues.add(false));
        MemOp::queue(&lane, wait_then_write(&words)).unwrap();
        MemOp::queue(&other, wait_then_write(&words)).unwrap();
        other.queue_fallible(|| panic!("is not done"));
        context.fail(Error::ILLEGAL_ADDRESS);
        assert_eq!(lane.synchronize(), Err(Error::ILLEGAL_ADDRESS));
        assert_eq!(other.synchronize(), Err(Error::ILLEGAL_ADDRESS));
        assert!(is(&words(1), 0));
        context.end(|| ());
    }

    #[test]
    fn a_context_that_ends_ends_waits_and_does_nothing_behind_them() {
        let ((context, lane), words) = (lane(), words());
        MemOp::queue(&lane, wait_then_write(&words)).unwrap();
        let behind = lane.queue_fallible(|| panic!("is not done"));
        context.end(|| ());
        assert!(behind.is_reached() && is(&words(1), 0));
        assert_eq!(lane.synchronize(), Err(Error::CONTEXT_IS_DESTROYED));
        assert_eq!(MemOp::queue(&lane, Vec::new()), Err(Error::CONTEXT_IS_DESTROYED));
    }
}
