//! The engine: one command at a time, in a thread of its own, because the thread that serves the
//! machine cannot wait for the machine's memory.

use crate::registers::{Job, Operand, Source, Status};
use crate::vram::Vram;
use engine_thread::{lock, wait};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use umem::DmaSpace;
use vfio_user::Host;

/// Bytes that are moved between two looks whether to stop.
const CHUNK: usize = 64 << 10;
/// The vector that tells of a command's end.
const VECTOR: u16 = 0;

/// The engine. It ends with the value.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    vram: Arc<Vram>,
    host: Host,
    state: Mutex<EngineState>,
    changed: Condvar,
}

#[derive(Default)]
struct EngineState {
    next: Option<Job>,
    status: Status,
    running: bool,
    stop: bool,
    ended: bool,
}

impl Engine {
    /// # Errors
    /// Why there is no thread.
    pub(crate) fn new(vram: Arc<Vram>, host: Host) -> std::io::Result<Engine> {
        let (state, changed) = Default::default();
        let shared = Arc::new(Shared { vram, host, state, changed });
        let its = shared.clone();
        let thread =
            std::thread::Builder::new().name("vgpu".to_owned()).spawn(move || its.work())?;
        Ok(Engine { shared, thread: Some(thread) })
    }

    pub(crate) fn status(&self) -> Status {
        self.shared.state().status
    }

    /// Starts a command, or refuses one that means nothing. While another runs it is dropped.
    pub(crate) fn start(&self, job: Option<Job>) {
        let mut state = self.shared.state();
        if state.status == Status::Busy {
            return;
        }
        state.status = if job.is_some() { Status::Busy } else { Status::Invalid };
        state.next = job;
        if state.next.is_some() {
            self.shared.changed.notify_all();
        } else {
            self.shared.host.interrupt(VECTOR);
        }
    }

    /// Forgets the command. When it returns nothing of it reaches memory any more.
    pub(crate) fn reset(&self) {
        let mut state = self.shared.state();
        state.next = None;
        state.stop = true;
        while state.running {
            state = self.shared.wait(state);
        }
        state.stop = false;
        state.status = Status::Idle;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.reset();
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, EngineState> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, EngineState>) -> MutexGuard<'a, EngineState> {
        wait(&self.changed, state)
    }

    fn work(&self) {
        let mut state = self.state();
        while !state.ended {
            let Some(job) = state.next.take() else {
                state = self.wait(state);
                continue;
            };
            state.running = true;
            drop(state);
            let status = self.run(&job);
            state = self.state();
            state.running = false;
            if let Some(status) = status.filter(|_| !state.stop) {
                state.status = status;
                self.host.interrupt(VECTOR);
            }
            self.changed.notify_all();
        }
    }

    /// Carries a command out; none when it was stopped.
    fn run(&self, job: &Job) -> Option<Status> {
        let in_device = |place: &Operand| match place {
            Operand::Device(offset) => self.vram.holds(*offset, job.len),
            Operand::Host(address) => address.checked_add(job.len).is_some(),
        };
        let source_fits = match &job.source {
            Source::Memory(place) => in_device(place),
            Source::Pattern(_) => true,
        };
        if !source_fits || !in_device(&job.target) {
            return Some(Status::Invalid);
        }
        let memory = self.host.memory();
        let mut bytes = vec![0; CHUNK.min(usize::try_from(job.len).unwrap_or(CHUNK))];
        if let Source::Pattern(pattern) = &job.source {
            bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&pattern[..word.len()]));
        }
        let mut done = 0;
        while done < job.len {
            if self.state().stop {
                return None;
            }
            let piece = (job.len - done).min(CHUNK as u64);
            if self.piece(job, &*memory, done, &mut bytes[..piece as usize]).is_none() {
                return Some(Status::Fault);
            }
            done += piece;
        }
        Some(Status::Done)
    }

    fn piece(&self, job: &Job, memory: &dyn DmaSpace, done: u64, bytes: &mut [u8]) -> Option<()> {
        match job.source {
            Source::Memory(Operand::Device(from)) => self.vram.read(from + done, bytes)?,
            Source::Memory(Operand::Host(from)) => memory.read(from + done, bytes).ok()?,
            Source::Pattern(_) => {}
        }
        match job.target {
            Operand::Device(to) => self.vram.write(to + done, bytes),
            Operand::Host(to) => memory.write(to + done, bytes).ok(),
        }
    }
}
