//! What a link could reach that does all the work a link must, and nothing else: two processes, of
//! which one copies payload into trains and makes each packet's ICRC on the way, and the other
//! checks it and copies the payload to where it belongs.
//!
//! There are no connections, no acknowledges and no window: what the receiver's buffer does not
//! take is lost, and what arrives counts.

use super::crc;
use super::{Case, IP, MEMORY_BYTES, SPINS, gro_socket, gso_socket, headers, place, source};
use mm::Source;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use wire::icrc::{Addresses, FlowCrc, LengthCrc};

/// The argument that makes this program the receiving one.
pub const RECEIVER: &str = "checked-receiver";
const HEADER_LEN: usize = 12;
const ICRC_LEN: usize = 4;
const ALIGNMENT: usize = 64;
/// The byte of a BTH that counts as ones, whatever a switch makes of it.
const VARIANT: usize = 4;
/// Before this much has come nothing is measured.
const WARM_UP: Duration = Duration::from_millis(100);

/// The CRC of what stands before the payload of each packet from this port.
fn crc_from(udp_src: u16, case: &Case) -> LengthCrc {
    FlowCrc::new(Addresses::V4(IP, IP), udp_src).at_length(HEADER_LEN + case.mtu)
}

/// Sends to a process of its own, and gives the payload that this one got, in GB/s.
pub fn gb_per_second(case: Case) -> io::Result<f64> {
    let sender = gso_socket(&case)?;
    let port = sender.local_addr()?.port();
    let words = [case.mtu, case.buffer_bytes, case.seconds, usize::from(port)];
    let mut receiver = Command::new(std::env::current_exe()?)
        .arg(RECEIVER)
        .args(words.map(|word| word.to_string()))
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(receiver.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
    let to = SocketAddr::new(IP.into(), number(&mut said)?);
    // The copy makes the ICRC on its way from where a register may be loaded, as from whole pages.
    let mut room = vec![0; MEMORY_BYTES + ALIGNMENT];
    let start = room.as_ptr().align_offset(ALIGNMENT);
    let memory = &mut room[start..start + MEMORY_BYTES];
    memory.copy_from_slice(&source());
    let crc = crc_from(port, &case);
    let mut train = vec![0; case.segment() * case.train_segments()];
    let mut psn = 0;
    while receiver.try_wait()?.is_none() {
        // The system is asked seldom whether the other has ended.
        for _ in 0..64 {
            for (index, packet) in train.chunks_mut(case.segment()).enumerate() {
                make(packet, index as u16, psn, memory, &crc, &case)?;
                psn += 1;
            }
            sender.send_to(&train, to)?;
        }
    }
    number(&mut said)
}

/// Makes one packet of a train.
fn make(
    packet: &mut [u8],
    index: u16,
    psn: u32,
    memory: &[u8],
    crc: &LengthCrc,
    case: &Case,
) -> io::Result<()> {
    let (transport, icrc) = packet.split_at_mut(packet.len() - ICRC_LEN);
    headers(psn).emit(&mut transport[..HEADER_LEN]);
    let mut fold = crc::begin(crc, index, transport, HEADER_LEN);
    let from = Source::from(&memory[place(psn, case.mtu)]);
    let copied = from.read_folding(&mut transport[HEADER_LEN..], &mut fold);
    copied.map_err(|_| io::Error::other("the memory is ours"))?;
    let value = crc::end(&fold, case.mtu).unwrap_or_else(|| {
        let variant = std::mem::replace(&mut transport[VARIANT], 0xff);
        let value = crc::icrc(crc, index, transport);
        transport[VARIANT] = variant;
        value
    });
    icrc.copy_from_slice(&value.to_le_bytes());
    Ok(())
}

fn number<T: std::str::FromStr>(from: &mut impl BufRead) -> io::Result<T> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    line.trim().parse().map_err(|_| io::Error::other(format!("the receiver said {line:?}")))
}

/// The other process: says its port, receives for as long as it was told to, and says how fast.
pub fn receive(words: &[usize]) -> io::Result<()> {
    let &[mtu, buffer_bytes, seconds, sender] = words else {
        return Err(io::Error::other("a receiver is started by its sender"));
    };
    let case = Case { mtu, buffer_bytes, window_bytes: 0, seconds };
    let socket = gro_socket(&case)?;
    println!("{}", socket.local_addr()?.port());
    let crc = crc_from(sender as u16, &case);
    let mut memory = vec![0; MEMORY_BYTES];
    let mut buffer = vec![0; 1 << 16];
    let (mut idle, mut payload, mut begun) = (0, 0, None);
    let started = Instant::now();
    loop {
        let got = match socket.recv(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            got => got?,
        };
        for (index, packet) in buffer[..got].chunks_mut(case.segment()).enumerate() {
            payload += take(packet, index as u16, &mut memory, &crc, &case)?;
        }
        idle = if got == 0 { idle + 1 } else { 0 };
        if idle > SPINS {
            wait(&socket)?;
        }
        match begun {
            None if started.elapsed() > WARM_UP => (begun, payload) = (Some(Instant::now()), 0),
            Some(begun) if begun.elapsed() >= Duration::from_secs(seconds as u64) => {
                println!("{}", payload as f64 / begun.elapsed().as_secs_f64() / 1e9);
                return Ok(());
            }
            _ => {}
        }
    }
}

/// Checks a packet and puts its payload into its place; its bytes.
fn take(
    packet: &mut [u8],
    index: u16,
    memory: &mut [u8],
    crc: &LengthCrc,
    case: &Case,
) -> io::Result<usize> {
    if packet.len() != HEADER_LEN + case.mtu + ICRC_LEN {
        return Err(io::Error::other(format!("a packet of {} bytes", packet.len())));
    }
    let (transport, icrc) = packet.split_at_mut(HEADER_LEN + case.mtu);
    transport[VARIANT] = 0xff;
    if crc::icrc(crc, index, transport).to_le_bytes() != *icrc {
        return Err(io::Error::other("a packet with a wrong ICRC"));
    }
    let psn = u32::from_be_bytes([0, transport[9], transport[10], transport[11]]);
    memory[place(psn, case.mtu)].copy_from_slice(&transport[HEADER_LEN..]);
    Ok(case.mtu)
}

fn wait(socket: &UdpSocket) -> io::Result<()> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }))?;
    Ok(())
}
