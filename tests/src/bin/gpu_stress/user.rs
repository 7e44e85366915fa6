//! A user: does what the owner's lines say, and in between uses the buffers at random.
//!
//! `open I FILE LEN` → `opened I SENDS ANSWERS REGION`; `join I ANSWERS SENDS REGION` (of the one
//! it writes through, the one that writes through it, the former) → `joined I`; `begin I` once all
//! have joined; `stop I` → `stopped I ADDS DOUBTFUL-ADDS FROM TO HASH`, where bytes FROM to TO of
//! the stripe are doubtful and hashed as zeroes; `again I` reads the stripe once more → `same I`;
//! `count I` reads the counter → `counted I ADDS`; `close I` → `closed I`; `quit`. An error of an
//! access is `lost I STATUS`, once a buffer.

use crate::random::Random;
use crate::{hash, stripe};
use anyhow::{Context, Result, bail, ensure};
use peerdma::{
    Access as Rights, Completion, Cq, Dmabuf, HostBuffer, IdleQp, Library, Mr, Op, Pd, Qp,
    RemoteSlice, SendFlags, Status,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufRead;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Local ACK timeout: a second, for a machine that is busy.
const TIMEOUT: u8 = 18;
/// Most requests at once.
const OUTSTANDING: u64 = 8;
/// Bytes of staging memory of each, more than any stripe has.
const SLOT: u64 = 256 << 10;
/// The counter that all users of a buffer add to.
const COUNTER: Range<u64> = 0..8;

/// What a request does to a part of the user's own stripe, or to the counter.
enum Access {
    Write(Range<u64>, Vec<u8>),
    Read(Range<u64>),
    /// From this process's region through the other's to the same bytes.
    Copy(Range<u64>),
    Add,
}

enum Link {
    Idle { sends: IdleQp, answers: IdleQp },
    Joined { sends: Qp, _answers: Qp, region: RemoteSlice },
}

struct Buffer {
    link: Option<Link>,
    mr: Mr<Dmabuf>,
    model: Vec<u8>,
    at: Range<u64>,
    adds: u64,
    doubtful_adds: u64,
    doubtful: Range<u64>,
    is_used: bool,
}

struct User {
    number: usize,
    pd: Pd,
    cq: Cq,
    staging: Mr,
    buffers: BTreeMap<u64, Buffer>,
    random: Random,
}

pub fn run(number: usize, seed: u64) -> Result<()> {
    let context = Library::system()?.open(None)?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64, None)?;
    let staging = pd.reg(HostBuffer::new((OUTSTANDING * SLOT) as usize)?, Rights::LOCAL_WRITE)?;
    let random = Random::new(seed * 31 + number as u64);
    let mut user = User { number, pd, cq, staging, buffers: BTreeMap::new(), random };
    let lines = lines();
    let before = descriptors()?;
    loop {
        let line = if user.is_idle() { lines.recv().ok() } else { lines.try_recv().ok() };
        match line.as_deref() {
            Some("quit") => break,
            Some(line) => user.command(line).with_context(|| line.to_owned())?,
            None if user.is_idle() => bail!("the owner is gone"),
            None => user.use_some()?,
        }
    }
    ensure!(user.buffers.is_empty(), "buffers are left open");
    let left = descriptors()?.saturating_sub(before);
    // what the first buffer makes the library open for good
    ensure!(left <= 4, "{left} descriptors are left");
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    ensure!(!maps.contains("peerdma-vram"), "mappings are left:\n{maps}");
    println!("done");
    Ok(())
}

fn lines() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

impl User {
    fn is_idle(&self) -> bool {
        !self.buffers.values().any(|buffer| buffer.is_used)
    }

    fn command(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let word = |at: usize| words.get(at).copied().context("too few words");
        let index: u64 = word(1)?.parse()?;
        match word(0)? {
            "open" => self.open(index, word(2)?, word(3)?.parse()?),
            "join" => {
                let (answers, sends) = (word(2)?.parse()?, word(3)?.parse()?);
                let region = serde_json::from_str(word(4)?)?;
                let buffer = self.buffer(index)?;
                let Some(Link::Idle { sends: mine, answers: mine_too }) = buffer.link.take() else {
                    bail!("joined twice");
                };
                let (sends, _answers) = (mine.connect(&answers)?, mine_too.connect(&sends)?);
                buffer.link = Some(Link::Joined { sends, _answers, region });
                println!("joined {index}");
                Ok(())
            }
            "begin" => {
                self.buffer(index)?.is_used = true;
                Ok(())
            }
            "stop" => self.stop(index),
            "again" => {
                let whole = 0..self.buffer(index)?.model.len() as u64;
                self.alone(index, Access::Read(whole))?;
                println!("same {index}");
                Ok(())
            }
            "count" => {
                println!("counted {index} {}", self.count(index)?);
                Ok(())
            }
            "close" => {
                self.buffers.remove(&index).context("no such buffer")?;
                println!("closed {index}");
                Ok(())
            }
            _ => bail!("unknown"),
        }
    }

