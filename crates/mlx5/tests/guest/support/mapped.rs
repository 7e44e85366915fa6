//! The machine's memory as the server of the vfio-user protocol has it: a window of a file that a
//! client hands in. The server maps the file whole, so poison before and behind the window shows
//! every byte that is written outside of it.

use super::RAM_LEN;
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use umem::DmaSpace;
use vfio_user::protocol::{Body, ERROR, HEADER_LEN, Header, command};
use vfio_user::{Description, Function, Host, PciIdentity, Server, serve};

/// Bytes of poison at each end.
const GUARD_LEN: usize = 1 << 20;
const POISON: u8 = 0xa5;
const CONFIG: u32 = 7;

/// Its registers are somewhere else.
struct Nothing;

impl Function for Nothing {
    fn description(&self) -> Description {
        Description { identity: PciIdentity::default(), ..Description::default() }
    }
    fn bar_read(&self, _: u8, _: u64, _: &mut [u8]) {}
    fn bar_write(&self, _: u8, _: u64, _: &[u8]) {}
    fn reset(&self) {}
}

/// Memory, and what keeps it mapped.
pub struct Mapped {
    file: OwnedFd,
    host: Host,
    _client: UnixStream,
    _server: Server,
    _folder: tempfile::TempDir,
}

impl Mapped {
    pub fn new() -> Mapped {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, &vec![POISON; GUARD_LEN], 0).unwrap();
        rustix::io::pwrite(&file, &vec![0; RAM_LEN], GUARD_LEN as u64).unwrap();
        rustix::io::pwrite(&file, &vec![POISON; GUARD_LEN], (GUARD_LEN + RAM_LEN) as u64).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let host = Host::new();
        let server = serve(&path, host.clone(), Arc::new(Nothing)).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let greeting = Body::default().u16(0).u16(0).bytes(b"{}").bytes(&[0]);
        ask(&client, command::VERSION, &greeting, None);
        let window = Body::default().u32(32).u32(3).u64(GUARD_LEN as u64);
        let window = window.u64(0).u64(RAM_LEN as u64);
        ask(&client, command::DMA_MAP, &window, Some(file.as_fd()));
        let bus_master = Body::default().u64(4).u32(CONFIG).u32(2).bytes(&[6, 0]);
        ask(&client, command::REGION_WRITE, &bus_master, None);
        Mapped { file, host, _client: client, _server: server, _folder: folder }
    }

    pub fn memory(&self) -> Arc<dyn DmaSpace> {
        self.host.memory()
    }

    /// Whether nobody wrote outside of the window.
    pub fn is_unharmed(&self) -> bool {
        [0, GUARD_LEN + RAM_LEN].iter().all(|at| {
            let mut guard = vec![0; GUARD_LEN];
            rustix::io::pread(&self.file, &mut guard, *at as u64).unwrap();
            guard.iter().all(|byte| *byte == POISON)
        })
    }
}

fn ask(mut stream: &UnixStream, command: u16, body: &Body, fd: Option<BorrowedFd>) {
    let size = (HEADER_LEN + body.0.len()) as u32;
    let header = Header { id: 1, command, size, flags: 0, error: 0 }.bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = &fd {
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
    }
    let parts = [IoSlice::new(&header), IoSlice::new(&body.0)];
    sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).unwrap();
    let header = Header::parse(&header).unwrap();
    assert_eq!(header.flags & ERROR, 0, "{header:?}");
    stream.read_exact(&mut vec![0; header.size as usize - HEADER_LEN]).unwrap();
}
