//! One side of the demo: a process with a GPU and an RDMA device, which does what the conductor
//! says.

use super::buffer::Buffer;
use super::protocol::{self, FromPeer, Messages, Ready, ToPeer};
use crate::args::demo::{DemoPeer, HcaChoice, MemoryKind, Side};
use crate::console::failure::{self, Context, Failure, Outcome};
use crate::gpu::vram::Gpu;
use crate::machine::pairs;
use crate::surroundings::settings;
use pcie::{Function, Platform};
use peerdma::{Cq, IdleQp, Library, Op, Qp, RemoteSlice, SendFlags};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of one work request.
const CHUNK: u64 = 1 << 20;
/// Work requests outstanding at once.
const DEPTH: u32 = 32;
/// How often progress is reported.
const TELL_EVERY: Duration = Duration::from_millis(20);

/// Runs one side, with the conductor on standard input.
pub fn peer(arguments: &DemoPeer) -> Outcome {
    let connection = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let mut connection = connection.what("there is no conductor on standard input")?;
    let result = Peer::prepare(arguments, &connection).and_then(|peer| peer.serve(arguments));
    match result {
        Ok(()) => Ok(0),
        Err(failure) => {
            let (what, remedy) = failure.into_parts();
            // If the conductor has gone, the exit status alone says that this peer failed.
            drop(protocol::send(&mut connection, &FromPeer::Failed { what, remedy }));
            Ok(1)
        }
    }
}

struct Peer {
    connection: UnixStream,
    messages: Messages,
    cq: Cq,
    idle: Option<IdleQp>,
    /// The side's buffers: near has the source and a second one for what comes back, far has one.
    buffers: Vec<Buffer>,
    file_hash: Option<String>,
    gpu: Gpu,
}

impl Peer {
    fn prepare(arguments: &DemoPeer, connection: &UnixStream) -> Outcome<Peer> {
        let platform = match std::env::var_os(settings::PLATFORM) {
            Some(file) => Platform::load(file.as_ref()).what("cannot use the platform")?,
            None => Platform::default(),
        };
        let gpu = Gpu::open(arguments.side, &platform, arguments.provider)?;
        let library = Library::system().map_err(failure::verbs)?;
        let hca = choose(&platform, &gpu, arguments.hca)?;
        let context = library.open(Some(&hca.name)).map_err(failure::verbs)?;
        let pd = context.alloc_pd().map_err(failure::verbs)?;
        let cq = context.create_cq(2 * DEPTH, None).map_err(failure::verbs)?;
        let names: &[&str] = match arguments.side {
            Side::Near => &["source", "returned"],
            Side::Far => &["target"],
        };
        let mut buffers = Vec::new();
        for _ in names {
            buffers.push(Buffer::new(arguments.memory, &gpu, &pd, arguments.size)?);
        }
        let file_hash = match arguments.side {
            Side::Near => Some(load(arguments, &buffers[0], connection)?),
            Side::Far => None,
        };
        if arguments.memory == MemoryKind::DevicePrivate {
            buffers.iter().try_for_each(|buffer| buffer.migrate(&gpu))?;
        }
        let idle = pd.qp(&cq, &cq).max_send_wr(DEPTH).build().map_err(failure::verbs)?;
        let described = names.iter().zip(&buffers).map(|(name, buffer)| {
            let (lkey, rkey) = buffer.keys();
            let (name, fd, len) = ((*name).to_owned(), buffer.fd(), buffer.len());
            protocol::Buffer { name, fd, len, lkey, rkey }
        });
        let ready = Ready {
            pid: std::process::id(),
            device: context.name().to_owned(),
            hca: hca.name.clone(),
            choice: arguments.hca.to_string(),
            gpu: gpu.name().to_owned(),
            endpoint: idle.endpoint(),
            buffers: described.collect(),
            target: buffers[0].remote(),
        };
        let copy = || connection.try_clone().what("cannot copy a socket");
        let mut peer = Peer {
            connection: copy()?,
            messages: Messages::over(copy()?),
            cq,
            idle: Some(idle),
            buffers,
            file_hash,
            gpu,
        };
        peer.say(&FromPeer::Ready(Box::new(ready)))?;
        Ok(peer)
    }