    fn buffer(&mut self, index: u64) -> Result<&mut Buffer> {
        self.buffers.get_mut(&index).context("no such buffer")
    }

    fn open(&mut self, index: u64, file: &str, len: u64) -> Result<()> {
        let file = File::options().read(true).write(true).open(file)?;
        let rights = Rights::LOCAL_WRITE
            | Rights::REMOTE_WRITE
            | Rights::REMOTE_READ
            | Rights::REMOTE_ATOMIC;
        let mr = self.pd.reg_dmabuf(file.as_fd(), 0, len, 0, rights)?;
        let idle = || self.pd.qp(&self.cq, &self.cq).access(rights).timeout(TIMEOUT).build();
        let (sends, answers) = (idle()?, idle()?);
        let region = serde_json::to_string(&mr.remote())?;
        println!("opened {index} {} {} {region}", sends.endpoint(), answers.endpoint());
        let at = stripe(self.number, len);
        let buffer = Buffer {
            link: Some(Link::Idle { sends, answers }),
            mr,
            model: vec![0; (at.end - at.start) as usize],
            at,
            adds: 0,
            doubtful_adds: 0,
            doubtful: 0..0,
            is_used: false,
        };
        self.buffers.insert(index, buffer);
        Ok(())
    }

    fn stop(&mut self, index: u64) -> Result<()> {
        let buffer = self.buffer(index)?;
        buffer.is_used = false;
        let Range { start, end } = buffer.doubtful.clone();
        let mut bytes = buffer.model.clone();
        bytes[start as usize..end as usize].fill(0);
        let (adds, doubtful, hash) = (buffer.adds, buffer.doubtful_adds, hash(&bytes));
        println!("stopped {index} {adds} {doubtful} {start} {end} {hash}");
        Ok(())
    }

    /// Several random accesses to random buffers at once, from the first to the last completion.
    fn use_some(&mut self) -> Result<()> {
        let usable: Vec<u64> =
            self.buffers.iter().filter(|(_, buffer)| buffer.is_used).map(|(i, _)| *i).collect();
        let mut posted: BTreeMap<u64, Vec<(u64, Access)>> = BTreeMap::new();
        for slot in 0..1 + self.random.below(OUTSTANDING) {
            let index = usable[self.random.below(usable.len() as u64) as usize];
            let before = posted.entry(index).or_default();
            let access = self.choose(index, before.is_empty());
            self.post(index, slot, &access)?;
            before.push((slot, access));
        }
        let mut ends = self.ends(posted.values().map(Vec::len).sum())?;
        for (index, accesses) in posted {
            for (slot, access) in accesses {
                let end = ends.remove(&slot).context("a request has no completion")?;
                let buffer = self.buffer(index)?;
                if buffer.is_used {
                    self.judge(index, slot, access, end)?;
                } else {
                    // It may have reached the other end all the same: the one before it may have
                    // failed when it was sent again.
                    ensure!(end == Some(Status::Flushed), "after an error: {end:?}");
                    buffer.doubt(access);
                }
            }
        }
        Ok(())
    }

    /// A random access to a buffer. Only the `first` may copy: it reads what an access before it
    /// may be about to write.
    fn choose(&mut self, index: u64, first: bool) -> Access {
        let part = self.random.part(self.buffers[&index].model.len() as u64);
        match self.random.below(8) {
            0..3 => Access::Write(part.clone(), self.bytes(part)),
            6 if first => Access::Copy(part),
            7 => Access::Add,
            _ => Access::Read(part),
        }
    }

    fn bytes(&mut self, part: Range<u64>) -> Vec<u8> {
        let first = self.random.below(256) as u8;
        (0..part.end - part.start).map(|at| first.wrapping_add((at * 7) as u8)).collect()
    }

    /// Posts an access whose bytes are in a slot of the staging memory.
    fn post(&mut self, index: u64, slot: u64, access: &Access) -> Result<()> {
        let at = slot * SLOT;
        if let Access::Write(_, bytes) = access {
            self.staging.write(at, bytes)?;
        }
        let (staging, buffer) = (&self.staging, &self.buffers[&index]);
        let Some(Link::Joined { sends, region, .. }) = &buffer.link else { bail!("not joined") };
        let staged = |part: &Range<u64>| staging.slice(at..at + part.end - part.start);
        // A READ may be answered late: what comes after it waits, or it would see that.
        let flags = SendFlags::SIGNALED | SendFlags::FENCE;
        match access {
            Access::Write(part, _) => {
                let (local, remote) = ([staged(part)?], buffer.remote(part.clone())?);
                sends.post(slot, &Op::Write { local: &local, remote, imm: None }, flags)?;
            }
            Access::Read(part) => {
                let (local, remote) = ([staged(part)?], buffer.remote(part.clone())?);
                sends.post(slot, &Op::Read { local: &local, remote }, SendFlags::SIGNALED)?;
            }
            Access::Copy(part) => {
                let own = buffer.at.start + part.start..buffer.at.start + part.end;
                let (local, remote) = ([buffer.mr.slice(own)?], buffer.remote(part.clone())?);
                sends.post(slot, &Op::Write { local: &local, remote, imm: None }, flags)?;
            }
            Access::Add => {
                let (local, remote) = (staged(&COUNTER)?, region.slice(COUNTER)?);
                sends.post(slot, &Op::FetchAdd { local, remote, add: 1 }, flags)?;
            }
        }
        Ok(())
    }

