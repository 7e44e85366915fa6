//! A neighbour: another process of this user on this host, whose registered memory is reached
//! without packets (D7).
//!
//! The two agree by trying: whoever can read a word of the other's memory that its directory names
//! may reach the rest. Where Yama asks for it, the other has to give leave first, and may do so
//! later ([`tracer`]): then it is tried again with the requests that come. What a request may do
//! there is read in the directory, and checked as the executor checks it ([`Published`]); whatever
//! is not plainly right is left to the executor, by packets. The bytes move inside a pass
//! (`shm::Passes`), which the owner of the memory waits for before it takes the memory away; memory
//! in a buffer that may move is kept in its place as well ([`Inside`]). A neighbour that has ended,
//! or runs another program, is seen by its holder's word.

use super::buffers::{Buffer, Buffers, Inside, Part};
use super::files::{Files, Memory};
use super::keys::{ShownBuffer, TRANSLATED, WATCHED, key_at};
use super::ways::Seen;
use super::{COUNTERS_AT, Entry, OPEN, PASSES_AT, ROUTES_AT, RX_AT, Reader, TX_AT, head, qp_at};
use crate::adapter::tracer;
use mm::OtherProcess;
use pcie::RouteTable;
use rustix::fd::OwnedFd;
use shm::{Pass, Passes, Shm, Ticket};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, fence};
use std::time::Instant;
use transport::Counter;
use transport::executor::Published;
use transport::keys::place_of;
use transport::values::{Access, PdId, QpType, Remote};

/// Bytes that are copied to memory which is mapped here before the owner is looked at again: what a
/// visitor that stood still for too long may write yet.
const STEP: u64 = 8 << 10;

/// Another process's memory, as its directory shows it.
pub(crate) struct Neighbour {
    directory: Reader,
    process: OtherProcess,
    /// Whether the kernel has let this process at its memory, and how often that was asked for
    /// since.
    agreed: AtomicBool,
    asked: AtomicU32,
    buffers: Buffers,
    files: Files,
    /// The thread that held the directory when the two agreed.
    holder: u32,
    passes: Passes,
}

/// What a request wants of a neighbour's memory.
pub(crate) struct Wanted {
    /// The process that wants it.
    pub(crate) pid: u32,
    pub(crate) qpn: u32,
    pub(crate) dest_qpn: u32,
    /// [`super::ends_word`] of the request's packets, if they were sent.
    pub(crate) ends: u64,
    pub(crate) remote: Remote,
    pub(crate) length: u32,
    /// It has begun: what it is to was looked at as a whole then.
    pub(crate) goes_on: bool,
    pub(crate) write: bool,
    /// The time.
    pub(crate) now: Instant,
}

/// What a key grants a request.
struct OpenKey {
    entry: Entry,
    /// Address of the first byte in the key's process.
    addr: u64,
    /// Where the route of the bytes counts.
    route: usize,
    buffer: Option<ShownBuffer>,
    /// All of its memory, where that may be a file.
    memory: Option<Memory>,
    /// Where the first byte is as translations count, if the owner's device keeps some.
    translated: Option<u64>,
}

/// What a request was granted, as long as neither entry changes.
pub(crate) struct Found {
    ticket: Ticket,
    qp: Entry,
    key: Entry,
    /// Address of the first byte there.
    addr: u64,
    /// Where the route of the bytes counts.
    route: usize,
    /// The buffer that the bytes are in.
    buffer: Option<Buffer>,
    /// The bytes as they are mapped here.
    seen: Option<Seen>,
    /// Where the first byte is as translations count, if the owner's device keeps some.
    translated: Option<u64>,
    write: bool,
}

impl Found {
    /// Whether its memory was mapped here for it: the progress thread has to see when that is not
    /// used any more.
    pub(crate) fn has_new_view(&self) -> bool {
        self.seen.as_ref().is_some_and(Seen::is_new)
    }
}

/// A visit to memory that a request was granted.
pub(crate) struct Visit<'a> {
    neighbour: &'a Neighbour,
    _inside: Option<Inside<'a>>,
    pass: Pass<'a>,
    found: &'a Found,
}

impl Neighbour {
    /// Agrees with the owner of a directory, process `pid` as the registry knows it; `None` where
    /// there is nothing to agree on.
    pub(crate) fn agree(fd: OwnedFd, pid: u32) -> Option<Neighbour> {
        let directory = Reader::open(&fd).ok()?;
        // Whom the bytes go to is for the kernel to say, not for the directory.
        let process = OtherProcess::new(pid).filter(|_| directory.pid() == pid)?;
        let neighbour = Neighbour::of(directory, process)?;
        match neighbour.try_word() {
            Ok(agreed) => neighbour.agreed.store(agreed, Relaxed),
            Err(error) if error.kind() != ErrorKind::PermissionDenied => return None,
            Err(_) if !tracer::is_asked_for() => return None,
            Err(_) => {
                // What shows that the number is its process's in this PID namespace, too.
                let number = neighbour.shm().word(head::FD).load(Relaxed);
                let number = u32::try_from(number).ok()?;
                return shm::is_memfd_of_process(&fd, pid, number).then_some(neighbour);
            }
        }
        neighbour.has_agreed().then_some(neighbour)
    }

