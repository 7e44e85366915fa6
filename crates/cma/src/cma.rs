//! The tables: channels with their events, ids and their handles; making, binding, resolving and
//! ending ids.

use crate::addr::{Addr, PortSpace};
use crate::error::Error;
use crate::event::{ConnParam, Delivered, Ece, Event, EventKind, Param};
use crate::id::{ChannelId, Id, IdState, Key, Local, Path, QpType};
use crate::ports::Sharing;
use crate::resolve::Search;
use cm::{Cm, ConnId};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

/// Handles go up to what librdmacm's tables hold (`IDX_MAX_INDEX`).
const MAX_HANDLES: u32 = 0xffff;
/// Largest backlog (`/proc/sys/net/rdma_ucm/max_backlog`).
const MAX_BACKLOG: u32 = 1024;

/// A membership in a multicast group.
pub(crate) struct Membership {
    pub(crate) id: Key,
    pub(crate) uid: u64,
    pub(crate) events_reported: u32,
}

/// What queries answer about an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Described {
    /// Port space.
    pub space: PortSpace,
    /// Own address.
    pub src: Addr,
    /// The peer's.
    pub dst: Addr,
    /// Number of its device, once it has one.
    pub device: Option<usize>,
    /// Its path, once resolved.
    pub path: Option<Path>,
}

/// The connection manager of one process.
pub struct Cma {
    pub(crate) cm: Cm,
    pub(crate) ids: HashMap<Key, Id>,
    /// Ids that listen, by their ports: whoever asks for one must not make us look through all.
    pub(crate) listening: BTreeSet<(u16, Key)>,
    handles: BTreeMap<u32, Key>,
    channels: HashMap<ChannelId, VecDeque<Event>>,
    pub(crate) conns: HashMap<ConnId, Key>,
    pub(crate) memberships: BTreeMap<u32, Membership>,
    pub(crate) searches: BTreeMap<Key, Search>,
    /// Channels that got events.
    woken: Vec<ChannelId>,
    next_key: u64,
    seed: u64,
    /// Random numbers had so far.
    drawn: u64,
}

impl Cma {
    /// A manager over a connection manager. `seed` is any random number.
    pub fn new(cm: Cm, seed: u64) -> Cma {
        Cma {
            cm,
            ids: HashMap::new(),
            listening: BTreeSet::new(),
            handles: BTreeMap::new(),
            channels: HashMap::new(),
            conns: HashMap::new(),
            memberships: BTreeMap::new(),
            searches: BTreeMap::new(),
            woken: Vec::new(),
            next_key: 1,
            seed,
            drawn: 0,
        }
    }

    /// The connection manager below, to send what it has.
    pub fn cm(&mut self) -> &mut Cm {
        &mut self.cm
    }

