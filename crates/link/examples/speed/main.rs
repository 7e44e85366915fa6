//! How fast the link is, next to what the kernel can do at all, over loopback.
//!
//! `speed [bare] [link] [gather] [--mtu N] [--buffer BYTES] [--window BYTES] [--seconds S]
//! [--rounds N] [--json]`; without names all three, and of each the best of three rounds.
//! `speed checked` with the same options prints GB/s of [`checked`], once.
//!
//! - `bare`: a GSO sender and a GRO receiver that touch no byte: the yardstick.
//! - `link`: `Batch` to `Receiver`: payload copied into the staging buffer, ICRC made and checked,
//!   payload copied out.
//! - `gather`: the same receiver, fed by scatter/gather entries (header, payload, ICRC) over the
//!   source memory, without a staging copy.
//!
//! Each runs with path MTU 1024 and 4096, with a large receive buffer and with the stock 212992, in
//! two ways. `GB/s` is of two threads at once: the sender keeps at most the window outstanding,
//! told by a counter in shared memory, so that nothing is lost and the figure is the kernel's and
//! ours alone. The others are of one thread that sends a train and receives it, by turns, and say
//! what the CPU needs for 1 KiB on either side, undisturbed by waiting and by other programs. All
//! count payload; GB are 10^9 bytes.

mod checked;
// The link's own, which it shows to nobody.
#[path = "../../src/crc.rs"]
mod crc;
mod socket;

use link::{Batch, Endpoint, Path, Receiver};
use mm::Source;
use mm::guard::fold::Fold;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, sendmsg_addr};
use socket::set_option;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use wire::icrc::{Addresses, FlowCrc};
use wire::{Bth, Headers, Opcode, Operation, Position, Psn, Service};

/// Length of the memory that is sent from and received to.
const MEMORY_BYTES: usize = 1 << 20;
/// BTH and ICRC around each payload.
const OVERHEAD: usize = 16;
const MAX_TRAIN_BYTES: usize = 65507;
const MAX_SEGMENTS: usize = 64;
/// Empty receive calls before the receiver sleeps, as a busy engine does it.
const SPINS: u32 = 100;
/// Stretches of [`by_turns`].
const TURNS: u32 = 2000;
const IP: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// One measurement's conditions.
#[derive(Clone, Copy)]
struct Case {
    mtu: usize,
    /// What the receive socket asks for; the kernel grants twice that.
    buffer_bytes: usize,
    window_bytes: usize,
    seconds: usize,
}

impl Case {
    fn segment(&self) -> usize {
        self.mtu + OVERHEAD
    }
    fn train_segments(&self) -> usize {
        (MAX_TRAIN_BYTES / self.segment()).min(MAX_SEGMENTS)
    }
}

