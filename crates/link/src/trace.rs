//! A packet trace as a pcap file, for tshark and its kind.
//!
//! A UDP socket sees no IP and UDP headers, so they are made up from what is known: addresses,
//! ports, traffic class, hop limit, right lengths and checksums, and the identification that the
//! packet was sent with or, on receipt, that its ICRC was made with. The flow label is not kept.
//! Packets are LINKTYPE_RAW with nanosecond time stamps.
//!
//! Records are written whole and in append mode, so several processes may share one file.

use descriptors::Kept;
use engine_thread::lock;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};
use wire::grh::Grh;
use wire::ip::Addresses;
use wire::{ROCE_PORT, udp};

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_RAW: u32 = 101;
const SNAPLEN_BYTES: u32 = 0x4_0000;
/// Bytes that may wait before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// A packet to record: `datagram` is the UDP payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Traced<'a> {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) udp_src: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) identification: u16,
    pub(crate) datagram: &'a [u8],
}

/// A trace file being written. Records are buffered; they reach the file when there are many, on
/// [`Trace::flush`] and on drop.
pub struct Trace {
    state: Mutex<TraceFile>,
}

struct TraceFile {
    out: Box<dyn Write + Send>,
    waiting: Vec<u8>,
    /// The first write that failed; nothing is recorded after it.
    failed: Option<io::Error>,
}

impl Trace {
    /// Begins a new file, in place of any that was there.
    ///
    /// # Errors
    /// Those of making and writing a file.
    pub fn create(path: &Path) -> io::Result<Trace> {
        File::create(path)?;
        Trace::append(path)
    }

    /// Goes on with the file at `path`, which other processes may be writing too, or begins it.
    ///
    /// # Errors
    /// Those of opening, locking and writing a file.
    pub fn append(path: &Path) -> io::Result<Trace> {
        let mut file = File::options().append(true).create(true).open(path)?;
        // Two that begin the same file must not both write its header.
        file.lock()?;
        let begun = file.metadata()?.len() > 0;
        let written =
            if begun { Ok(()) } else { engine_thread::growing_files(|| file.write_all(&header())) };
        file.unlock()?;
        written?;
        Ok(Trace::with(Box::new(Kept::new(file.into()))))
    }

    /// Writes to `out`, beginning with the file header.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn to_writer(mut out: Box<dyn Write + Send>) -> io::Result<Trace> {
        out.write_all(&header())?;
        Ok(Trace::with(out))
    }

    fn with(out: Box<dyn Write + Send>) -> Trace {
        Trace { state: Mutex::new(TraceFile { out, waiting: Vec::new(), failed: None }) }
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// The first error of any write since the trace began; nothing is recorded after one.
    pub fn flush(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.write();
        match &state.failed {
            None => Ok(()),
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }

    pub(crate) fn record(&self, packet: &Traced<'_>) {
        let mut state = self.lock();
        if state.failed.is_some() {
            return;
        }
        if state.waiting.try_reserve(BUFFER_BYTES).is_err() {
            state.failed = Some(io::Error::from_raw_os_error(libc::ENOMEM));
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        emit(&mut state.waiting, packet, since.as_secs() as u32, since.subsec_nanos());
        if state.waiting.len() > BUFFER_BYTES - usize::from(u16::MAX) {
            state.write();
        }
    }

    fn lock(&self) -> MutexGuard<'_, TraceFile> {
        lock(&self.state)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.lock().write();
    }
}

impl TraceFile {
    fn write(&mut self) {
        if self.failed.is_none() {
            let result = engine_thread::growing_files(|| {
                self.out.write_all(&self.waiting).and_then(|()| self.out.flush())
            });
            self.failed = result.err();
        }
        self.waiting.clear();
    }
}

fn header() -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&MAGIC_NANOSECONDS.to_ne_bytes());
    header[4..6].copy_from_slice(&2u16.to_ne_bytes());
    header[6..8].copy_from_slice(&4u16.to_ne_bytes());
    header[16..20].copy_from_slice(&SNAPLEN_BYTES.to_ne_bytes());
    header[20..].copy_from_slice(&LINKTYPE_RAW.to_ne_bytes());
    header
}

