//! The process's connection manager: the state machine under its lock, wired to queue pair 1, to the channels and to the
//! registry.
//!
//! Locks: `ports`, then `state`. Whoever receives packets takes `state` only, and nothing waits while it is held; claims
//! at the registry are made under `ports`.

use super::channel::{put_token, take_token};
use super::host::{self, Registry};
use cma::{ChannelId, Cma, Error, Key, Ports};
use descriptors::Kept;
use hca::{Device, GsiSink, MAD_LEN, MadPath};
use registry::Client;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// Our end of a channel, and whether the token lies in it or was just taken.
struct Token {
    end: Arc<Kept>,
    out: bool,
}

struct State {
    cma: Cma,
    tokens: HashMap<ChannelId, Token>,
}

/// The connection manager of one engine.
pub struct Service {
    device: Weak<Device>,
    registry: Arc<Client>,
    slot: u16,
    /// There is no other device, whose messages would come here too.
    alone: bool,
    state: Mutex<State>,
    ports: Mutex<Ports>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Takes over queue pair 1 of `device`.
    pub fn start(device: &Arc<Device>, registry: &Arc<Client>) -> Arc<Service> {
        let slot = device.slot();
        let cm = cm::Cm::new(cm::Config {
            ca_guid: device.attr().node_guid,
            id_prefix: u32::from(slot) << registry::COMM_ID_INDEX_BITS,
            id_bits: registry::COMM_ID_INDEX_BITS,
            seed: random(),
        });
        let service = Arc::new(Service {
            device: Arc::downgrade(device),
            registry: registry.clone(),
            slot,
            alone: crate::device::count() == 1,
            state: Mutex::new(State { cma: Cma::new(cm, random()), tokens: HashMap::new() }),
            ports: Mutex::default(),
        });
        device.set_gsi_sink(service.clone());
        service
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
    fn forget(&self, state: &mut State, channel: ChannelId) -> Vec<Key> {
        let keys = state.cma.close(channel, Instant::now());
        state.tokens.remove(&channel);
        self.settle(state);
        keys
    }

    /// The program ends: its peers are told, and its ports are given back. What the registry has not taken back before
    /// `deadline` it takes when it finds the connection ended.
    pub fn end(&self, deadline: Instant) {
        // Not if it ends amid a call of its own, in a signal handler.
        let Ok(mut state) = self.state.try_lock() else { return };
        let channels: Vec<ChannelId> = state.tokens.keys().copied().collect();
        let ended = channels.into_iter().map(|channel| self.forget(&mut state, channel));
        let keys: Vec<Key> = ended.flatten().collect();
        drop(state);
        let Ok(mut ports) = self.ports.try_lock() else { return };
        let claims = Registry { client: &self.registry, slot: self.slot, deadline: Some(deadline) };
        keys.into_iter().for_each(|key| ports.unbind(key, &claims));
    }

    /// An id's ports are free for others.
    pub fn free_ports(&self, key: Key) {
        self.with_ports(|ports, claims| ports.unbind(key, claims));
    }

    /// Runs `call` on the ports and the registry.
    pub fn with_ports<R>(&self, call: impl FnOnce(&mut Ports, &Registry<'_>) -> R) -> R {
        let claims = Registry { client: &self.registry, slot: self.slot, deadline: None };
        call(&mut lock(&self.ports), &claims)
    }

    /// Runs `call` on the state machine and sees to what follows. `fd` is the program's descriptor: a channel whose last
    /// events are gone is not readable.
    pub fn with<R>(
        &self,
        channel: ChannelId,
        fd: RawFd,
        call: impl FnOnce(&mut Cma) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut state = lock(&self.state);
        let result = call(&mut state.cma);
        self.settle(&mut state);
        let State { cma, tokens } = &mut *state;
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
        let State { cma, tokens } = &mut *state;
        if let Some(token) = tokens.get_mut(&channel) {
            token.out = cma.has_events(channel);
            if token.out {
                put_token(token.end.as_raw_fd());
            }
        }
        result
    }

    /// Sends what is to be sent, wakes who has events, and asks to be called in time.
    fn settle(&self, state: &mut State) {
        let Some(device) = self.device.upgrade() else { return };
        while let Some((to, mad)) = state.cma.cm().poll_transmit() {
            let to = MadPath {
                local: to.local,
                remote: to.remote,
                ifindex: to.ifindex,
                traffic_class: to.traffic_class,
                hop_limit: to.hop_limit,
            };
            // Lost, as any datagram may be: it is sent again.
            let _ = device.send_mad(to, &mad);
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
        if let Some(at) = state.cma.next_deadline() {
            device.set_gsi_deadline(at);
        }
    }
}

impl GsiSink for Service {
    fn mad(&self, from: MadPath, mad: &[u8; MAD_LEN], now: Instant) {
        let takes = |device: Arc<Device>| device.takes(from.local);
        if self.alone && !self.device.upgrade().is_some_and(takes) {
            return;
        }
        let from = cm::Path {
            local: from.local,
            remote: from.remote,
            ifindex: from.ifindex,
            traffic_class: from.traffic_class,
            hop_limit: 0,
        };
        let mut state = lock(&self.state);
        state.cma.receive(from, mad, now);
        self.settle(&mut state);
    }

    fn timer(&self, now: Instant) {
        let mut state = lock(&self.state);
        state.cma.on_timeout(now);
        for (key, neighbour) in state.cma.sought(now) {
            state.cma.looked(key, host::is_known(neighbour), now);
        }
        self.settle(&mut state);
    }
}

/// A random number, by way of the standard library's hash seeds.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Instant::now())
}