    /// The process that holds this directory.
    pub(crate) fn of(directory: Reader, process: OtherProcess) -> Option<Neighbour> {
        let holder = directory.shm.holder(head::HOLDER)?;
        let (buffers, files) = (Buffers::default(), Files::default());
        let passes = Passes::new(PASSES_AT);
        Some(Neighbour {
            directory,
            process,
            agreed: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            buffers,
            files,
            holder,
            passes,
        })
    }

    /// Whether the word that the directory names is the one in its process's memory.
    ///
    /// # Errors
    /// process_vm_readv(2)'s.
    fn try_word(&self) -> std::io::Result<bool> {
        let word = self.process.word(self.shm().word(head::TOKEN_AT).load(Relaxed))?;
        Ok(word == self.shm().word(head::TOKEN).load(Relaxed))
    }

    /// Whether its memory may be reached, as far as is known.
    pub(crate) fn has_agreed(&self) -> bool {
        self.agreed.load(Relaxed)
    }

    /// The same; asks again now and then, ever more seldom.
    pub(crate) fn agrees(&self) -> bool {
        if self.has_agreed() {
            return true;
        }
        let asked = self.asked.fetch_add(1, Relaxed).wrapping_add(1);
        let agrees = asked.is_power_of_two() && self.try_word().unwrap_or(false);
        if agrees {
            self.agreed.store(true, Relaxed);
        }
        agrees
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What came of a copy; whether the kernel lets this process at that memory any longer.
    fn noted<T>(&self, copied: std::io::Result<T>) -> std::io::Result<T> {
        if copied.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            self.agreed.store(false, Relaxed);
        }
        copied
    }

    fn shm(&self) -> &Shm {
        &self.directory.shm
    }

    /// Whether its process lives and is what it was.
    pub(crate) fn is_there(&self) -> bool {
        self.shm().holder(head::HOLDER) == Some(self.holder)
    }

    /// What a request wants, if it is plainly granted. May open a buffer's control block and map
    /// memory, so none may be entered meanwhile.
    pub(crate) fn find(&self, wanted: &Wanted) -> Option<Found> {
        let (qp, pd, access) = self.open_qp(wanted)?;
        let OpenKey { entry: key, addr, route, buffer, memory, translated } =
            self.open_key(wanted, pd, access)?;
        let (buffer, seen) = match buffer {
            Some(shown) => {
                let at = translated.filter(|_| !wanted.goes_on);
                let units = at.map(|at| units(at, wanted.length.into()));
                let (pid, part) = (self.process.pid(), Part { addr, units });
                let (buffer, seen) = self.buffers.get(self.shm(), pid, key, shown, &part)?;
                (Some(buffer), seen)
            }
            None => {
                let processes = (self.process, wanted.pid);
                let seen = |memory| self.files.seen(self.shm(), processes, key, &memory, addr);
                (None, memory.and_then(seen))
            }
        };
        // Its owner may cut the file at any moment.
        let seen = seen.filter(|_| mm::guard::would_catch(wanted.now));
        let place = place_of(wanted.remote.rkey) as u32;
        let ticket = Ticket::new(place, wanted.dest_qpn, wanted.pid);
        let write = wanted.write;
        Some(Found { ticket, qp, key, addr, route, buffer, seen, translated, write })
    }

    /// Begins a visit to what was found; `None` if that is not granted any more. Never allocates or
    /// waits.
    pub(crate) fn visit<'a>(&'a self, found: &'a Found) -> Option<Visit<'a>> {
        let pass = self.passes.enter(self.shm(), found.ticket, || self.still_grants(found))?;
        let inside = match &found.buffer {
            Some(buffer) => Some(buffer.enter()?),
            None => None,
        };
        Some(Visit { neighbour: self, _inside: inside, pass, found })
    }