    /// How `count` requests ended, by slot: the status of those that failed.
    fn ends(&self, count: usize) -> Result<BTreeMap<u64, Option<Status>>> {
        let mut ends = BTreeMap::new();
        while ends.len() < count {
            let done: Vec<Completion> = self.cq.wait(Some(Duration::from_secs(30)))?;
            ensure!(!done.is_empty(), "{} completions instead of {count}", ends.len());
            for done in done {
                let status = done.result.err().map(|error| error.status);
                let again = ends.insert(done.id, status);
                ensure!(again.is_none(), "two completions of request {}", done.id);
            }
        }
        Ok(ends)
    }

    /// Brings the model to what an access has done, and compares what it read.
    fn judge(&mut self, index: u64, slot: u64, access: Access, end: Option<Status>) -> Result<()> {
        let buffer = self.buffers.get_mut(&index).context("no such buffer")?;
        if let Some(status) = end {
            let is_copy = matches!(access, Access::Copy(_));
            buffer.doubt(access);
            return buffer.lose(index, status, is_copy);
        }
        match access {
            Access::Write(part, bytes) => {
                buffer.model[part.start as usize..part.end as usize].copy_from_slice(&bytes);
            }
            Access::Read(part) => {
                let mut found = vec![0; (part.end - part.start) as usize];
                self.staging.read(slot * SLOT, &mut found)?;
                let model = &buffer.model[part.start as usize..part.end as usize];
                let wrong = (0..found.len()).find(|&at| found[at] != model[at]);
                if let Some(at) = wrong {
                    let (is, was) = (found[at], model[at]);
                    bail!(
                        "byte {} of buffer {index} is {is} instead of {was}",
                        part.start + at as u64
                    );
                }
            }
            Access::Copy(_) => {}
            Access::Add => buffer.adds += 1,
        }
        Ok(())
    }

    /// One access by itself, which must succeed.
    fn alone(&mut self, index: u64, access: Access) -> Result<()> {
        self.post(index, 0, &access)?;
        let end = self.ends(1)?.remove(&0).context("no completion")?;
        ensure!(end.is_none(), "buffer {index}: {end:?}");
        self.judge(index, 0, access, end)
    }

    /// The counter as the other's region shows it. It is part of no stripe.
    fn count(&mut self, index: u64) -> Result<u64> {
        let Some(Link::Joined { sends, region, .. }) = &self.buffers[&index].link else {
            bail!("not joined")
        };
        let (local, remote) = ([self.staging.slice(COUNTER)?], region.slice(COUNTER)?);
        sends.post(0, &Op::Read { local: &local, remote }, SendFlags::SIGNALED)?;
        let end = self.ends(1)?.remove(&0).context("no completion")?;
        ensure!(end.is_none(), "buffer {index}: {end:?}");
        let mut word = [0; 8];
        self.staging.read(0, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}

impl Buffer {
    /// A part of the stripe as the other's region names it.
    fn remote(&self, part: Range<u64>) -> Result<RemoteSlice> {
        let Some(Link::Joined { region, .. }) = &self.link else { bail!("not joined") };
        Ok(region.slice(self.at.start + part.start..self.at.start + part.end)?)
    }

    /// Whether the access took effect is not known.
    fn doubt(&mut self, access: Access) {
        match access {
            Access::Write(part, _) if self.doubtful.is_empty() => self.doubtful = part,
            Access::Write(Range { start, end }, _) => {
                self.doubtful = self.doubtful.start.min(start)..self.doubtful.end.max(end);
            }
            Access::Add => self.doubtful_adds += 1,
            Access::Read(_) | Access::Copy(_) => {}
        }
    }

    fn lose(&mut self, index: u64, status: Status, is_local_too: bool) -> Result<()> {
        let is_access = status == Status::RemoteAccess;
        ensure!(
            is_access || is_local_too && status == Status::LocalProtection,
            "buffer {index}: {status:?}"
        );
        self.is_used = false;
        println!("lost {index} {status:?}");
        Ok(())
    }
}
