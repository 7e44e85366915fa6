//! The process-wide state: the engine behind each device, made when its first context is opened and
//! ended with its last one.

use crate::base::env::{self, Link, Model};
use crate::base::ffi::{Errno, Res};
use crate::connection::service::Service;
use crate::engine::event_sink::Sink;
use crate::engine::given::Given;
use crate::platform::membership::{self, registry_errno};
use crate::platform::{device, place};
use engine_thread::lock;
use link::Trace;
use pcie::Function;
use registry::Client;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, TryLockError, Weak};
use std::time::{Duration, Instant};

/// The vendor id of devices without a vendor, as Linux's rxe uses it: 0 is not valid, and one that
/// programs know would make them look for its provider library.
const NO_VENDOR: u32 = 0xff_ffff;

/// Mellanox's, as `ibv_query_device` shows it, and the part that is a ConnectX-8.
const CONNECTX_8: (u32, u32) = (0x02c9, 0x1023);

/// How long a program's end waits for a turn of progress, which takes microseconds unless the
/// machine is busy.
const LAST_TURN: Duration = Duration::from_millis(50);

/// How long it waits for the registry in all, however much it has to give back.
const LAST_CALLS: Duration = Duration::from_millis(250);

/// A running HCA and what it raises.
pub struct Engine {
    /// Its function on the platform.
    pub function: &'static Function,
    pub device: Arc<hca::Device>,
    /// Where its asynchronous events find their way to the program's objects.
    pub sink: Arc<Sink>,
    /// The registry of this user and network namespace.
    pub registry: Arc<Client>,
    /// The connection manager, which all engines share.
    pub cm: Arc<Service>,
    /// Its device memory that programs have.
    pub device_memory: Arc<Given>,
    trace: Option<Arc<Trace>>,
}

impl Engine {
    /// Writes out what the environment asked for: the rest of the trace, the counters.
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
        text.push_str(&place::traffic(self.function));
        // One write: processes of one run append to the same file.
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        engine_thread::growing_files(|| file.write_all(text.as_bytes()))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.device.close();
        self.report();
    }
}

/// A program may end without closing its devices.
extern "C" fn at_exit() {
    let deadline = Instant::now() + LAST_CALLS;
    for engine in now(|running| Some(running.engines())).unwrap_or_default() {
        engine.cm.end(deadline);
        engine.device.settle(LAST_TURN);
        engine.report();
        // Whoever holds the device still may end it after us; the report must not come twice.
        std::mem::forget(engine);
    }
}

/// The same for a program that calls `_exit(2)`, perhaps in a signal handler: only what was
/// received is answered. Allocates nothing.
pub(crate) fn at_quick_exit() {
    now(|running| {
        for engine in running.engines.iter().filter_map(Weak::upgrade) {
            engine.device.settle(LAST_TURN);
            std::mem::forget(engine);
        }
        None::<()>
    });
}

/// Registers a handler for the program's end, once in a process.
pub(crate) fn watch_exit() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded while its
        // engine runs; it touches only state made for any thread. Failure leaves a report out,
        // nothing else.
        unsafe { libc::atexit(at_exit) };
    });
}

/// What runs in this process.
#[derive(Default)]
pub struct Running {
    /// By number of the device.
    engines: Vec<Weak<Engine>>,
    /// The connection manager that they share.
    cm: Weak<Service>,
}

impl Running {
    const NOTHING: Running = Running { engines: Vec::new(), cm: Weak::new() };

    pub fn engines(&self) -> Vec<Arc<Engine>> {
        self.engines.iter().filter_map(Weak::upgrade).collect()
    }

    fn engine(&self, number: usize) -> Option<Arc<Engine>> {
        self.engines.get(number)?.upgrade()
    }
}

static RUNNING: Mutex<Running> = Mutex::new(Running::NOTHING);

/// What runs. Nobody waits for anything while the guard lives.
pub fn running() -> MutexGuard<'static, Running> {
    lock(&RUNNING)
}

/// The running engine of the device of a number, or a new one. ENODEV where there is no such
/// device.
pub fn get(number: usize) -> Res<Arc<Engine>> {
    let alone = membership::alone();
    if let Some(engine) = running().engine(number) {
        return Ok(engine);
    }
    let function = place::hcas()?.get(number).ok_or(Errno(libc::ENODEV))?;
    let registry = membership::connected(&alone)?;
    let engine = Arc::new(open(number, function, registry)?);
    let mut running = running();
    if running.engines.len() <= number {
        running.engines.resize_with(number + 1, Weak::new);
    }
    running.engines[number] = Arc::downgrade(&engine);
    running.cm = Arc::downgrade(&engine.cm);
    Ok(engine)
}

/// The running engine of a device, unless one is just being made or ended: for calls that may come
/// from inside of either.
pub fn running_now(number: usize) -> Option<Arc<Engine>> {
    now(|running| running.engine(number))
}

fn now<T>(ask: impl FnOnce(&Running) -> Option<T>) -> Option<T> {
    match RUNNING.try_lock() {
        Ok(running) => ask(&running),
        Err(TryLockError::Poisoned(poisoned)) => ask(&poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn open(number: usize, function: &'static Function, registry: Arc<Client>) -> Res<Engine> {
    let open = |path: PathBuf| {
        Trace::append(&path).map(Arc::new).map_err(|error| {
            env::say_not_open(format_args!("the packet trace {}: {error}", path.display()));
            Errno(error.raw_os_error().unwrap_or(libc::EIO))
        })
    };
    let trace = env::trace().map(open).transpose()?;
    let link = env::link()?;
    match link {
        Link::Local => mm::permit_others(),
        Link::Auto => hca::name_neighbours_while(|| !shim::names_tracer()),
        Link::Roce => {}
    }
    let (vendor_id, vendor_part_id) = match env::model() {
        Model::Generic => (NO_VENDOR, 0),
        Model::ConnectX => CONNECTX_8,
    };
    let device = hca::Device::open(hca::DeviceConfig {
        attr: hca::DeviceAttr {
            vendor_id,
            vendor_part_id,
            phys_port_cnt: function.ports,
            data_direct: function.data_direct == Some(true),
            vuid: function.vuid.clone().unwrap_or_default(),
            ats: function.ats == Some(true),
            ..hca::DeviceAttr::new(&function.name, device::guid(number))
        },
        comm: command_name(),
        registry: registry.clone(),
        network: hca::Network::Host(place::interfaces(function)),
        mtu_bytes: None,
        trace: trace.clone(),
        // Who paces links sees to it here, for this process's part of the way only.
        neighbours: link != Link::Roce && env::pace().is_none(),
        receive_buffer_bytes: env::receive_buffer_bytes(),
    })
    .map_err(|error| {
        env::say_not_open(&error);
        open_errno(&error)
    })?;
    place::publish(function, &device);
    place::plug_data_direct(function, &device)?;
    let sink = Arc::new(Sink::default());
    device.set_event_sink(sink.clone());
    let shared = running().cm.upgrade();
    let cm = shared.unwrap_or_else(|| Arc::new(Service::new(&registry)));
    cm.attach(number, &device);
    let device_memory = Arc::default();
    Ok(Engine { function, device, sink, registry, cm, device_memory, trace })
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
