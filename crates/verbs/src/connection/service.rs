//! The process's connection manager: the state machine under its lock, wired to queue pair 1 of
//! each open device, to the channels and to the registry.
//!
//! A message goes out by the device that has the local address of its conversation, and what comes
//! in is for the device that has the address it was sent to: the first of them, as ids have it.
//!
//! Locks: `ports`, then `state`. Whoever receives packets takes `state` only, and nothing waits
//! while it is held; claims at the registry are made under `ports`.

use crate::connection::addresses::Addresses;
use crate::connection::claims::Registry;
use crate::connection::neighbour;
use crate::connection::token::{put_token, take_token};
use crate::platform::device;
use cma::{ChannelId, Cma, Error, Key, Ports};
use descriptors::Kept;
use engine_thread::lock;
use hca::{Device, GsiSink, MAD_LEN, MadPath};
use registry::Client;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// Number of the device that every channel opens: it is asked for what was sent to all addresses.
pub const HOME: usize = 0;

/// Our end of a channel, and whether the token lies in it or was just taken.
struct Token {
    end: Arc<Kept>,
    out: bool,
}

/// A device whose queue pair 1 carries messages.
struct Port {
    device: Weak<Device>,
    slot: u16,
}

struct ServiceState {
    cma: Cma,
    /// By number of the device.
    devices: BTreeMap<usize, Port>,
    tokens: HashMap<ChannelId, Token>,
}

impl ServiceState {
    fn device(&self, number: usize) -> Option<Arc<Device>> {
        self.devices.get(&number)?.device.upgrade()
    }

    /// Those that are open, by number.
    fn open_devices(&self) -> impl Iterator<Item = (usize, Arc<Device>)> {
        let open = |(number, port): (&usize, &Port)| Some((*number, port.device.upgrade()?));
        self.devices.iter().filter_map(open).filter(|(_, device)| device.alive().is_ok())
    }

    /// The number of the first device that an address of this host is of.
    fn owner(&self, ip: IpAddr) -> Option<usize> {
        self.open_devices().find(|(_, device)| device.takes(ip)).map(|(number, _)| number)
    }

    /// The number of the device that answers for those that are not open, if there are any.
    fn stand_in(&self) -> Option<usize> {
        let first = self.open_devices().next().map(|(number, _)| number);
        first.filter(|_| self.open_devices().count() < device::count())
    }
}

/// The connection manager of a process.
pub struct Service {
    registry: Arc<Client>,
    /// Where requests are taken, if not at all of the host's addresses.
    addresses: Option<Addresses>,
    state: Mutex<ServiceState>,
    ports: Mutex<Ports>,
}

impl Service {
    /// One without devices.
    pub fn new(registry: &Arc<Client>) -> Service {
        let id_bits = registry::COMM_ID_INDEX_BITS;
        let cm = cm::Cm::new(cm::Config { id_bits, seed: random() });
        let (devices, tokens) = (BTreeMap::new(), HashMap::new());
        Service {
            registry: registry.clone(),
            addresses: Addresses::of_devices(),
            state: Mutex::new(ServiceState { cma: Cma::new(cm, random()), devices, tokens }),
            ports: Mutex::default(),
        }
    }

    /// Takes over queue pair 1 of `device`, which has just been opened.
    pub fn attach(self: &Arc<Service>, number: usize, device: &Arc<Device>) {
        let slot = device.slot();
        let mut state = lock(&self.state);
        state.cma.cm().attach(
            number,
            cm::Adapter {
                ca_guid: device.attr().node_guid,
                id_prefix: u32::from(slot) << registry::COMM_ID_INDEX_BITS,
            },
        );
        state.devices.insert(number, Port { device: Arc::downgrade(device), slot });
        drop(state);
        device.general_services().set_sink(self.clone());
    }

    /// A channel was opened.
    pub fn open(&self, channel: ChannelId, end: Arc<Kept>) {
        let mut state = lock(&self.state);
        state.cma.open(channel);
        state.tokens.insert(channel, Token { end, out: false });
    }

    /// A channel was closed, and its ids with it.
    pub fn close(&self, channel: ChannelId) {
        let keys = self.forget(&mut lock(&self.state), channel);
        for key in keys {
            self.free_ports(key);
        }
    }

    /// Ends the ids of a channel; gives those that may have ports.
    fn forget(&self, state: &mut ServiceState, channel: ChannelId) -> Vec<Key> {
        let keys = state.cma.close(channel, Instant::now());
        state.tokens.remove(&channel);
        self.settle(state);
        keys
    }

