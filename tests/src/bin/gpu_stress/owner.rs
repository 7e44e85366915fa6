//! The owner: has the buffers, conducts the users, and judges.

use crate::random::Random;
use crate::{STRIPES, USERS, hash, stripe};
use anyhow::{Context, Result, bail, ensure};
use dmabuf::Placement;
use gpu::SoftwareGpu;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Buffers at once.
const BUFFERS: usize = 4;
/// More than any answer may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a user says last of all.
const ENDED: &str = "ended";

struct Live {
    buffer: gpu::Buffer,
    fd: OwnedFd,
    users: Range<usize>,
    is_revoked: bool,
    lost: usize,
}

/// What a user says of a buffer that it has stopped to use.
struct Stopped {
    adds: u64,
    doubtful_adds: u64,
    /// Bytes of its stripe that a failed request may have written, or not.
    doubtful: Range<usize>,
    /// The hash of its stripe, with the doubtful bytes as zeroes.
    hash: u64,
}

#[derive(Default, Debug)]
struct Totals {
    buffers: u64,
    moves: u64,
    busy: u64,
    revoked: u64,
    /// Freed while in use.
    freed: u64,
    adds: u64,
}

struct Owner {
    gpu: SoftwareGpu,
    users: Vec<(Child, ChildStdin)>,
    inbox: Receiver<(usize, String)>,
    /// Answers that came before somebody waited for them.
    early: VecDeque<(usize, String)>,
    live: BTreeMap<u64, Live>,
    next: u64,
    seed: u64,
    random: Random,
    totals: Totals,
    /// The users have been told to end.
    is_over: bool,
}

pub fn run(seconds: u64, seed: u64) -> Result<()> {
    let platform = match std::env::var_os("PEERDMA_PLATFORM") {
        Some(file) => pcie::Platform::load(file.as_ref())?,
        None => pcie::Platform::default(),
    };
    let function = platform.with_role(pcie::Role::Gpu).next().context("no GPU")?;
    let client = registry::Client::connect(registry::Role::Member)?;
    let gpu = SoftwareGpu::of(function, client)?;
    let free = gpu.free_bytes();
    let mut owner = Owner::new(gpu, seed)?;
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        owner.step()?;
    }
    let indices: Vec<u64> = owner.live.keys().copied().collect();
    indices.into_iter().try_for_each(|index| owner.end(index))?;
    owner.is_over = true;
    for user in 0..USERS {
        owner.say(user, "quit")?;
    }
    for user in 0..USERS {
        owner.answer(user, "done")?;
        let status = owner.users[user].0.wait()?;
        ensure!(status.success(), "user {user}: {status}");
    }
    ensure!(
        owner.gpu.free_bytes() == free,
        "{} bytes of GPU memory are left",
        owner.gpu.free_bytes()
    );
    let totals = &owner.totals;
    let all = [totals.moves, totals.revoked, totals.freed, totals.adds];
    ensure!(all.iter().all(|count| *count > 0), "too little: {totals:?}");
    // What one user pins nobody moves.
    ensure!(!pins(seed) || totals.busy > 0, "no move met a pin: {totals:?}");
    println!("{totals:?}");
    Ok(())
}

