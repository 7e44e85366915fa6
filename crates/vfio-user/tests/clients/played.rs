//! What is played in these tests: a function with some registers, and the client that QEMU is to a
//! server.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vfio_user::protocol::{Body, ERROR, HEADER_LEN, Header, REPLY, command};
use vfio_user::{Bar, BarKind, Description, Function, Host, Msix, PciIdentity, Server, serve};

/// The region of configuration space.
pub const CONFIG: u32 = 7;

/// A function with one register file.
#[derive(Default)]
pub struct Registers {
    pub bytes: Mutex<Vec<u8>>,
    pub resets: AtomicU32,
}

impl Function for Registers {
    fn description(&self) -> Description {
        let bar = Bar { size: 4096, kind: BarKind::Memory32, memory: None };
        Description {
            identity: PciIdentity { vendor: 0x1234, device: 0x5678, ..PciIdentity::default() },
            bars: [None, None, Some(bar), None, None, None],
            msix: Some(Msix { vectors: 4, bar: 2, table: 0x800, pending: 0xc00 }),
            ..Description::default()
        }
    }
    fn bar_read(&self, _: u8, offset: u64, data: &mut [u8]) {
        let bytes = self.bytes.lock().unwrap();
        let from = bytes.get(offset as usize..).unwrap_or_default();
        data.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
    fn bar_write(&self, _: u8, offset: u64, data: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap();
        bytes.resize(4096, 0);
        bytes[offset as usize..offset as usize + data.len()].copy_from_slice(data);
    }
    fn reset(&self) {
        self.bytes.lock().unwrap().clear();
        self.resets.fetch_add(1, SeqCst);
    }
}

pub struct Served {
    _folder: tempfile::TempDir,
    pub path: PathBuf,
    pub host: Host,
    pub function: Arc<Registers>,
    _server: Server,
}

pub fn served() -> Served {
    served_beside(Host::new())
}

pub fn served_beside(host: Host) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let function = Arc::new(Registers::default());
    let server = serve(&path, host.clone(), function.clone()).unwrap();
    Served { _folder: folder, path, host, function, _server: server }
}

pub struct Client(pub UnixStream);

impl Client {
    pub fn connect(served: &Served) -> Client {
        let stream = UnixStream::connect(&served.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(stream)
    }

    pub fn greeted(served: &Served) -> Client {
        let client = Client::connect(served);
        let json = br#"{"capabilities":{"max_data_xfer_size":64,"unknown":[]}}"#;
        let greeting = Body::default().u16(0).u16(0).bytes(json).bytes(&[0]);
        let reply = client.ask(command::VERSION, greeting, None).unwrap();
        assert!(reply.starts_with(&[0, 0, 0, 0, b'{']) && reply.ends_with(&[0]));
        client
    }

    pub fn send(&self, command: u16, body: &Body, fd: Option<BorrowedFd>) {
        let size = (HEADER_LEN + body.0.len()) as u32;
        let header = Header { id: 5, command, size, flags: 0, error: 0 }.bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(fd) = &fd {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
        }
        let parts = [IoSlice::new(&header), IoSlice::new(&body.0)];
        sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    /// The next message; none when the server hung up.
    pub fn receive(&self) -> Option<(Header, Vec<u8>)> {
        let mut header = [0; HEADER_LEN];
        (&self.0).read_exact(&mut header).ok()?;
        let header = Header::parse(&header).unwrap();
        let mut body = vec![0; header.size as usize - HEADER_LEN];
        (&self.0).read_exact(&mut body).unwrap();
        Some((header, body))
    }

    /// A reply's body, or its errno.
    pub fn ask(&self, command: u16, body: Body, fd: Option<BorrowedFd>) -> Result<Vec<u8>, u32> {
        self.send(command, &body, fd);
        let (header, body) = self.receive().expect("a reply");
        assert_eq!((header.id, header.command), (5, command));
        assert_eq!(header.flags & REPLY, REPLY);
        if header.flags & ERROR == 0 { Ok(body) } else { Err(header.error) }
    }

    pub fn read(&self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let body = Body::default().u64(offset).u32(region).u32(count);
        Ok(self.ask(command::REGION_READ, body, None)?.split_off(16))
    }

    pub fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), u32> {
        let body = Body::default().u64(offset).u32(region).u32(data.len() as u32).bytes(data);
        self.ask(command::REGION_WRITE, body, None).map(drop)
    }

    pub fn map(&self, address: u64, size: u64, file: Option<&OwnedFd>) -> Result<(), u32> {
        let body = Body::default().u32(32).u32(3).u64(0).u64(address).u64(size);
        self.ask(command::DMA_MAP, body, file.map(AsFd::as_fd)).map(drop)
    }

    pub fn bus_master(&self) {
        self.write(CONFIG, 4, &[6, 0]).unwrap();
        // A config write is carried out before it is answered.
        assert_eq!(self.read(CONFIG, 4, 1), Ok(vec![6]));
    }
}

pub fn memory() -> OwnedFd {
    let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 1 << 16).unwrap();
    fd
}
