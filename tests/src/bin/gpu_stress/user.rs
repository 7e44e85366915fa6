//! A user: does what the owner's lines say, and in between uses the buffers at random.
//!
//! `open I FILE LEN` → `opened I SENDS ANSWERS REGION`; `join I ANSWERS SENDS REGION` (of the one it writes through, the one
//! that writes through it, the former) → `joined I`; `begin I` once all have joined; `stop I` → `stopped I ADDS DOUBTFUL-ADDS FROM TO HASH`, where bytes FROM to TO of the
//! stripe are doubtful and hashed as zeroes; `again I` reads the stripe once more → `same I`; `close I` → `closed I`; `quit`.
//! An error of an access is `lost I STATUS`, once a buffer.

use crate::random::Random;
use crate::{hash, stripe};
use anyhow::{Context, Result, bail, ensure};
use peerdma::{
    Access, Completion, Cq, Dmabuf, HostBuffer, IdleQp, Library, Mr, Op, Pd, Qp, RemoteSlice,
    SendFlags, Status,
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
const STAGING: usize = 1 << 20;

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
    let staging = pd.reg(HostBuffer::new(STAGING)?, Access::LOCAL_WRITE)?;
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
            None => user.use_one()?,
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
                self.read(index, whole)?;
                println!("same {index}");
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
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let mr = self.pd.reg_dmabuf(file.as_fd(), 0, len, 0, access)?;
        let idle = || self.pd.qp(&self.cq, &self.cq).access(access).timeout(TIMEOUT).build();
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

    /// One random access to a random buffer.
    fn use_one(&mut self) -> Result<()> {
        let usable: Vec<u64> =
            self.buffers.iter().filter(|(_, buffer)| buffer.is_used).map(|(i, _)| *i).collect();
        let index = usable[self.random.below(usable.len() as u64) as usize];
        let len = self.buffer(index)?.model.len() as u64;
        let part = self.random.part(len);
        match self.random.below(8) {
            0..3 => self.write(index, part),
            3..6 => self.read(index, part),
            6 => self.copy_onto_itself(index, part),
            _ => self.add(index),
        }
    }

    fn write(&mut self, index: u64, part: Range<u64>) -> Result<()> {
        let mut bytes = vec![self.random.below(256) as u8; (part.end - part.start) as usize];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = byte.wrapping_add((at * 7) as u8);
        }
        self.staging.write(0, &bytes)?;
        let (buffer, len) = (&self.buffers[&index], bytes.len() as u64);
        let local = [self.staging.slice(..len)?];
        let op = Op::Write { local: &local, remote: buffer.remote(part.clone())?, imm: None };
        let failed = self.carry_out(buffer, &op)?;
        let buffer = self.buffer(index)?;
        match failed {
            None => buffer.model[part.start as usize..part.end as usize].copy_from_slice(&bytes),
            Some(status) => {
                buffer.doubtful = part;
                buffer.lose(index, status, false)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, index: u64, part: Range<u64>) -> Result<()> {
        let buffer = &self.buffers[&index];
        let local = [self.staging.slice(..part.end - part.start)?];
        let op = Op::Read { local: &local, remote: buffer.remote(part.clone())? };
        if let Some(status) = self.carry_out(buffer, &op)? {
            return self.buffer(index)?.lose(index, status, false);
        }
        let mut found = vec![0; (part.end - part.start) as usize];
        self.staging.read(0, &mut found)?;
        let model = &buffer.model[part.start as usize..part.end as usize];
        let wrong = (0..found.len()).find(|&at| found[at] != model[at]);
        let Some(at) = wrong else { return Ok(()) };
        bail!(
            "byte {} of buffer {index} is {} instead of {}",
            part.start + at as u64,
            found[at],
            model[at]
        )
    }

    /// From this process's region through the other's to the same bytes.
    fn copy_onto_itself(&mut self, index: u64, part: Range<u64>) -> Result<()> {
        let buffer = &self.buffers[&index];
        let local = [buffer.mr.slice(buffer.at.start + part.start..buffer.at.start + part.end)?];
        let op = Op::Write { local: &local, remote: buffer.remote(part)?, imm: None };
        match self.carry_out(buffer, &op)? {
            None => Ok(()),
            Some(status) => self.buffer(index)?.lose(index, status, true),
        }
    }

    fn add(&mut self, index: u64) -> Result<()> {
        let buffer = &self.buffers[&index];
        let Some(Link::Joined { region, .. }) = &buffer.link else { bail!("not joined") };
        let op =
            Op::FetchAdd { local: self.staging.slice(..8)?, remote: region.slice(..8)?, add: 1 };
        let failed = self.carry_out(buffer, &op)?;
        let buffer = self.buffer(index)?;
        match failed {
            None => buffer.adds += 1,
            Some(status) => {
                buffer.doubtful_adds += 1;
                buffer.lose(index, status, false)?;
            }
        }
        Ok(())
    }

    /// One request to its end; the status if that is not success.
    fn carry_out(&self, buffer: &Buffer, op: &Op<'_>) -> Result<Option<Status>> {
        let Some(Link::Joined { sends, .. }) = &buffer.link else { bail!("not joined") };
        sends.post(0, op, SendFlags::SIGNALED)?;
        let done: Vec<Completion> = self.cq.wait(Some(Duration::from_secs(30)))?;
        let [done] = &done[..] else {
            bail!("{} completions instead of one: {done:?}", done.len())
        };
        Ok(done.result.err().map(|error| error.status))
    }
}

impl Buffer {
    /// A part of the stripe as the other's region names it.
    fn remote(&self, part: Range<u64>) -> Result<RemoteSlice> {
        let Some(Link::Joined { region, .. }) = &self.link else { bail!("not joined") };
        Ok(region.slice(self.at.start + part.start..self.at.start + part.end)?)
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
