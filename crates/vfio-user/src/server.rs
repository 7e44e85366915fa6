//! A function on a socket: clients one after the other.

use crate::channel::Channel;
use crate::client::Client;
use crate::function::{Description, Function};
use crate::host::Host;
use crate::posted::Posted;
use crate::session::Session;
use engine_thread::lock;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, shutdown, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A function that is served. Ends, and removes its socket, when dropped.
pub struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    listener: OwnedFd,
    now: Mutex<Now>,
}

/// Who is served, and whether anybody will be.
#[derive(Default)]
struct Now {
    client: Option<Arc<Client>>,
    ended: bool,
}

/// Serves `function` on a new UNIX socket at `path`, to one client after the other, from a thread
/// of its own. The function was made with `host`, which belongs to it alone. A socket there that
/// nobody listens on any more is replaced.
///
/// # Errors
/// `InvalidInput` with the reason for a description that no PCI function can have; `AddrInUse` when
/// somebody listens at `path`, else what creating the socket or the thread says.
pub fn serve(path: &Path, host: Host, function: Arc<dyn Function>) -> io::Result<Server> {
    let description = function.description();
    let unfit = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    description.check().map_err(unfit)?;
    let shared = Arc::new(Shared { listener: listen_at(path)?, now: Mutex::default() });
    let name = format!("vfio {}", path.file_name().unwrap_or_default().display());
    let its = shared.clone();
    let work = move || its.serve(&host, &*function, &description);
    let thread = std::thread::Builder::new().name(name).spawn(work)?;
    Ok(Server { shared, path: path.to_owned(), thread: Some(thread) })
}

fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let new = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let listener = new()?;
    if let Err(error) = bind(&listener, &address) {
        let refused = connect(new()?, &address) == Err(Errno::CONNREFUSED);
        if error != Errno::ADDRINUSE || !refused {
            return Err(error.into());
        }
        std::fs::remove_file(path)?;
        bind(&listener, &address)?;
    }
    listen(&listener, 1)?;
    Ok(listener)
}

impl Shared {
    fn serve(&self, host: &Host, function: &dyn Function, description: &Description) {
        loop {
            let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                // A signal of the program's, or a client that has gone already.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => return,
            };
            let Ok(channel) = Channel::new(socket) else { continue };
            let client = Arc::new(Client::new(channel));
            if !self.admit(&client) {
                return;
            }
            converse(host, function, description, &client);
            host.interrupts.clear(0);
            host.map.disconnect();
            host.windows.set(Vec::new());
            function.reset();
            lock(&self.now).client = None;
        }
    }

    /// Whether the server still serves; if so it can reach the client to end it.
    fn admit(&self, client: &Arc<Client>) -> bool {
        let mut now = lock(&self.now);
        now.client = Some(client.clone());
        !now.ended
    }

    fn end(&self) {
        let mut now = lock(&self.now);
        now.ended = true;
        if let Some(client) = &now.client {
            client.close();
        }
        // Wakes the thread that accepts.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

/// Serves one client until it goes. Whatever was wrong with it, it is done with: there is nobody to
/// tell.
fn converse(host: &Host, function: &dyn Function, description: &Description, client: &Arc<Client>) {
    let posted = Posted::default();
    std::thread::scope(|scope| {
        let work = || posted.work(function);
        let writes = std::thread::Builder::new().name("vfio writes".to_owned());
        if writes.spawn_scoped(scope, work).is_ok() {
            let _ = Session::new(host, function, description, client.clone(), &posted).run();
        }
        // From here on nobody waits for it, so the other thread ends.
        client.close();
        posted.end();
    });
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.end();
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
