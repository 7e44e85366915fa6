//! The one process-wide state: the engine behind the device, made when the first context is opened and ended with the
//! last one.

use crate::async_events::Sink;
use crate::env::Model;
use crate::ffi::{Errno, Res};
use crate::{device, env, fork, memory, sysfs_face, ucma};
use hca::identity;
use link::Trace;
use registry::{Client, Role};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError, Weak};
use std::time::Duration;

/// The vendor id of devices without a vendor, as Linux's rxe uses it: 0 is not valid, and one that programs know would make
/// them look for its provider library.
const NO_VENDOR: u32 = 0xff_ffff;

/// Mellanox's, as `ibv_query_device` shows it, and the part that is a ConnectX-8.
const CONNECTX_8: (u32, u32) = (0x02c9, 0x1023);

/// How long a program's end waits for a turn of progress, which takes microseconds unless the machine is busy.
const LAST_TURN: Duration = Duration::from_millis(50);

/// A running HCA and what it raises.
pub struct Engine {
    /// The HCA.
    pub device: Arc<hca::Device>,
    /// Where its asynchronous events find their way to the program's objects.
    pub sink: Arc<Sink>,
    /// The registry of this user and network namespace.
    pub registry: Arc<Client>,
    /// The connection manager.
    pub cm: Arc<ucma::Service>,
    trace: Option<Arc<Trace>>,
}

impl Engine {
    /// Writes out what the environment asked to be told: the rest of the trace, the counters.
    fn report(&self) {
        if let Some(trace) = &self.trace
            && let Err(error) = trace.flush()
        {
            crate::log!("the packet trace is incomplete: {error}");
        }
        if let Some(path) = env::counters()
            && let Err(error) = self.append_counters(&path)
        {
            crate::log!("cannot write the counters to {}: {error}", path.display());
        }
    }

    fn append_counters(&self, path: &Path) -> io::Result<()> {
        let reader = self.device.directory().reader()?;
        let mut text = String::new();
        for (name, value) in reader.counters() {
            text.push_str(&format!("{name} {value}\n"));
        }
        text.push_str(&memory::traffic());
        // One write: processes of one run append to the same file.
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        guest_thread::growing_files(|| file.write_all(text.as_bytes()))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.device.close();
        self.report();
    }
}

/// A program may end without closing its device.
extern "C" fn at_exit() {
    if let Some(engine) = running_now() {
        engine.cm.end();
        engine.device.settle(LAST_TURN);
        engine.report();
        // Whoever holds the device still may end it after us; the report must not come twice.
        std::mem::forget(engine);
    }
}

/// Asks to be told of the program's end, once in a process.
fn watch_exit() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded while its engine runs; it touches
        // only state made for any thread. Failure leaves a report out, nothing else.
        unsafe { libc::atexit(at_exit) };
    });
}

/// The engine of this process, if one runs.
static ENGINE: Mutex<Weak<Engine>> = Mutex::new(Weak::new());

/// The engine's place: while the guard lives nobody makes one.
pub fn place() -> MutexGuard<'static, Weak<Engine>> {
    ENGINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running engine, or a new one.
pub fn get() -> Res<Arc<Engine>> {
    let mut place = place();
    if let Some(engine) = place.upgrade() {
        return Ok(engine);
    }
    let engine = Arc::new(start()?);
    *place = Arc::downgrade(&engine);
    Ok(engine)
}

/// The running engine.
pub fn running() -> Option<Arc<Engine>> {
    place().upgrade()
}

/// The running engine, unless it is just being made or ended: for calls that may come from inside of either.
pub fn running_now() -> Option<Arc<Engine>> {
    match ENGINE.try_lock() {
        Ok(place) => place.upgrade(),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().upgrade(),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Tells the interposed calls whom to ask; also after a fork, which forgets it.
pub fn set_callbacks() {
    shim::announce_uverbs(0);
    ucma::announce();
    shim::set_provider(Box::new(sysfs_face::attribute));
    shim::set_invalidate(shim::Invalidate {
        begin: |addr, len| mm::Change::into_raw(mm::begin(range(addr, len))),
        end: |addr, len, change| {
            if let Some(change) = mm::Change::from_raw(change) {
                mm::end(range(addr, len), change);
            }
        },
        protect: |addr, len| {
            mm::PrivateMemory::running().map(|private| private.home(&range(addr, len)));
        },
    });
}

/// The range of an interposed call.
fn range(addr: usize, len: usize) -> std::ops::Range<u64> {
    addr as u64..(addr as u64).saturating_add(len as u64)
}

fn start() -> Res<Engine> {
    mm::guard::install();
    set_callbacks();
    fork::watch();
    watch_exit();
    let registry = Client::connect(Role::Member).map_err(|error| {
        env::say_not_open(&error);
        registry_errno(&error)
    })?;
    let open = |path: PathBuf| {
        Trace::append(&path).map(Arc::new).map_err(|error| {
            env::say_not_open(format_args!("the packet trace {}: {error}", path.display()));
            Errno(error.raw_os_error().unwrap_or(libc::EIO))
        })
    };
    let trace = env::trace().map(open).transpose()?;
    let (vendor_id, vendor_part_id) = match env::model() {
        Model::Generic => (NO_VENDOR, 0),
        Model::ConnectX => CONNECTX_8,
    };
    let hca = memory::hca()?;
    let device = hca::Device::open(hca::DeviceConfig {
        attr: hca::DeviceAttr {
            vendor_id,
            vendor_part_id,
            phys_port_cnt: hca.ports,
            data_direct: hca.data_direct == Some(true),
            vuid: hca.vuid.clone().unwrap_or_default(),
            ats: hca.ats == Some(true),
            ..hca::DeviceAttr::new(identity::NAME, device::guid())
        },
        comm: command_name(),
        registry: registry.clone(),
        mtu_bytes: None,
        trace: trace.clone(),
        receive_buffer_bytes: env::receive_buffer_bytes(),
    })
    .map_err(|error| {
        env::say_not_open(&error);
        open_errno(&error)
    })?;
    memory::publish(&device);
    memory::plug_data_direct(&device)?;
    let sink = Arc::new(Sink::default());
    device.set_event_sink(sink.clone());
    let cm = ucma::Service::start(&device, &registry);
    Ok(Engine { device, sink, registry, cm, trace })
}

fn registry_errno(error: &registry::Error) -> Errno {
    Errno(match error {
        registry::Error::System { errno, .. } => *errno,
        registry::Error::ForeignUser { .. } => libc::EACCES,
        registry::Error::Timeout => libc::ETIMEDOUT,
        registry::Error::PortTaken { .. } => libc::EADDRINUSE,
        registry::Error::Full(_) => libc::ENOSPC,
        _ => libc::EIO,
    })
}

fn open_errno(error: &hca::OpenError) -> Errno {
    let system = |error: &std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    match error {
        hca::OpenError::Registry(error) => registry_errno(error),
        hca::OpenError::Directory(errno) => Errno(errno.raw_os_error()),
        hca::OpenError::Link(error)
        | hca::OpenError::Interfaces(error)
        | hca::OpenError::Thread(error) => system(error),
    }
}

/// Name of the running program, for listings.
fn command_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().to_owned()
}