/// What sender and receiver share: how much arrived, and when to stop.
#[derive(Default)]
struct Shared {
    received: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    /// Waits until `sent` is within the window of what was received. False: stop.
    fn wait(&self, sent: u64, case: &Case) -> bool {
        while sent.saturating_sub(self.received.load(Ordering::Acquire)) > case.window_bytes as u64
        {
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            thread::yield_now();
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// One way to move bytes. Counts are of UDP payload.
struct Pair {
    /// Sends a train.
    send: Box<dyn FnMut() -> io::Result<u64> + Send>,
    /// Receives what waits; 0 when nothing does.
    receive: Box<dyn FnMut() -> io::Result<u64> + Send>,
    /// The receiving socket.
    readable: OwnedFd,
    /// Whether all that was received was good.
    check: Box<dyn FnOnce() -> io::Result<()>>,
}

/// Result of a round: payload rate of two threads, and CPU time of either side by turns.
#[derive(Clone, Copy)]
struct Figures {
    gb_per_second: f64,
    send_ns_per_kib: f64,
    receive_ns_per_kib: f64,
}

impl Figures {
    const WORST: Figures = Figures {
        gb_per_second: 0.0,
        send_ns_per_kib: f64::INFINITY,
        receive_ns_per_kib: f64::INFINITY,
    };

    fn best(self, other: Figures) -> Figures {
        Figures {
            gb_per_second: self.gb_per_second.max(other.gb_per_second),
            send_ns_per_kib: self.send_ns_per_kib.min(other.send_ns_per_kib),
            receive_ns_per_kib: self.receive_ns_per_kib.min(other.receive_ns_per_kib),
        }
    }
}

fn measure(case: &Case, mut pair: Pair) -> io::Result<Figures> {
    let payload = case.mtu as f64 / case.segment() as f64;
    let [send, receive] = by_turns(case, &mut pair)?;
    let Pair { send: mut sender, receive: mut receiver, readable, check } = pair;
    let shared = Shared::default();
    let bytes_per_second = thread::scope(|scope| {
        let shared = &shared;
        let sending = scope.spawn(move || {
            let mut sent = 0;
            while shared.wait(sent, case) {
                sent += sender()?;
            }
            io::Result::Ok(())
        });
        let receiving = scope.spawn(move || {
            let mut idle = 0;
            while !shared.stop.load(Ordering::Relaxed) {
                let bytes = receiver()?;
                shared.received.fetch_add(bytes, Ordering::Release);
                idle = if bytes == 0 { idle + 1 } else { 0 };
                if idle > SPINS {
                    let mut fds = [PollFd::new(&readable, PollFlags::IN)];
                    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }))?;
                }
            }
            io::Result::Ok(())
        });
        thread::sleep(Duration::from_millis(100));
        let (start, before) = (Instant::now(), shared.received.load(Ordering::Acquire));
        thread::sleep(Duration::from_secs(case.seconds as u64));
        let bytes = shared.received.load(Ordering::Acquire) - before;
        let rate = bytes as f64 / start.elapsed().as_secs_f64();
        shared.stop.store(true, Ordering::Relaxed);
        for worker in [sending, receiving] {
            worker.join().map_err(|_| io::Error::other("a worker panicked"))??;
        }
        io::Result::Ok(rate)
    })?;
    check()?;
    Ok(Figures {
        gb_per_second: bytes_per_second * payload / 1e9,
        send_ns_per_kib: send / payload,
        receive_ns_per_kib: receive / payload,
    })
}

/// Nanoseconds per KiB of sending and of receiving: the best of many short stretches, so that what
/// else runs on the machine does not count.
fn by_turns(case: &Case, pair: &mut Pair) -> io::Result<[f64; 2]> {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..TURNS {
        let start = Instant::now();
        let mut bytes = 0;
        while bytes + (1 << 16) < case.window_bytes.min(1 << 18) as u64 {
            bytes += (pair.send)()?;
        }
        let sent = start.elapsed();
        let mut received = 0;
        while received < bytes {
            received += (pair.receive)()?;
        }
        let elapsed = [sent, start.elapsed() - sent];
        for (best, elapsed) in best.iter_mut().zip(elapsed) {
            *best = best.min(elapsed.as_nanos() as f64 / (bytes as f64 / 1024.0));
        }
    }
    Ok(best)
}

/// A sending socket as the link has them: unconnected, DF set, segmenting.
fn gso_socket(case: &Case) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((IP, 0))?;
    set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, case.segment() as i32)?;
    set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, 4 << 20)?;
    Ok(socket)
}

/// A receiving socket as the link has them: it takes whole trains, and has room.
fn gro_socket(case: &Case) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((IP, 0))?;
    set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    let bytes = case.buffer_bytes as i32;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bare(case: Case) -> io::Result<Figures> {
    let socket = gro_socket(&case)?;
    let to = socket.local_addr()?;
    let sender = gso_socket(&case)?;
    let train = vec![0x5a; case.segment() * case.train_segments()];
    let mut buffer = vec![0; 1 << 16];
    let pair = Pair {
        readable: socket.try_clone()?.into(),
        send: Box::new(move || Ok(sender.send_to(&train, to)? as u64)),
        receive: Box::new(move || match socket.recv(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => Ok(result? as u64),
        }),
        check: Box::new(|| Ok(())),
    };
    measure(&case, pair)
}

fn headers(psn: u32) -> Headers {
    Headers::new(Bth {
        opcode: Opcode {
            service: Service::Rc,
            operation: Operation::Write,
            position: Position::Middle,
            imm: false,
            invalidate: false,
        },
        solicited: false,
        migrated: true,
        pad: 0,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest_qp: 2,
        ack_req: false,
        psn: Psn::new(psn),
    })
}

fn source() -> Vec<u8> {
    (0..MEMORY_BYTES).map(|index| (index * 31 + index / 255) as u8).collect()
}