    /// Counts at the neighbour what its own side would have: `bytes` that moved from `at` on, which
    /// ended a request with `last`.
    pub(crate) fn count(&self, found: &Found, at: u64, bytes: u64, last: bool) {
        let add = |at: usize, value: u64| self.shm().word(at).fetch_add(value, Relaxed);
        let counter = |what: Counter| COUNTERS_AT + what as usize * 8;
        let (traffic, moved, requests) = match found.write {
            true => (RX_AT, Counter::RcvdBytes, Counter::RxWriteRequests),
            false => (TX_AT, Counter::SentBytes, Counter::RxReadRequests),
        };
        add(found.route, bytes);
        add(found.qp.0 + traffic, bytes);
        add(counter(moved), bytes);
        if let Some(first) = found.translated {
            let units = units(first.saturating_add(at), bytes);
            add(counter(Counter::AtsHits), units.end - units.start);
        }
        if last {
            add(counter(requests), 1);
        }
    }

    /// Whether nobody has taken back what was found, and its process is what it was.
    fn still_grants(&self, found: &Found) -> bool {
        let is = |(at, generation): Entry| self.shm().word(at).load(SeqCst) == generation;
        self.is_there() && is(found.qp) && is(found.key)
    }

    /// The peer's QP, if it is connected to the request's and can take it.
    fn open_qp(&self, wanted: &Wanted) -> Option<(Entry, PdId, Access)> {
        let at = qp_at(wanted.dest_qpn);
        let (generation, [ids, pd_and_peer, access, ends]) = self.directory.entry(at)?;
        let (number, kind) = (ids as u32 & 0xff_ffff, ids >> 32 & 0xff);
        let connected = number == wanted.dest_qpn
            && kind == QpType::Rc as u64
            && (pd_and_peer >> 32) as u32 == wanted.qpn
            && ends == wanted.ends;
        let granted = Access::from_bits_truncate(access as u32);
        let found = ((at, generation), PdId(pd_and_peer as u32), granted);
        (connected && access & OPEN != 0).then_some(found)
    }

    /// The wanted bytes, if the key grants them.
    fn open_key(&self, wanted: &Wanted, pd: PdId, access: Access) -> Option<OpenKey> {
        let at = key_at(wanted.remote.rkey);
        let (generation, [ids, rights, iova, len, addr, route, buffer]) =
            self.directory.entry(at)?;
        let published = Published {
            qp_access: access,
            same_pd: (ids >> 32) as u32 == pd.0,
            access: Access::from_bits_truncate(rights as u32),
            iova,
            len,
        };
        if ids as u32 != wanted.remote.rkey || route & OPEN == 0 {
            return None;
        }
        let offset = published.check(wanted.remote, wanted.length, wanted.write)?;
        let counts = if wanted.write { route >> 31 } else { route } & 0x7fff_ffff;
        let counts = usize::try_from(counts).ok()?;
        let memory = Memory {
            range: addr..addr.checked_add(len)?,
            writable: published.access.contains(Access::REMOTE_WRITE),
        };
        let in_table = (ROUTES_AT..ROUTES_AT + RouteTable::BYTES).contains(&counts);
        (in_table && counts.is_multiple_of(8)).then_some(OpenKey {
            entry: (at, generation),
            addr: addr.checked_add(offset)?,
            route: counts,
            buffer: ShownBuffer::of_word(buffer),
            memory: (rights & WATCHED != 0).then_some(memory),
            translated: (rights & TRANSLATED != 0)
                .then(|| offset.checked_add(addr % mm::page_size()))
                .flatten(),
        })
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        tracer::forget(self);
    }
}