/// Whether the last of the users pins what it registers, so that moves and revokes meet pins.
fn pins(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Who uses a buffer: all, but that the one that pins leaves every other buffer to the others, to
/// be moved.
fn users_of(index: u64, seed: u64) -> Range<usize> {
    if pins(seed) && index.is_multiple_of(2) { 0..USERS - 1 } else { 0..USERS }
}

impl Owner {
    fn new(gpu: SoftwareGpu, seed: u64) -> Result<Owner> {
        let (sender, inbox) = channel();
        let mut users = Vec::new();
        for number in 0..USERS {
            let hold =
                if number == USERS - 1 && pins(seed) { "pinned-revocable" } else { "dynamic" };
            let mut child = Command::new(std::env::current_exe()?)
                .args(["user", &number.to_string(), &seed.to_string()])
                .env("PEERDMA_DMABUF", hold)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    drop(sender.send((number, line)));
                }
                drop(sender.send((number, ENDED.to_owned())));
            });
            let stdin = child.stdin.take().context("no pipe")?;
            users.push((child, stdin));
        }
        let (live, early, totals) = (BTreeMap::new(), VecDeque::new(), Totals::default());
        let random = Random::new(seed);
        Ok(Owner { gpu, users, inbox, early, live, next: 0, seed, random, totals, is_over: false })
    }

    fn say(&mut self, user: usize, line: &str) -> Result<()> {
        writeln!(self.users[user].1, "{line}").with_context(|| format!("user {user} is gone"))
    }

    /// The rest of a user's next line that begins so.
    fn answer(&mut self, user: usize, beginning: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let is_it =
                |(from, line): &(usize, String)| *from == user && line.starts_with(beginning);
            if let Some(at) = self.early.iter().position(is_it) {
                let (_, line) = self.early.remove(at).context("no line")?;
                return Ok(line[beginning.len()..].trim().to_owned());
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            let (from, line) = self
                .inbox
                .recv_timeout(rest)
                .with_context(|| format!("user {user} does not say {beginning:?}"))?;
            self.hear(from, line)?;
        }
    }

    fn hear(&mut self, from: usize, line: String) -> Result<()> {
        ensure!(line != ENDED || self.is_over, "user {from} has ended");
        let Some(lost) = line.strip_prefix("lost ") else {
            self.early.push_back((from, line));
            return Ok(());
        };
        let index: u64 = lost.split(' ').next().unwrap_or_default().parse()?;
        let live = self.live.get_mut(&index).context("a buffer that is gone was lost")?;
        ensure!(live.is_revoked, "user {from} lost a buffer that is not revoked: {line}");
        live.lost += 1;
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        while let Ok((from, line)) = self.inbox.try_recv() {
            self.hear(from, line)?;
        }
        if self.live.len() < BUFFERS {
            return self.begin();
        }
        let which = self.random.below(self.live.len() as u64) as usize;
        let index = *self.live.keys().nth(which).context("no buffer")?;
        match self.random.below(100) {
            0..4 => self.revoke(index),
            4..6 => self.end(index),
            6..8 => self.free(index),
            _ => self.relocate(index),
        }
    }

    fn begin(&mut self) -> Result<()> {
        let index = self.next;
        self.next += 1;
        let len = STRIPES + USERS as u64 * (1 + self.random.below(200_000));
        let buffer = self.gpu.alloc(len)?;
        let fd = buffer.export()?;
        let file = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        let users = users_of(index, self.seed);
        let live = Live { buffer, fd, users: users.clone(), is_revoked: false, lost: 0 };
        self.live.insert(index, live);
        let ends =
            self.ask(&users, &format!("open {index} {file} {len}"), &format!("opened {index} "))?;
        let words: Vec<Vec<&str>> = ends.iter().map(|line| line.split(' ').collect()).collect();
        ensure!(words.iter().all(|words| words.len() == 3), "{ends:?}");
        let count = users.len();
        for user in users.clone() {
            let (through, from) = (&words[(user + 1) % count], &words[(user + count - 1) % count]);
            let line = format!("join {index} {} {} {}", through[1], from[0], through[2]);
            self.say(user, &line)?;
        }
        // A first request must find the other end connected.
        for user in users.clone() {
            self.answer(user, &format!("joined {index}"))?;
        }
        for user in users {
            self.say(user, &format!("begin {index}"))?;
        }
        self.totals.buffers += 1;
        Ok(())
    }

    /// Says a line to users and gives the rest of each one's answer.
    fn ask(&mut self, users: &Range<usize>, line: &str, answer: &str) -> Result<Vec<String>> {
        for user in users.clone() {
            self.say(user, line)?;
        }
        users.clone().map(|user| self.answer(user, answer)).collect()
    }

    fn relocate(&mut self, index: u64) -> Result<()> {
        let buffer = &self.live[&index].buffer;
        let to = match buffer.placement() {
            Placement::Vram => Placement::Host,
            Placement::Host => Placement::Vram,
        };
        match buffer.move_to(to) {
            Ok(moved) => self.totals.moves += u64::from(moved),
            Err(gpu::Error::DmaBuf(
                dmabuf::Error::Pinned(_) | dmabuf::Error::InUse(_) | dmabuf::Error::Moving(_),
            )) => self.totals.busy += 1,
            Err(error) => return Err(error).context(format!("moving buffer {index}")),
        }
        Ok(())
    }

    /// Takes a buffer back; each user meets an error, and not a byte changes any more.
    fn revoke(&mut self, index: u64) -> Result<()> {
        let live = self.live.get_mut(&index).context("no buffer")?;
        live.is_revoked = true;
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = live.buffer.revoke() {
            let waits = matches!(error, gpu::Error::DmaBuf(dmabuf::Error::InUse(_)));
            ensure!(waits && Instant::now() < deadline, "revoking buffer {index}: {error}");
        }
        let before = self.content(index)?;
        while self.live[&index].lost < self.live[&index].users.len() {
            let rest = deadline.saturating_duration_since(Instant::now());
            let (from, line) =
                self.inbox.recv_timeout(rest).context("a user does not lose a revoked buffer")?;
            self.hear(from, line)?;
        }
        self.totals.revoked += 1;
        ensure!(self.content(index)? == before, "buffer {index} was written after its revoke");
        self.end(index)
    }

    fn content(&self, index: u64) -> Result<Vec<u8>> {
        let buffer = &self.live[&index].buffer;
        let mut bytes = vec![0; buffer.len() as usize];
        buffer.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Ends the use of a buffer, checks what is in it, frees it while it is registered, and has it
    /// deregistered.
    fn end(&mut self, index: u64) -> Result<()> {
        let users = self.live[&index].users.clone();
        let stopped = self.stop(index, &users)?;
        let content = self.content(index)?;
        check_stripes(index, &users, content.clone(), &stopped)?;
        let mut word = [0; 8];
        word.copy_from_slice(&content[..8]);
        check_counter(index, u64::from_le_bytes(word), &stopped)?;
        if !self.live[&index].is_revoked {
            self.live.remove(&index);
            self.ask(&users, &format!("again {index}"), &format!("same {index}"))?;
        }
        self.close(index, &users)
    }

    /// Frees a buffer in the middle of its use: who has registered it goes on, and has what it had.
    fn free(&mut self, index: u64) -> Result<()> {
        let Live { buffer, fd, users, .. } = self.live.remove(&index).context("no buffer")?;
        drop((buffer, fd));
        self.totals.freed += 1;
        let stopped = self.stop(index, &users)?;
        self.ask(&users, &format!("again {index}"), &format!("same {index}"))?;
        let counted = self.ask(&users, &format!("count {index}"), &format!("counted {index} "))?;
        for counted in counted {
            check_counter(index, counted.parse()?, &stopped)?;
        }
        self.close(index, &users)
    }

    fn stop(&mut self, index: u64, users: &Range<usize>) -> Result<Vec<Stopped>> {
        let said = self.ask(users, &format!("stop {index}"), &format!("stopped {index} "))?;
        let stopped: Vec<Stopped> =
            said.iter().map(|said| Stopped::read(said)).collect::<Result<_>>()?;
        self.totals.adds += stopped.iter().map(|stopped| stopped.adds).sum::<u64>();
        Ok(stopped)
    }

    fn close(&mut self, index: u64, users: &Range<usize>) -> Result<()> {
        self.ask(users, &format!("close {index}"), &format!("closed {index}"))?;
        self.live.remove(&index);
        Ok(())
    }
}