    /// When [`Cma::on_timeout`] is wanted, or a look for a neighbour.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.cm.next_deadline().into_iter().chain(self.next_look()).min()
    }

    /// A random number, which nobody can foresee without the seed: first PSNs are made of it.
    pub(crate) fn random(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, self.drawn).hash(&mut hasher);
        hasher.finish()
    }

    /// A channel was opened.
    pub fn open(&mut self, channel: ChannelId) {
        self.channels.insert(channel, VecDeque::new());
    }

    /// A channel was closed: its ids go. Answers their keys, whose ports are free now.
    pub fn close(&mut self, channel: ChannelId, now: Instant) -> Vec<Key> {
        let theirs = self.ids.iter().filter(|(_, id)| id.channel == channel);
        let keys: Vec<Key> = theirs.map(|(key, _)| *key).collect();
        for key in &keys {
            self.end(*key, now);
        }
        self.channels.remove(&channel);
        keys
    }

    /// Makes an id and answers its handle.
    ///
    /// # Errors
    /// EINVAL for an unknown port space.
    pub fn create(
        &mut self,
        channel: ChannelId,
        uid: u64,
        space: u16,
        qp_type: u8,
    ) -> Result<u32, Error> {
        let space = PortSpace::of(space).ok_or(Error::INVAL)?;
        let qp_type = match space {
            PortSpace::Tcp => QpType::RC,
            PortSpace::Udp | PortSpace::IpOIb => QpType::UD,
            PortSpace::Ib => QpType(qp_type),
        };
        let key = self.insert(channel, uid, space, qp_type);
        self.give_handle(key).inspect_err(|_| {
            self.ids.remove(&key);
        })
    }

    pub(crate) fn insert(
        &mut self,
        channel: ChannelId,
        uid: u64,
        space: PortSpace,
        qp_type: QpType,
    ) -> Key {
        let key = Key(self.next_key);
        self.next_key += 1;
        let psn = self.random() as u32;
        self.ids.insert(key, Id::new(channel, uid, space, qp_type, psn));
        key
    }

    fn give_handle(&mut self, key: Key) -> Result<u32, Error> {
        let mut free = 0;
        for handle in self.handles.keys() {
            if *handle != free {
                break;
            }
            free += 1;
        }
        if free > MAX_HANDLES {
            return Err(Error::NOMEM);
        }
        self.handles.insert(free, key);
        if let Some(id) = self.ids.get_mut(&key) {
            id.handle = Some(free);
        }
        Ok(free)
    }

    /// The id behind a handle (kernel `ucma_get_ctx`).
    ///
    /// # Errors
    /// ENOENT for none, EINVAL for one of another channel.
    pub fn key(&self, channel: ChannelId, handle: u32) -> Result<Key, Error> {
        let key = self.handles.get(&handle).ok_or(Error::NOENT)?;
        let id = self.ids.get(key).ok_or(Error::NOENT)?;
        if id.channel == channel { Ok(*key) } else { Err(Error::INVAL) }
    }

    pub(crate) fn id(&self, key: Key) -> Result<&Id, Error> {
        self.ids.get(&key).ok_or(Error::NOENT)
    }

    pub(crate) fn id_mut(&mut self, key: Key) -> Result<&mut Id, Error> {
        self.ids.get_mut(&key).ok_or(Error::NOENT)
    }

    /// Ends an id; answers how many of its events were delivered. Its ports are the caller's to
    /// free.
    ///
    /// # Errors
    /// ENOENT when it is gone already.
    pub fn destroy(&mut self, key: Key, now: Instant) -> Result<u32, Error> {
        let reported = self.id(key)?.events_reported;
        self.end(key, now);
        Ok(reported)
    }

    /// Ends an id and whatever of it has not been delivered.
    pub(crate) fn end(&mut self, key: Key, now: Instant) {
        let Some(id) = self.ids.remove(&key) else { return };
        self.listening.remove(&(id.src.port(), key));
        if let Some(handle) = id.handle {
            self.handles.remove(&handle);
        }
        if let Some(conn) = id.conn {
            self.conns.remove(&conn);
            self.cm.destroy(conn, now);
        }
        self.memberships.retain(|_, membership| membership.id != key);
        self.searches.remove(&key);
        let mut requests = Vec::new();
        if let Some(queue) = self.channels.get_mut(&id.channel) {
            queue.retain(|event| {
                let keep = event.id != key;
                if !keep {
                    requests.extend(event.request);
                }
                keep
            });
        }
        for request in requests {
            self.end(request, now);
        }
    }

    /// Whether an id may be bound to `addr`; answers how it shares its port. Then comes
    /// [`Ports::bind`](crate::Ports::bind) and [`Cma::bind`].
    ///
    /// # Errors
    /// EINVAL for one that is bound, or a link-local address without an interface.
    pub fn may_bind(&mut self, key: Key, addr: &Addr) -> Result<(PortSpace, Sharing), Error> {
        let id = self.id_mut(key)?;
        if id.state != IdState::Idle || addr.lacks_scope() {
            return Err(Error::INVAL);
        }
        let one_family = *id.one_family.get_or_insert(matches!(addr, Addr::V4(..)));
        Ok((id.space, Sharing { reuse: id.reuse, one_family }))
    }

    /// An id is bound to `addr`; `local` is what it is here unless it stands for all addresses.
    ///
    /// # Errors
    /// ENOENT, EINVAL when it is gone or no longer idle.
    pub fn bind(&mut self, key: Key, addr: Addr, local: Option<Local>) -> Result<(), Error> {
        let id = self.id_mut(key)?;
        if id.state != IdState::Idle {
            return Err(Error::INVAL);
        }
        id.src = addr;
        id.local = local;
        id.state = IdState::Bound;
        Ok(())
    }

    /// Whether an id is still to be bound.
    ///
    /// # Errors
    /// ENOENT when it is gone.
    pub fn is_idle(&self, key: Key) -> Result<bool, Error> {
        Ok(self.id(key)?.state == IdState::Idle)
    }

    /// Whether a bound id may begin to listen.
    ///
    /// # Errors
    /// EINVAL in another state.
    pub fn may_listen(&self, key: Key) -> Result<(), Error> {
        if self.id(key)?.state == IdState::Bound { Ok(()) } else { Err(Error::INVAL) }
    }

    /// Begins to listen, with room for `backlog` requests until they are delivered; 0 and too many
    /// mean the most.
    ///
    /// # Errors
    /// EINVAL when it is not bound or listens already.
    pub fn listen(&mut self, key: Key, backlog: u32) -> Result<(), Error> {
        let id = self.id_mut(key)?;
        if id.state != IdState::Bound {
            return Err(Error::INVAL);
        }
        id.backlog = if (1..MAX_BACKLOG).contains(&backlog) { backlog } else { MAX_BACKLOG };
        id.state = IdState::Listening;
        let port = id.src.port();
        self.listening.insert((port, key));
        Ok(())
    }

    /// Stops listening again, because the ports could not be had.
    ///
    /// # Errors
    /// EINVAL when it does not listen.
    pub fn stop_listening(&mut self, key: Key) -> Result<(), Error> {
        let id = self.id_mut(key)?;
        if id.state != IdState::Listening {
            return Err(Error::INVAL);
        }
        id.state = IdState::Bound;
        let port = id.src.port();
        self.listening.remove(&(port, key));
        Ok(())
    }

    /// Where to begin to look for a free port.
    pub fn random_port(&mut self) -> u16 {
        self.random() as u16
    }

    /// What queries answer.
    ///
    /// # Errors
    /// ENOENT when it is gone.
    pub fn describe(&self, key: Key) -> Result<Described, Error> {
        let id = self.id(key)?;
        let Id { space, src, dst, path, .. } = *id;
        Ok(Described { space, src, dst, device: id.device(), path })
    }

    /// The address and interface of an accepted connection's id that is yet to be found among the
    /// device's.
    pub fn lacks_local(&self, key: Key) -> Option<(std::net::IpAddr, u32)> {
        let id = self.ids.get(&key)?;
        if id.local.is_some() || id.conn.is_none() {
            return None;
        }
        Some((id.src.ip()?, id.ifindex))
    }

    /// Says what it is among the device's.
    pub fn set_local(&mut self, key: Key, local: Local) {
        if let Some(id) = self.ids.get_mut(&key) {
            id.local = Some(local);
        }
    }

    /// Moves an id with its events to another channel; answers how many were delivered.
    ///
    /// # Errors
    /// ENOENT when it is gone.
    pub fn migrate(&mut self, key: Key, to: ChannelId) -> Result<u32, Error> {
        let id = self.id_mut(key)?;
        let reported = id.events_reported;
        let from = std::mem::replace(&mut id.channel, to);
        if from == to {
            return Ok(reported);
        }
        let mut moved = VecDeque::new();
        if let Some(queue) = self.channels.get_mut(&from) {
            let (theirs, others) = queue.drain(..).partition(|event| event.id == key);
            (moved, *queue) = (theirs, others);
        }
        for request in moved.iter().filter_map(|event: &Event| event.request) {
            if let Some(id) = self.ids.get_mut(&request) {
                id.channel = to;
            }
        }
        if !moved.is_empty()
            && let Some(queue) = self.channels.get_mut(&to)
        {
            queue.append(&mut moved);
            self.woken.push(to);
        }
        Ok(reported)
    }

    /// Queues an event without further content.
    pub(crate) fn report(&mut self, key: Key, kind: EventKind, status: i32) {
        let datagram = self.ids.get(&key).is_some_and(Id::is_datagram);
        let param = if datagram {
            Param::Datagram(Box::default())
        } else {
            Param::Conn(ConnParam::default())
        };
        self.report_with(key, kind, status, param, Ece::default());
    }

    /// Queues an event. A connection that the program has not accepted yet has none (kernel
    /// `ucma_event_handler`).
    pub(crate) fn report_with(
        &mut self,
        key: Key,
        kind: EventKind,
        status: i32,
        param: Param,
        ece: Ece,
    ) {
        if self.ids.get(&key).is_none_or(|id| id.uid == 0) {
            return;
        }
        self.queue(Event { kind, status, param, ece, id: key, request: None, membership: None });
    }

    /// Queues an event of the program's own (kernel `ucma_write_cm_event`): `event` is 18 or 19.
    ///
    /// # Errors
    /// EINVAL for others and for an unknown id.
    pub fn write_event(
        &mut self,
        key: Key,
        event: u32,
        status: i32,
        argument: u64,
    ) -> Result<(), Error> {
        let own = [EventKind::User, EventKind::Internal];
        let kind = own.into_iter().find(|kind| *kind as u32 == event).ok_or(Error::INVAL)?;
        self.id(key)?;
        let (param, ece) = (Param::Argument(argument), Ece::default());
        self.queue(Event { kind, status, param, ece, id: key, request: None, membership: None });
        Ok(())
    }

    pub(crate) fn queue(&mut self, event: Event) {
        let Some(id) = self.ids.get(&event.id) else { return };
        let channel = id.channel;
        if let Some(queue) = self.channels.get_mut(&channel) {
            queue.push_back(event);
            self.woken.push(channel);
        }
    }

    /// Forgets the events of a membership that were not delivered.
    pub(crate) fn forget_membership(&mut self, membership: u32) {
        for queue in self.channels.values_mut() {
            queue.retain(|event| event.membership != Some(membership));
        }
    }

    /// Channels that got events since the last call.
    pub fn take_woken(&mut self) -> Vec<ChannelId> {
        std::mem::take(&mut self.woken)
    }

    /// Whether a channel has events.
    pub fn has_events(&self, channel: ChannelId) -> bool {
        self.channels.get(&channel).is_some_and(|queue| !queue.is_empty())
    }

    /// The oldest event of a channel as it will be delivered; it stays until [`Cma::delivered`].
    ///
    /// # Errors
    /// ENOMEM when a requested connection gets no handle.
    pub fn next_event(&mut self, channel: ChannelId) -> Result<Option<Delivered>, Error> {
        let queue = self.channels.get(&channel);
        let Some(event) = queue.and_then(|queue| queue.front()).cloned() else { return Ok(None) };
        let id = self.id(event.id)?;
        let (mut uid, mut handle) = (id.uid, id.handle.unwrap_or(0));
        if let Some(membership) = event.membership
            && let Some(found) = self.memberships.get(&membership)
        {
            (uid, handle) = (found.uid, membership);
        }
        if let Some(request) = event.request {
            handle = match self.id(request)?.handle {
                Some(handle) => handle,
                None => self.give_handle(request)?,
            };
        }
        Ok(Some(Delivered { uid, handle, event }))
    }

    /// The oldest event of a channel reached the program.
    pub fn delivered(&mut self, channel: ChannelId) {
        let queue = self.channels.get_mut(&channel);
        let Some(event) = queue.and_then(VecDeque::pop_front) else { return };
        if let Some(id) = self.ids.get_mut(&event.id) {
            id.events_reported += 1;
            id.backlog += u32::from(event.request.is_some());
        }
        if let Some(membership) = event.membership.and_then(|at| self.memberships.get_mut(&at)) {
            membership.events_reported += 1;
        }
    }
}