fn emit(out: &mut Vec<u8>, packet: &Traced<'_>, seconds: u32, nanoseconds: u32) {
    let udp_len = (udp::HEADER_LEN + packet.datagram.len()) as u16;
    let addresses = match (packet.src, packet.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4(src, dst),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Addresses::V6(src, dst),
        // Flows and receipts have one family.
        _ => return,
    };
    let ip = Grh {
        addresses,
        traffic_class: packet.traffic_class,
        flow_label: 0,
        hop_limit: packet.hop_limit,
        udp_len,
        identification: packet.identification,
    };
    let ip = ip.ip();
    let ports = udp::Repr { src: packet.udp_src, dst: ROCE_PORT, len: udp_len };
    let pseudo_header = ip.pseudo_header(udp_len.into());

    let len = (ip.header_len() + usize::from(udp_len)) as u32;
    for field in [seconds, nanoseconds, len, len] {
        out.extend(field.to_ne_bytes());
    }
    let at = out.len();
    out.resize(at + ip.header_len(), 0);
    ip.emit(&mut out[at..]);
    out.extend(ports.emit_with_checksum(pseudo_header, packet.datagram));
    out.extend(packet.datagram);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::internet::{fold, sum};

    #[test]
    fn headers_are_right_to_the_byte() {
        let mut out = Vec::new();
        let packet = Traced {
            src: "192.0.2.1".parse().unwrap(),
            dst: "192.0.2.2".parse().unwrap(),
            udp_src: 0xc001,
            traffic_class: 0x68,
            hop_limit: 64,
            identification: 3,
            datagram: &[1, 2, 3],
        };
        emit(&mut out, &packet, 5, 6);
        assert_eq!(&out[..16], [5u32, 6, 31, 31].map(u32::to_ne_bytes).as_flattened());
        let ip = &out[16..];
        assert_eq!(&ip[..10], [0x45, 0x68, 0, 31, 0, 3, 0x40, 0, 64, 17]);
        assert_eq!(fold(sum(&ip[..20])), 0xffff, "IP checksum");
        assert_eq!(fold(sum(&ip[12..]) + 17 + 11), 0xffff, "UDP checksum");
        assert_eq!(&ip[28..], [1, 2, 3]);

        out.clear();
        let src = "2001:db8::1".parse().unwrap();
        let dst = "2001:db8::2".parse().unwrap();
        emit(&mut out, &Traced { src, dst, ..packet }, 0, 0);
        let ip = &out[16..];
        assert_eq!(&ip[..8], [0x66, 0x80, 0, 0, 0, 11, 17, 64]);
        assert_eq!(fold(sum(&ip[8..]) + 17 + 11), 0xffff, "UDP checksum");
    }

    #[test]
    fn traces_that_share_a_file_write_one_header() {
        let path = std::env::temp_dir().join(format!("link-trace-{}.pcap", std::process::id()));
        let first = Trace::create(&path).unwrap();
        let second = Trace::append(&path).unwrap();
        let packet = Traced {
            src: "192.0.2.1".parse().unwrap(),
            dst: "192.0.2.2".parse().unwrap(),
            udp_src: 1,
            traffic_class: 0,
            hop_limit: 1,
            identification: 0,
            datagram: &[0; 100],
        };
        first.record(&packet);
        second.record(&packet);
        second.flush().unwrap();
        drop(first);
        let len = std::fs::metadata(&path).unwrap().len();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(len, 24 + 2 * (16 + 128));
    }

    #[test]
    fn failed_writes_are_told() {
        struct Full(bool);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if std::mem::replace(&mut self.0, true) {
                    Err(io::ErrorKind::StorageFull.into())
                } else {
                    Ok(bytes.len())
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let trace = Trace::to_writer(Box::new(Full(false))).unwrap();
        let ip = "192.0.2.1".parse().unwrap();
        trace.record(&Traced {
            src: ip,
            dst: ip,
            udp_src: 1,
            traffic_class: 0,
            hop_limit: 1,
            identification: 0,
            datagram: &[],
        });
        assert_eq!(trace.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(trace.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