/// The part of the memory that packet `psn` carries.
fn place(psn: u32, mtu: usize) -> std::ops::Range<usize> {
    let start = psn as usize * mtu % MEMORY_BYTES;
    start..start + mtu
}

/// The link's receiving side, used by two of the pairs.
fn link_pair(
    ep: Arc<Endpoint>,
    case: Case,
    send: Box<dyn FnMut() -> io::Result<u64> + Send>,
) -> io::Result<Pair> {
    let readable = ep.receive_fds().next().ok_or(io::ErrorKind::NotFound)?.try_clone_to_owned()?;
    let mut receiver = Receiver::new().unwrap();
    let mut memory = vec![0; MEMORY_BYTES];
    let receiving = ep.clone();
    let receive = move || {
        let mut bytes = 0;
        receiver.receive(&receiving, 4, &mut |datagram| {
            let psn = datagram.headers.bth.psn.get();
            memory[place(psn, case.mtu)].copy_from_slice(datagram.payload);
            bytes += (datagram.payload.len() + OVERHEAD) as u64;
        });
        Ok(bytes)
    };
    let check = move || {
        let lost = ep.receive_overflows();
        let stats = ep.stats().iter();
        let is_bad = |name| matches!(name, "rx_icrc_errors" | "rx_malformed" | "send_other");
        let bad: u64 = stats.filter(|(name, _)| is_bad(*name)).map(|(_, value)| value).sum();
        if lost + bad > 0 {
            return Err(io::Error::other(format!("{lost} trains lost, {bad} packets bad")));
        }
        Ok(())
    };
    Ok(Pair { send, receive: Box::new(receive), readable, check: Box::new(check) })
}

fn receiving_endpoint(case: &Case) -> io::Result<(Arc<Endpoint>, u16)> {
    let socket = UdpSocket::bind((IP, 0))?;
    let port = socket.local_addr()?.port();
    let ep = Endpoint::with_receive_buffer(Some(socket.into()), None, port, case.buffer_bytes)?;
    Ok((Arc::new(ep), port))
}

fn link(case: Case) -> io::Result<Figures> {
    let (ep, _) = receiving_endpoint(&case)?;
    let path = Path {
        src: IP.into(),
        dst: IP.into(),
        scope_id: 0,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        ethernet: None,
    };
    let flow = ep.flow(path, 2)?;
    let memory = source();
    let mut batch = Batch::new().unwrap();
    let mut psn = 0;
    let sending = ep.clone();
    let send = move || {
        for _ in 0..case.train_segments() {
            let from = &memory[place(psn, case.mtu)];
            let mut fill =
                |out: &mut [u8], fold: &mut Fold| Source::from(from).read_folding(out, fold);
            let filled = batch.packet(&sending, &flow, &headers(psn), case.mtu, &mut fill);
            filled.expect("the memory is ours");
            psn += 1;
        }
        batch.flush(&sending);
        Ok((case.segment() * case.train_segments()) as u64)
    };
    measure(&case, link_pair(ep, case, Box::new(send))?)
}

fn gather(case: Case) -> io::Result<Figures> {
    let (ep, port) = receiving_endpoint(&case)?;
    let socket = gso_socket(&case)?;
    let udp_src = socket.local_addr()?.port();
    let memory = source();
    let crc = FlowCrc::new(Addresses::V4(IP, IP), udp_src).at_length(12 + case.mtu);
    let to = SocketAddr::new(IP.into(), port);
    let mut psn = 0u32;
    let mut edges = [([0; 12], [0; 4]); MAX_SEGMENTS];
    let send = move || {
        let edges = &mut edges[..case.train_segments()];
        for (index, (header, icrc)) in edges.iter_mut().enumerate() {
            headers(psn + index as u32).emit(header);
            // The CRC of the headers goes on over the payload where it lies.
            let before = crc.icrc(index as u16, header);
            let mut hasher = crc32fast::Hasher::new_with_initial(before);
            hasher.update(&memory[place(psn + index as u32, case.mtu)]);
            *icrc = hasher.finalize().to_le_bytes();
        }
        let mut pieces = Vec::with_capacity(3 * MAX_SEGMENTS);
        for (index, (header, icrc)) in edges.iter().enumerate() {
            let payload = &memory[place(psn + index as u32, case.mtu)];
            pieces.extend([header, payload, icrc].map(|piece: &[u8]| IoSlice::new(piece)));
        }
        let mut none = Default::default();
        sendmsg_addr(&socket, &to, &pieces, &mut none, SendFlags::empty())?;
        psn += case.train_segments() as u32;
        Ok((case.segment() * case.train_segments()) as u64)
    };
    measure(&case, link_pair(ep, case, Box::new(send))?)
}