    /// The program ends: its peers hear of it, and its ports are given back. What the registry has
    /// not taken back before `deadline` it takes when it finds the connection ended.
    pub fn end(&self, deadline: Instant) {
        // Not if it ends amid a call of its own, in a signal handler.
        let Ok(mut state) = self.state.try_lock() else { return };
        let channels: Vec<ChannelId> = state.tokens.keys().copied().collect();
        let ended = channels.into_iter().map(|channel| self.forget(&mut state, channel));
        let keys: Vec<Key> = ended.flatten().collect();
        drop(state);
        let Ok(mut ports) = self.ports.try_lock() else { return };
        let slot = |_| None;
        let claims = Registry { client: &self.registry, slot: &slot, deadline: Some(deadline) };
        keys.into_iter().for_each(|key| ports.unbind(key, &claims));
    }

    /// An id's ports are free for others.
    pub fn free_ports(&self, key: Key) {
        self.with_ports(|ports, claims| ports.unbind(key, claims));
    }

    /// Runs `call` on the ports and the registry.
    pub fn with_ports<R>(&self, call: impl FnOnce(&mut Ports, &Registry<'_>) -> R) -> R {
        let slot = |ip| self.slot(ip);
        let claims = Registry { client: &self.registry, slot: &slot, deadline: None };
        call(&mut lock(&self.ports), &claims)
    }

    /// The slot that requests to an address of this host, or to all of them, are to come to.
    fn slot(&self, ip: IpAddr) -> Option<u16> {
        let state = lock(&self.state);
        let owner = if ip.is_unspecified() { None } else { state.owner(ip) };
        let port = state.devices.get(&owner.unwrap_or(HOME))?;
        Some(port.slot)
    }

    /// Runs `call` on the state machine and sees to what follows. `fd` is the program's descriptor:
    /// a channel whose last events are gone is not readable.
    pub fn with<R>(
        &self,
        channel: ChannelId,
        fd: RawFd,
        call: impl FnOnce(&mut Cma) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut state = lock(&self.state);
        let result = call(&mut state.cma);
        self.settle(&mut state);
        let ServiceState { cma, tokens, .. } = &mut *state;
        if !cma.has_events(channel)
            && let Some(token) = tokens.get_mut(&channel)
            && token.out
            && take_token(fd)
        {
            token.out = false;
        }
        result
    }

    /// Runs `call` after the token of `channel` was taken, and puts it back if events are left.
    pub fn with_token<R>(&self, channel: ChannelId, call: impl FnOnce(&mut Cma) -> R) -> R {
        let mut state = lock(&self.state);
        let result = call(&mut state.cma);
        let ServiceState { cma, tokens, .. } = &mut *state;
        if let Some(token) = tokens.get_mut(&channel) {
            token.out = cma.has_events(channel);
            if token.out {
                put_token(token.end.as_raw_fd());
            }
        }
        result
    }

    /// Sends what is to be sent, wakes who has events, and asks to be called in time.
    fn settle(&self, state: &mut ServiceState) {
        while let Some((to, mad)) = state.cma.cm().poll_transmit() {
            let Some(device) = state.device(to.adapter) else { continue };
            let to = MadPath {
                local: to.local,
                remote: to.remote,
                ifindex: to.ifindex,
                traffic_class: to.traffic_class,
                hop_limit: to.hop_limit,
            };
            // Lost, as any datagram may be: it is sent again.
            let _ = device.general_services().send(to, &mad);
        }
        for channel in state.cma.take_woken() {
            if let Some(token) = state.tokens.get_mut(&channel)
                && !token.out
                && state.cma.has_events(channel)
            {
                token.out = true;
                put_token(token.end.as_raw_fd());
            }
        }
        if let Some(at) = state.cma.next_deadline()
            && let Some((_, device)) = state.open_devices().next()
        {
            device.general_services().set_deadline(at);
        }
    }
}

impl GsiSink for Service {
    fn mad(&self, from: MadPath, mad: &[u8; MAD_LEN], now: Instant) {
        if self.addresses.as_ref().is_some_and(|addresses| !addresses.have(from.local)) {
            return;
        }
        let mut state = lock(&self.state);
        // A request to all addresses comes to the one socket that was claimed for it, whichever
        // device has the address. What was sent to an address of none is nobody's; but of a device
        // that is not open another one says that nobody listens.
        let Some(adapter) = state.owner(from.local).or_else(|| state.stand_in()) else { return };
        let from = cm::Path {
            adapter,
            local: from.local,
            remote: from.remote,
            ifindex: from.ifindex,
            traffic_class: from.traffic_class,
            hop_limit: 0,
        };
        state.cma.receive(from, mad, now);
        self.settle(&mut state);
    }

    fn timer(&self, now: Instant) {
        let mut state = lock(&self.state);
        state.cma.on_timeout(now);
        for (key, neighbour) in state.cma.sought(now) {
            state.cma.looked(key, neighbour::is_known(neighbour), now);
        }
        self.settle(&mut state);
    }
}

/// A random number, by way of the standard library's hash seeds.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Instant::now())
}
