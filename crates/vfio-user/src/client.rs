//! What the server asks of its client: to read and write memory for which it has no descriptor.

use crate::channel::{Channel, Message, PATIENCE};
use crate::protocol::{Body, ERROR, Header, MAX_DATA, command};
use engine_thread::lock;
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use umem::AccessError;

/// Bytes before the data in a DMA_READ's reply and in a DMA_WRITE: the address and the count.
const DMA_HEAD: usize = 16;

/// The client of one connection.
#[derive(Debug)]
pub(crate) struct Client {
    channel: Channel,
    machine: Option<u32>,
    /// The thread that takes replies off the socket, which therefore cannot wait for one.
    server: ThreadId,
    /// Most bytes that the client takes in one message.
    max_data: AtomicUsize,
    waiting: Mutex<Waiting>,
    replied: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u16,
    /// The request of each id: nothing yet, or its reply.
    replies: HashMap<u16, Option<Message>>,
    gone: bool,
    /// Nobody may wait now.
    held: bool,
}

impl Client {
    /// The client at the other end; replies to it come from the calling thread.
    pub(crate) fn new(channel: Channel) -> Client {
        let machine = channel.peer();
        Client {
            channel,
            machine,
            server: std::thread::current().id(),
            max_data: AtomicUsize::new(MAX_DATA),
            waiting: Mutex::default(),
            replied: Condvar::new(),
        }
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The process at the other end, which is the machine; none where it is not known.
    pub(crate) fn machine(&self) -> Option<u32> {
        self.machine
    }

    /// Most bytes that it takes in one message.
    pub(crate) fn limit_data(&self, bytes: usize) {
        self.max_data.store(bytes.clamp(1, MAX_DATA), Ordering::Relaxed);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    /// Hands a reply to who waits for it; one that nobody waits for is dropped.
    pub(crate) fn deliver(&self, message: Message) {
        if let Some(place) = self.waiting().replies.get_mut(&message.header.id) {
            *place = Some(message);
            self.replied.notify_all();
        }
    }

    /// No reply will come any more.
    pub(crate) fn close(&self) {
        self.channel.close();
        self.waiting().gone = true;
        self.replied.notify_all();
    }

    /// From now on nobody waits for an answer, or may again. Who waits has failed.
    pub(crate) fn hold(&self, held: bool) {
        self.waiting().held = held;
        self.replied.notify_all();
    }

    /// Answers `request`.
    pub(crate) fn reply(
        &self,
        request: &Header,
        body: [&[u8]; 2],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let flags = crate::protocol::REPLY;
        self.channel.send(Header { flags, error: 0, ..*request }, body, fd)
    }

    /// Answers that `request` failed.
    pub(crate) fn refuse(&self, request: &Header, error: Errno) -> Result<()> {
        let flags = crate::protocol::REPLY | ERROR;
        let error = error.raw_os_error().unsigned_abs();
        self.channel.send(Header { flags, error, ..*request }, [&[], &[]], None)
    }

    /// Reads the client's memory at `addr`.
    pub(crate) fn dma_read(
        &self,
        addr: u64,
        dst: &mut [u8],
    ) -> std::result::Result<(), AccessError> {
        let most = self.max_data.load(Ordering::Relaxed);
        for (index, chunk) in dst.chunks_mut(most).enumerate() {
            let head = dma_head(addr + (index * most) as u64, chunk.len());
            let body = self.ask(command::DMA_READ, &head, &[]).ok_or(AccessError::Fault)?;
            let data = body.get(DMA_HEAD..DMA_HEAD + chunk.len()).ok_or(AccessError::Fault)?;
            chunk.copy_from_slice(data);
        }
        Ok(())
    }

    /// Writes the client's memory at `addr`.
    pub(crate) fn dma_write(&self, addr: u64, src: &[u8]) -> std::result::Result<(), AccessError> {
        let most = self.max_data.load(Ordering::Relaxed);
        for (index, chunk) in src.chunks(most).enumerate() {
            let head = dma_head(addr + (index * most) as u64, chunk.len());
            self.ask(command::DMA_WRITE, &head, chunk).ok_or(AccessError::Fault)?;
        }
        Ok(())
    }

    /// Sends a request and waits for its reply's body; none when it failed, or there is nobody to
    /// answer.
    fn ask(&self, command: u16, head: &[u8], data: &[u8]) -> Option<Vec<u8>> {
        if std::thread::current().id() == self.server {
            return None;
        }
        let id = self.waiting().ticket()?;
        let header = Header { id, command, size: 0, flags: 0, error: 0 };
        let sent = self.channel.send(header, [head, data], None);
        let mut waiting = self.waiting();
        if sent.is_ok() {
            let pending = |waiting: &mut Waiting| {
                !waiting.gone
                    && !waiting.held
                    && waiting.replies.get(&id).is_some_and(Option::is_none)
            };
            let waited = self.replied.wait_timeout_while(waiting, PATIENCE, pending);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let reply = waiting.replies.remove(&id)??;
        (reply.header.flags & ERROR == 0).then_some(reply.body)
    }
}

impl Waiting {
    /// An id that no request under way has.
    fn ticket(&mut self) -> Option<u16> {
        if self.gone || self.held || self.replies.len() > usize::from(u16::MAX) / 2 {
            return None;
        }
        while self.replies.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.replies.insert(id, None);
        Some(id)
    }
}

/// Address and count.
fn dma_head(addr: u64, count: usize) -> Vec<u8> {
    Body::default().u64(addr).u64(count as u64).0
}
