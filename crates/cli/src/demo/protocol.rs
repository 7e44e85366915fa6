//! The messages between the conductor of the demo and its two sides: JSON lines over a socket pair.

use peerdma::{Endpoint, RemoteSlice};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// A message to a side.
#[derive(Serialize, Deserialize, Debug)]
pub enum ToPeer {
    /// Connect to the other side.
    Connect(Endpoint),
    /// Near: write the source buffer there.
    Write(RemoteSlice),
    /// Far: hash the video memory.
    Hash,
    /// Near: read it back from there into the second buffer.
    Read(RemoteSlice),
    /// Near: compare the two buffers.
    Compare,
    /// Release everything and exit.
    End,
}

/// A message from a side.
#[derive(Serialize, Deserialize, Debug)]
pub enum FromPeer {
    /// GPU memory is allocated, filled where it is the source, and registered.
    Ready(Box<Ready>),
    /// The queue pair is connected.
    Connected,
    /// Bytes loaded, or completed in the transfer under way.
    Progress {
        /// Bytes.
        bytes: u64,
    },
    /// The transfer is complete.
    Transferred {
        /// Bytes.
        bytes: u64,
        /// From the first request to the last completion.
        seconds: f64,
    },
    /// The far GPU's hash of its memory, in hexadecimal.
    Hashed {
        /// BLAKE3.
        hash: String,
    },
    /// The result of the comparison.
    Compared {
        /// BLAKE3 of the file, taken by the CPU as it was loaded.
        file_hash: String,
        /// Offset of the first differing byte.
        difference: Option<u64>,
    },
    /// The side cannot go on.
    Failed {
        /// What happened and why.
        what: String,
        /// What to do.
        remedy: Option<String>,
    },
}

/// A side's facts.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Ready {
    /// Its process.
    pub pid: u32,
    /// Name of its RDMA device.
    pub device: String,
    /// Name of its HCA on the platform.
    pub hca: String,
    /// Which of the platform's it is: the nearest, the farthest.
    pub choice: String,
    /// Name of its GPU on the platform.
    pub gpu: String,
    /// How to connect.
    pub endpoint: Endpoint,
    /// Its registered buffers; the first one is the target of the other side.
    pub buffers: Vec<Buffer>,
    /// The first buffer as the other side names it.
    pub target: RemoteSlice,
}

/// A registered buffer.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Buffer {
    /// What it is for.
    pub name: String,
    /// Its dma-buf descriptor in the side's process, where it is GPU memory.
    pub fd: Option<i32>,
    /// Length in bytes.
    pub len: u64,
    /// Key for local use.
    pub lkey: u32,
    /// Key for the other side.
    pub rkey: u32,
}

/// Writes a message.
pub fn send(connection: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    connection.write_all(&line)
}

/// Messages as they arrive.
pub struct Messages {
    reader: BufReader<UnixStream>,
}

impl Messages {
    /// Reads `connection`.
    pub fn over(connection: UnixStream) -> Messages {
        Messages { reader: BufReader::new(connection) }
    }

    /// The next message; `None` when the other end has closed.
    pub fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cross() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let target = RemoteSlice { addr: u64::MAX, len: 1 << 40, rkey: 0xffff_ffff };
        send(&mut a, &ToPeer::Write(target)).unwrap();
        let endpoint = Endpoint {
            qpn: 1,
            psn: 2,
            mtu: peerdma::Mtu::B4096,
            gid: "fe80::1".parse().unwrap(),
            lid: 0,
        };
        send(&mut a, &ToPeer::Connect(endpoint)).unwrap();
        drop(a);
        let mut messages = Messages::over(b);
        assert!(matches!(messages.next().unwrap(), Some(ToPeer::Write(got)) if got == target));
        assert!(matches!(messages.next().unwrap(), Some(ToPeer::Connect(got)) if got == endpoint));
        assert!(messages.next::<ToPeer>().unwrap().is_none());
    }
}