impl Stopped {
    fn read(said: &str) -> Result<Stopped> {
        let numbers: Vec<u64> = said.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [adds, doubtful_adds, from, to, hash] = numbers[..] else { bail!("{said}") };
        Ok(Stopped { adds, doubtful_adds, doubtful: from as usize..to as usize, hash })
    }
}

/// Each user's stripe is what the user says.
fn check_stripes(
    index: u64,
    users: &Range<usize>,
    mut content: Vec<u8>,
    stopped: &[Stopped],
) -> Result<()> {
    for (user, stopped) in users.clone().zip(stopped) {
        let at = stripe(user, content.len() as u64);
        let bytes = &mut content[at.start as usize..at.end as usize];
        bytes[stopped.doubtful.clone()].fill(0);
        let wanted = stopped.hash;
        ensure!(hash(bytes) == wanted, "the stripe of user {user} of buffer {index} is wrong");
    }
    Ok(())
}

/// The counter has what the users added, and nothing else.
fn check_counter(index: u64, counted: u64, stopped: &[Stopped]) -> Result<()> {
    let adds: u64 = stopped.iter().map(|stopped| stopped.adds).sum();
    let doubtful: u64 = stopped.iter().map(|stopped| stopped.doubtful_adds).sum();
    ensure!(
        (adds..=adds + doubtful).contains(&counted),
        "buffer {index} counts {counted}, not {adds} and {doubtful} doubtful"
    );
    Ok(())
}

impl Drop for Owner {
    fn drop(&mut self) {
        for (child, _) in &mut self.users {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
