//! A software ConnectX on a socket: an HCA of its own, and the PCI function that shows it to a
//! virtual machine.

use crate::args::guest::{Allowed, Port};
use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style;
use hca::{Device, DeviceAttr, DeviceConfig, Network, OpenError, identity};
use mlx5::{ConnectX, DataDirect, Slots};
use pcie::{Function, Platform, Role, Route, Target};
use registry::{Client, Role as Member};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use vfio_user::{Host, Neighbours, Server};

/// An adapter that is served. It ends with the value.
pub struct Adapter {
    _function: Server,
    _data_direct: Option<Server>,
}

/// What is served, and where.
pub struct AdapterOptions<'a> {
    /// The socket of the function.
    pub socket: &'a Path,
    /// The socket of its Data Direct function; without one, it has no such function.
    pub data_direct: Option<&'a Path>,
    /// What its port is on.
    pub port: Port,
    /// What the guest may have of this host.
    pub allowed: &'a Allowed,
    /// The machine that the functions are in, by name or file: its first HCA, and that one's Data
    /// Direct function.
    pub platform: Option<&'a Path>,
    /// Pace the machine's links to this fraction of their rates.
    pub pace: Option<f64>,
    pub trace: Option<&'a Path>,
    /// Functions that may be in one machine with it.
    pub neighbours: &'a Neighbours,
}

impl Adapter {
    /// Serves a new one.
    pub fn serve(place: &AdapterOptions<'_>) -> Outcome<Adapter> {
        if place.port == Port::Ib && !place.allowed.addresses.is_empty() {
            let failure = Failure::new("an InfiniBand port has no IP address");
            return Err(failure.remedy("use `--port roce` with `--address`"));
        }
        mm::guard::install();
        let open = |path: &Path| {
            let what = format!("cannot write a trace to {}", path.display());
            link::Trace::append(path).map(Arc::new).what(what)
        };
        let trace = place.trace.map(open).transpose()?;
        let machine = Machine::of(place)?;
        let registry = Client::connect(Member::Member)
            .map_err(|error| not_open("cannot join the adapters of this user", error.into()))?;
        let device = Device::open(DeviceConfig {
            attr: machine.attr(place),
            comm: "peerdma".to_owned(),
            registry,
            mtu_bytes: None,
            network: match place.port {
                Port::Ib => Network::Subnet,
                Port::Roce => Network::Ethernet { host_addresses: place.allowed.addresses.clone() },
            },
            trace,
            neighbours: false,
            receive_buffer_bytes: None,
        })
        .map_err(|error| not_open("cannot open the software HCA", error))?;
        machine.publish(&device);
        if let Port::Ib = place.port {
            subnet::serve(&device).what("cannot manage the InfiniBand subnet")?;
        }
        let data_direct = DataDirect::new(&device.attr().vuid);
        let slots = machine.slots(place.neighbours)?;
        let own = slots.own.0.clone();
        let side = slots.data_direct.as_ref().map(|(host, _)| host.clone());
        let serve = |socket: &Path, host, function| {
            vfio_user::serve(socket, host, function).map_err(|error| cannot_serve(socket, error))
        };
        // Its bytes find nothing while nobody serves it, and the adapter's first driver looks for
        // it.
        let _data_direct = match (place.data_direct, side) {
            (Some(socket), Some(host)) => Some(serve(socket, host, Arc::new(data_direct))?),
            _ => None,
        };
        let function = Arc::new(ConnectX::new(
            device,
            Arc::new(slots),
            u64::from(place.allowed.max_memory) << 20,
        ));
        function.on_guest_error(|wrong| style::errln(format_args!("the guest: {wrong}")));
        Ok(Adapter { _function: serve(place.socket, own, function)?, _data_direct })
    }
}

fn not_open(what: &str, error: OpenError) -> Failure {
    let taken = matches!(error, OpenError::Registry(registry::Error::PortTaken { .. }));
    Failure::new(what).because(error).port_taken(taken)
}

/// Why a function is not served at a place.
pub fn cannot_serve(socket: &Path, error: std::io::Error) -> Failure {
    let failure = Failure::new(format_args!("cannot serve at {}", socket.display()));
    match error.kind() {
        ErrorKind::AddrInUse => failure
            .because("somebody serves there already, or it is no socket")
            .remedy("name another path"),
        _ => failure.because(error),
    }
}

/// The machine whose links the functions' bytes take.
struct Machine {
    platform: Platform,
    hca: Function,
    data_direct: Option<Function>,
}

impl Machine {
    fn of(place: &AdapterOptions<'_>) -> Outcome<Machine> {
        let platform = match place.platform {
            None => Platform::default(),
            Some(path) => Platform::load(path).what("there is no such machine")?,
        };
        if let Some(fraction) = place.pace {
            platform.pace(fraction);
        }
        let hca = platform.with_role(Role::Hca).next().cloned();
        let hca = hca.ok_or_else(|| {
            Failure::new("the platform has no HCA").remedy("see `peerdma platforms default`")
        })?;
        let found = platform.data_direct_of(&hca).cloned();
        let data_direct = found.filter(|_| place.data_direct.is_some());
        if place.data_direct.is_some() && data_direct.is_none() {
            let failure = Failure::new(format_args!("{} has no Data Direct function", hca.name));
            return Err(failure.remedy("name a platform with one: see `peerdma platforms`"));
        }
        Ok(Machine { platform, hca, data_direct })
    }

    fn attr(&self, place: &AdapterOptions<'_>) -> DeviceAttr {
        let guid = guid(place.socket);
        let name = if place.platform.is_some() { &self.hca.name } else { "connectx" };
        // Adapters of one platform in one guest must not take each other's Data Direct function.
        let vuid = format!("PDM{guid:016X}");
        let capable = self.data_direct.is_some() && self.hca.data_direct != Some(false);
        DeviceAttr { data_direct: capable, vuid, ..DeviceAttr::new(name, guid) }
    }

    /// Lets other processes see the routes. Without room for that they are still counted.
    fn publish(&self, device: &Device) {
        let Ok(table) = device.directory().route_table() else { return };
        let table = Arc::new(table);
        for function in [Some(&self.hca), self.data_direct.as_ref()].into_iter().flatten() {
            self.platform.publish(function.address, table.clone());
        }
    }

    /// The guest's memory is the host's.
    fn route(&self, function: &Function) -> Outcome<Arc<Route>> {
        self.platform.route(function, Target::HOST).what("the function reaches no memory")
    }

    fn slots(&self, neighbours: &Neighbours) -> Outcome<Slots> {
        let slot = |function: &Function| Ok((Host::beside(neighbours), self.route(function)?));
        let data_direct = self.data_direct.as_ref().map(slot).transpose()?;
        Ok(Slots { own: slot(&self.hca)?, data_direct })
    }
}

/// A GUID that the adapter at this place has each time in this network namespace, and no other
/// there.
fn guid(socket: &Path) -> u64 {
    let place = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let user = rustix::process::getuid().as_raw();
    identity::node_guid(&format!("{} of user {user}", place.display()))
}