type Way = (&'static str, fn(Case) -> io::Result<Figures>);
const WAYS: [Way; 3] = [("bare", bare), ("link", link), ("gather", gather)];

fn main() -> Result<(), String> {
    let (mut names, mut json, mut seconds, mut window) = (Vec::new(), false, 1, None);
    let mut rounds = 3;
    let mut mtus = vec![1024, 4096];
    let mut buffers = vec![link::DEFAULT_RECEIVE_BUFFER_BYTES, 212_992];
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|arg| arg == checked::RECEIVER).is_some() {
        let words: Vec<usize> = args.filter_map(|arg| arg.parse().ok()).collect();
        return checked::receive(&words).map_err(|error| error.to_string());
    }
    let checked = args.next_if(|arg| arg == "checked").is_some();
    while let Some(arg) = args.next() {
        let mut number = || -> Result<usize, String> {
            let value = args.next().ok_or(format!("{arg} needs a value"))?;
            value.parse().map_err(|error| format!("{arg} {value}: {error}"))
        };
        match arg.as_str() {
            "--json" => json = true,
            "--seconds" => seconds = number()?,
            "--rounds" => rounds = number()?,
            "--window" => window = Some(number()?),
            "--mtu" => mtus = vec![number()?],
            "--buffer" => buffers = vec![number()?],
            name if WAYS.iter().any(|(known, _)| *known == name) => names.push(arg),
            _ => return Err(format!("unknown argument {arg}; see the head of the source")),
        }
    }
    if checked {
        let (mtu, buffer_bytes) = (mtus[mtus.len() - 1], buffers[0]);
        let case = Case { mtu, buffer_bytes, window_bytes: 0, seconds };
        let rate = checked::gb_per_second(case).map_err(|error| format!("checked: {error}"))?;
        println!("{rate:.3}");
        return Ok(());
    }
    let mut lines = Vec::new();
    for buffer_bytes in buffers {
        for &mtu in &mtus {
            // The kernel grants twice what was asked for, and about half of that is for payload.
            let window_bytes = window.unwrap_or(buffer_bytes.min(1 << 20) - (1 << 16));
            let case = Case { mtu, buffer_bytes, window_bytes, seconds };
            let wanted = |name: &str| names.is_empty() || names.iter().any(|given| given == name);
            let pairs: Vec<_> = WAYS.into_iter().filter(|(name, _)| wanted(name)).collect();
            let mut best = vec![Figures::WORST; pairs.len()];
            // Taking turns gives every pair its share of a busy machine's quiet moments.
            for _ in 0..rounds {
                for ((name, run), best) in pairs.iter().zip(&mut best) {
                    let figures = run(case).map_err(|error| format!("{name}: {error}"))?;
                    *best = best.best(figures);
                }
            }
            for ((name, _), figures) in pairs.iter().zip(&best) {
                let Figures { gb_per_second, send_ns_per_kib, receive_ns_per_kib } = figures;
                lines.push(format!(
                    "{{\"pair\":\"{name}\",\"mtu\":{mtu},\"receive_buffer\":{buffer_bytes},\
                     \"gb_per_second\":{gb_per_second:.3},\
                     \"send_ns_per_kib\":{send_ns_per_kib:.1},\
                     \"receive_ns_per_kib\":{receive_ns_per_kib:.1}}}"
                ));
                if !json {
                    let ratio = gb_per_second / best[0].gb_per_second;
                    println!(
                        "buffer {buffer_bytes:>8}  mtu {mtu}  {name:6} {gb_per_second:6.2} GB/s \
                         ({ratio:.2})  send {send_ns_per_kib:5.1} ns/KiB  \
                         receive {receive_ns_per_kib:5.1} ns/KiB"
                    );
                }
            }
        }
    }
    if json {
        println!("[{}]", lines.join(","));
    }
    Ok(())
}