    fn serve(mut self, arguments: &DemoPeer) -> Outcome<()> {
        let mut qp = None::<Qp>;
        loop {
            let message = self.messages.next().what("cannot hear the conductor")?;
            match (message, &qp) {
                (Some(ToPeer::Connect(peer)), None) => {
                    let idle = self.idle.take().ok_or_else(|| Failure::new("connected twice"))?;
                    qp = Some(idle.connect(&peer).map_err(failure::verbs)?);
                    self.say(&FromPeer::Connected)?;
                }
                (Some(ToPeer::Write(target)), Some(qp)) => {
                    self.transfer(qp, 0, target, Direction::Write)?
                }
                (Some(ToPeer::Read(source)), Some(qp)) => {
                    self.transfer(qp, 1, source, Direction::Read)?
                }
                (Some(ToPeer::Hash), _) => {
                    if arguments.corrupt {
                        flip_one_byte(&self.buffers[0])?;
                    }
                    let hash = self.buffers[0].hash()?;
                    if arguments.memory == MemoryKind::DevicePrivate {
                        // the CPU took the hash, and the pages home for it
                        self.buffers[0].migrate(&self.gpu)?;
                    }
                    self.say(&FromPeer::Hashed { hash })?;
                }
                (Some(ToPeer::Compare), _) => {
                    let [source, returned] = &self.buffers[..] else {
                        return Err(Failure::new("only the near side compares"));
                    };
                    let difference = source.first_difference(returned)?;
                    let file_hash = self.file_hash.clone().unwrap_or_default();
                    self.say(&FromPeer::Compared { file_hash, difference })?;
                }
                // The queue pair goes before the regions, and these before the memory.
                (Some(ToPeer::End) | None, _) => return Ok(()),
                (Some(other), _) => {
                    return Err(Failure::new(format_args!("told {other:?} at the wrong time")));
                }
            }
        }
    }

    fn say(&mut self, message: &FromPeer) -> Outcome<()> {
        protocol::send(&mut self.connection, message).what("cannot reach the conductor")
    }

    /// Moves a whole buffer in chunks, a window of them at a time.
    fn transfer(
        &mut self,
        qp: &Qp,
        buffer: usize,
        remote: RemoteSlice,
        direction: Direction,
    ) -> Outcome<()> {
        let size = self.buffers[buffer].len();
        let chunks = size.div_ceil(CHUNK);
        let (mut posted, mut done) = (0, 0);
        let (start, mut told) = (Instant::now(), Instant::now());
        let mut completions = Vec::new();
        while done < chunks {
            while posted < chunks && posted - done < u64::from(DEPTH) {
                let range = posted * CHUNK..size.min((posted + 1) * CHUNK);
                let local = [self.buffers[buffer].slice(range.clone()).map_err(failure::verbs)?];
                let remote = remote.slice(range).map_err(failure::verbs)?;
                let op = match direction {
                    Direction::Write => Op::Write { local: &local, remote, imm: None },
                    Direction::Read => Op::Read { local: &local, remote },
                };
                qp.post(posted, &op, SendFlags::SIGNALED).map_err(failure::verbs)?;
                posted += 1;
            }
            completions.clear();
            if self.cq.poll(&mut completions).map_err(failure::verbs)? == 0 {
                std::thread::yield_now();
            }
            for completion in &completions {
                completion.result.map_err(|error| {
                    Failure::new(format_args!("{direction:?} of chunk {} failed", completion.id))
                        .because(error.status.meaning())
                        .because(format_args!(
                            "{:?}, vendor code {:#x}",
                            error.status, error.vendor
                        ))
                        .remedy(error.status.remedy())
                })?;
                done += 1;
            }
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                self.say(&FromPeer::Progress { bytes: size.min(done * CHUNK) })?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        self.say(&FromPeer::Transferred { bytes: size, seconds })
    }
}

/// The HCA of the platform that is nearest to a GPU, or farthest from it.
fn choose<'a>(platform: &'a Platform, gpu: &Gpu, choice: HcaChoice) -> Outcome<&'a Function> {
    let gpu = platform.named(gpu.name()).ok_or_else(|| Failure::new("the GPU is gone"))?;
    let mut pairs = pairs::by_nearness(platform.machine(), gpu).into_iter();
    let chosen = match choice {
        HcaChoice::Nearest => pairs.next(),
        HcaChoice::Farthest => pairs.last(),
    };
    let none = || Failure::new("the platform has no HCA").remedy(crate::surroundings::tree::FORM);
    chosen.map(|pair| pair.nic).ok_or_else(none)
}

/// Which way a transfer goes, seen from the side that asks for it.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Write,
    Read,
}

/// Copies the file to the buffer, from its start again where it is shorter, and hashes what was
/// copied on the way.
fn load(arguments: &DemoPeer, buffer: &Buffer, connection: &UnixStream) -> Outcome<String> {
    let mut connection = connection.try_clone().what("cannot copy a socket")?;
    let mut told = Instant::now();
    let what = || format!("cannot read {}", arguments.file.display());
    let mut file = File::open(&arguments.file).what(what())?;
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK as usize];
    let mut at = 0;
    while at < arguments.size {
        let want = chunk.len().min(usize::try_from(arguments.size - at).unwrap_or(usize::MAX));
        let got = file.read(&mut chunk[..want]).what(what())?;
        if got == 0 {
            if at == 0 {
                return Err(Failure::new(what()).because("it has become empty"));
            }
            file.seek(SeekFrom::Start(0)).what(what())?;
            continue;
        }
        hasher.update(&chunk[..got]);
        buffer.write(at, &chunk[..got])?;
        at += got as u64;
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            protocol::send(&mut connection, &FromPeer::Progress { bytes: at })
                .what("cannot reach the conductor")?;
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn flip_one_byte(buffer: &Buffer) -> Outcome<()> {
    let at = buffer.len() / 2;
    let mut byte = [0];
    buffer.read(at, &mut byte)?;
    buffer.write(at, &[byte[0] ^ 1])
}