impl Visit<'_> {
    /// Address of the first byte there.
    pub(crate) fn addr(&self) -> u64 {
        self.found.addr
    }

    /// Copies `from` to `at`, counted from the first byte.
    pub(crate) fn write(&self, at: u64, from: umem::Source<'_>) -> std::io::Result<()> {
        if let Some(memory) = self.memory(at, from.len()) {
            return self.in_steps(from.len(), |at, len| {
                memory.part(at, len)?.copy_from(from.part(at, len)?)
            });
        }
        let neighbour = self.neighbour;
        neighbour.noted(neighbour.process.write(self.found.addr.wrapping_add(at), from))
    }

    /// Copies the message `from` to the first byte and on. What lies on its words is seen no more
    /// in part than by packets; `false`, and nothing has changed, where that cannot be.
    pub(crate) fn write_words(&self, from: &[u8]) -> std::io::Result<bool> {
        if let Some(memory) = self.memory(0, from.len() as u64) {
            self.in_steps(from.len() as u64, |_, _| Ok(memory.write(from)?))?;
            return Ok(true);
        }
        self.neighbour.noted(self.neighbour.process.write_words(self.found.addr, from))
    }

    /// Fills `into` from the first byte on, and no word of it in part.
    pub(crate) fn read_words(&self, into: &mut [u8]) -> std::io::Result<()> {
        self.was_read(match self.memory(0, into.len() as u64) {
            Some(memory) => memory.source().read(into).map_err(|_| fault()),
            None => self.neighbour.process.read_words(self.found.addr, into),
        })
    }

    /// Fills `into` from `at` on.
    pub(crate) fn read(&self, at: u64, into: umem::Sink<'_>) -> std::io::Result<()> {
        self.was_read(match self.memory(at, into.len()) {
            Some(memory) => into.copy_from(memory.source()).map_err(|_| fault()),
            None => self.neighbour.process.read(self.found.addr.wrapping_add(at), into),
        })
    }

    /// Copies so many bytes step by step to memory that is mapped here, as long as the owner waits
    /// for that. A call to the system ends before its process is stopped, but these copies stand
    /// still where they are.
    fn in_steps(
        &self,
        len: u64,
        mut copy: impl FnMut(u64, u64) -> Result<(), mm::guard::Fault>,
    ) -> std::io::Result<()> {
        let mut at = 0;
        while at < len && self.pass.is_held() {
            let step = STEP.min(len - at);
            copy(at, step).map_err(|_| fault())?;
            at += step;
        }
        if self.pass.is_held() { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
    }

    /// So many bytes from `at` on, if they are mapped here. Their pages come now, as far as the
    /// owner waits for that: after it they would come to what it has taken back.
    fn memory(&self, at: u64, len: u64) -> Option<umem::Sink<'_>> {
        let seen = self.found.seen.as_ref()?;
        if self.pass.is_held() {
            seen.bring_in(at, len);
        }
        seen.memory(at, len)
    }

    /// What came of a copy from there.
    fn was_read(&self, copied: std::io::Result<()>) -> std::io::Result<()> {
        let neighbour = self.neighbour;
        neighbour.noted(copied)?;
        // Who stood still for long was waited for no more, and a process that ended may have been
        // followed by another of its number: then these bytes are others.
        fence(SeqCst);
        if neighbour.still_grants(self.found) { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
    }

    /// [`Neighbour::count`] for this visit.
    pub(crate) fn count(&self, at: u64, bytes: u64, last: bool) {
        self.neighbour.count(self.found, at, bytes, last);
    }
}

/// The units of memory that so many bytes from `at` on lie in.
fn units(at: u64, bytes: u64) -> Range<u64> {
    let unit = umem::translation_unit();
    at / unit..at.saturating_add(bytes).div_ceil(unit)
}

/// A guarded copy met memory that is not there.
fn fault() -> std::io::Error {
    rustix::io::Errno::FAULT.into()
}

#[cfg(test)]
mod tests {
    use super::super::{Directory, ShownQp};
    use super::*;
    use mm::Mapping;
    use std::process::Command;
    use transport::values::QpState;

    const QPN: u32 = 5;
    const KEY: u32 = 3 << 8 | 7;
    const ENDS: u64 = 77;

    /// Shows 64 bytes of a process to queue pair 9.
    fn show(directory: &Directory, addr: u64) {
        let open = Some((Access::REMOTE_READ, ENDS));
        let (qp_type, state) = (QpType::Rc, QpState::Rts);
        let goes_directly = true;
        let (number, pd, dest_qpn) = (QPN, 6, 9);
        let qp = ShownQp { number, qp_type, state, pd, dest_qpn, goes_directly, open };
        directory.publish_qp(&qp);
        let (ids, rights) = (u64::from(KEY) | 6 << 32, u64::from(Access::REMOTE_READ.bits()));
        let counts = ROUTES_AT as u64 | (ROUTES_AT as u64) << 31 | OPEN;
        directory.write_entry(key_at(KEY), &[ids, rights, 0x1000, 64, addr, counts, 0]);
    }

    #[test]
    fn what_was_taken_back_during_a_read_is_not_what_was_read() {
        let directory = Directory::create("peerdma-test", 5).unwrap();
        let _held = directory.hold().unwrap();
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", other.id())).unwrap();
        let addr = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        let into = Mapping::anonymous(64).unwrap();
        let pid = std::process::id();
        let process = OtherProcess::new(other.id()).unwrap();
        let neighbour = Neighbour::of(directory.reader().unwrap(), process).unwrap();
        let remote = Remote { addr: 0x1000, rkey: KEY };
        let (qpn, dest_qpn, ends) = (9, QPN, ENDS);
        let (length, goes_on, write, now) = (64, false, false, Instant::now());
        let wanted = Wanted { pid, qpn, dest_qpn, ends, remote, length, goes_on, write, now };
        for taken_back in [key_at(KEY), qp_at(QPN)] {
            show(&directory, addr);
            let found = neighbour.find(&wanted).unwrap();
            let visit = neighbour.visit(&found).unwrap();
            visit.read(0, into.sink()).unwrap();
            directory.shut(taken_back);
            let error = visit.read(0, into.sink()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
