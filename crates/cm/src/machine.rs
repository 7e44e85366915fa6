//! The state machine: calls from above, messages from the peer, and time.

use crate::conn::{Conn, State, duration};
use crate::event::{Event, Refused, Reply, Request, SidrReply, SidrRequest};
use crate::mad::{
    About, Ece, Kind, MAD_LEN, Mad, REJ_PRIVATE_LEN, REP_PRIVATE_LEN, REQ_PRIVATE_LEN, Reason, Rep,
    Req, SIDR_REP_PRIVATE_LEN, SIDR_REQ_PRIVATE_LEN, SidrRep, SidrStatus, Transport, rej, sidr_req,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long an answer may take: 4.096 µs · 2^20, about four seconds (`CMA_CM_RESPONSE_TIMEOUT`).
const RESPONSE_TIMEOUT: u8 = 20;
/// Repetitions of a message without an answer (`CMA_MAX_CM_RETRIES`).
const RETRIES: u8 = 15;
/// How long a program may think about a request: about a minute (`CMA_CM_MRA_SETTING`).
const THINKING_TIME: u8 = 24;
/// Conversations that may exist at once, so that a stranger cannot fill the memory.
const MAX_CONNS: usize = 1 << 17;

/// Names a conversation: its local communication id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(u32);

/// The call does not fit the conversation's state, or its private data is too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invalid;

/// What a manager is made from.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// GUID of the channel adapter.
    pub ca_guid: u64,
    /// Upper bits of all communication ids.
    pub id_prefix: u32,
    /// Number of the bits below.
    pub id_bits: u32,
    /// Any random number.
    pub seed: u64,
}

/// The way between two queue pairs 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// An address of this host.
    pub local: IpAddr,
    /// The peer.
    pub remote: IpAddr,
    /// Interface for link-local addresses.
    pub ifindex: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit; 0 leaves it to the host.
    pub hop_limit: u8,
}

/// What a connection is asked for with.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// The way there.
    pub path: Path,
    /// Service.
    pub service_id: u64,
    /// Transport of the own queue pair.
    pub transport: Transport,
    /// Its number.
    pub qpn: u32,
    /// First PSN to expect.
    pub psn: u32,
    /// READs and atomics that may come in at once.
    pub responder_resources: u8,
    /// READs and atomics that may go out at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries of the peer, 7 at most.
    pub retry_count: u8,
    /// Its retries when the receiver is not ready, 7 at most.
    pub rnr_retry_count: u8,
    /// Receives come from a shared queue.
    pub srq: bool,
    /// Path MTU, verbs code.
    pub mtu: u8,
    /// ACK timeout.
    pub ack_timeout: u8,
    /// Rate, verbs code.
    pub rate: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Vendor options.
    pub ece: Ece,
    /// GIDs of both ends.
    pub local_gid: [u8; 16],
    /// The peer's.
    pub remote_gid: [u8; 16],
    /// At most 92 bytes.
    pub private: Vec<u8>,
}

/// What a connection is accepted with.
#[derive(Clone, Debug, Default)]
pub struct ReplyParams {
    /// Number of the own queue pair.
    pub qpn: u32,
    /// First PSN to expect.
    pub psn: u32,
    /// READs and atomics that may come in at once.
    pub responder_resources: u8,
    /// READs and atomics that may go out at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries of the peer when the receiver is not ready, 7 at most.
    pub rnr_retry_count: u8,
    /// Receives come from a shared queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// At most 196 bytes.
    pub private: Vec<u8>,
}

/// What a datagram service is answered with.
#[derive(Clone, Debug)]
pub struct SidrReplyParams {
    /// Whether there is one.
    pub status: SidrStatus,
    /// Queue pair.
    pub qpn: u32,
    /// Its queue key.
    pub qkey: u32,
    /// At most 136 bytes.
    pub private: Vec<u8>,
}

/// The connection manager of one device.
pub struct Cm {
    config: Config,
    conns: HashMap<u32, Conn>,
    /// Conversations begun by peers: their id, their GUID (0 for datagram services) and address.
    begun: HashMap<(u32, u64, IpAddr), u32>,
    deadlines: BTreeSet<(Instant, u32)>,
    out: VecDeque<(Path, Mad)>,
    events: VecDeque<Event>,
    next_id: u32,
}

fn fits(private: &[u8], room: usize) -> Result<(), Invalid> {
    if private.len() > room { Err(Invalid) } else { Ok(()) }
}

impl Cm {
    /// A manager without conversations.
    pub fn new(config: Config) -> Cm {
        Cm {
            config,
            conns: HashMap::new(),
            begun: HashMap::new(),
            deadlines: BTreeSet::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            next_id: config.seed as u32,
        }
    }

    /// The next message to send, and where to.
    pub fn poll_transmit(&mut self) -> Option<(Path, [u8; MAD_LEN])> {
        self.out.pop_front().map(|(path, mad)| (path, mad.0))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Cm::on_timeout`] is wanted.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Conversations that exist, also those that end by themselves.
    pub fn conversations(&self) -> usize {
        self.conns.len()
    }

    fn insert(&mut self, conn: Conn) -> Option<u32> {
        if self.conns.len() >= MAX_CONNS {
            return None;
        }
        let mask = (1 << self.config.id_bits) - 1;
        loop {
            self.next_id = self.next_id.wrapping_add(1);
            let id = self.config.id_prefix | self.next_id & mask;
            if id != 0 && !self.conns.contains_key(&id) {
                self.conns.insert(id, conn);
                return Some(id);
            }
        }
    }

    fn remove(&mut self, id: u32) {
        let Some(conn) = self.conns.remove(&id) else { return };
        if let Some(at) = conn.deadline {
            self.deadlines.remove(&(at, id));
        }
        let theirs = (conn.remote_id, conn.remote_guid, conn.path.remote);
        if self.begun.get(&theirs) == Some(&id) {
            self.begun.remove(&theirs);
        }
    }

    fn set_deadline(&mut self, id: u32, at: Option<Instant>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut conn.deadline, at) {
            self.deadlines.remove(&(before, id));
        }
        if let Some(at) = at {
            self.deadlines.insert((at, id));
        }
    }

    fn tell(&mut self, id: u32, event: Event) {
        if self.conns.get(&id).is_some_and(|conn| !conn.detached) {
            self.events.push_back(event);
        }
    }

    /// Sends a message that needs no answer.
    fn send(&mut self, id: u32, mad: Mad) {
        if let Some(conn) = self.conns.get_mut(&id) {
            self.out.push_back((conn.path, mad.clone()));
            conn.last = Some(mad);
        }
    }

    /// Sends a message and repeats it until it is answered.
    fn request(&mut self, id: u32, mad: Mad, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.retries_left = conn.retries;
        let at = now + conn.patience;
        self.send(id, mad);
        self.set_deadline(id, Some(at));
    }

    fn state(&self, id: u32) -> Result<State, Invalid> {
        let conn = self.conns.get(&id).filter(|conn| !conn.detached).ok_or(Invalid)?;
        Ok(conn.state)
    }

    /// Goes to `state`, in which nothing is awaited.
    fn enter(&mut self, id: u32, state: State) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = state;
        }
        self.set_deadline(id, None);
    }

    fn enter_timewait(&mut self, id: u32, now: Instant) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = State::Timewait;
            let until = now + conn.timewait;
            self.set_deadline(id, Some(until));
        }
    }

    fn ids(&self, id: u32) -> (u64, u32, u32) {
        self.conns.get(&id).map_or((0, 0, 0), |conn| (conn.tid, id, conn.remote_id))
    }

    fn send_rej(&mut self, id: u32, reason: Reason, private: &[u8]) {
        let Some(conn) = self.conns.get(&id) else { return };
        let about = match conn.state {
            State::ReqReceived => About::Req,
            State::RepReceived => About::Rep,
            _ => About::Other,
        };
        let info = if reason == Reason::TIMEOUT {
            self.config.ca_guid.to_be_bytes().to_vec()
        } else {
            Vec::new()
        };
        let (tid, local, remote) = self.ids(id);
        self.send(id, rej(tid, (local, remote), about, reason, &info, private));
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// [`Invalid`] for too much private data, or when there are too many conversations.
    pub fn connect(&mut self, params: ConnectParams, now: Instant) -> Result<ConnId, Invalid> {
        fits(&params.private, REQ_PRIVATE_LEN)?;
        let conn = Conn {
            state: State::ReqSent,
            path: params.path,
            tid: 0,
            remote_id: 0,
            remote_guid: 0,
            remote_qpn: 0,
            service_id: params.service_id,
            transport: params.transport,
            detached: false,
            last: None,
            retries_left: RETRIES,
            patience: duration(RESPONSE_TIMEOUT)
                + 2 * duration(params.ack_timeout.saturating_sub(1)),
            retries: RETRIES,
            timewait: duration(params.ack_timeout),
            deadline: None,
        };
        let id = self.insert(conn).ok_or(Invalid)?;
        let tid = self.new_tid(id);
        let req = Req {
            local_id: id,
            service_id: params.service_id,
            ca_guid: self.config.ca_guid,
            qpn: params.qpn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            remote_timeout: RESPONSE_TIMEOUT,
            local_timeout: RESPONSE_TIMEOUT,
            transport: params.transport,
            flow_control: params.flow_control,
            psn: params.psn,
            retry_count: params.retry_count.min(7),
            rnr_retry_count: params.rnr_retry_count.min(7),
            max_retries: RETRIES,
            mtu: params.mtu,
            srq: params.srq,
            local_gid: params.local_gid,
            remote_gid: params.remote_gid,
            flow_label: params.flow_label,
            rate: params.rate,
            traffic_class: params.path.traffic_class,
            hop_limit: params.path.hop_limit,
            ack_timeout: params.ack_timeout,
            ece: params.ece,
            private: params.private,
        };
        self.request(id, req.emit(tid), now);
        Ok(ConnId(id))
    }

    /// A transaction id, unlike that of any other conversation.
    fn new_tid(&mut self, id: u32) -> u64 {
        let tid = (self.config.seed & !0xffff_ffff) | u64::from(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.tid = tid;
        }
        tid
    }

    /// Accepts a connection that a peer asked for.
    ///
    /// # Errors
    /// [`Invalid`] in another state, or for too much private data.
    pub fn reply(
        &mut self,
        conn: ConnId,
        params: ReplyParams,
        now: Instant,
    ) -> Result<(), Invalid> {
        let id = conn.0;
        fits(&params.private, REP_PRIVATE_LEN)?;
        if self.state(id)? != State::ReqReceived {
            return Err(Invalid);
        }
        let Some(found) = self.conns.get_mut(&id) else { return Err(Invalid) };
        found.state = State::RepSent;
        let xrc = found.transport == Transport::Xrc;
        let (tid, local_id, remote_id) = self.ids(id);
        let rep = Rep {
            local_id,
            remote_id,
            qpn: params.qpn,
            psn: params.psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            flow_control: params.flow_control,
            rnr_retry_count: params.rnr_retry_count.min(7),
            srq: params.srq,
            ca_guid: self.config.ca_guid,
            xrc,
            ece: params.ece,
            private: params.private,
        };
        self.request(id, rep.emit(tid), now);
        Ok(())
    }

    /// Completes a connection that the peer accepted.
    ///
    /// # Errors
    /// [`Invalid`] in another state.
    pub fn ready(&mut self, conn: ConnId) -> Result<(), Invalid> {
        let id = conn.0;
        if self.state(id)? != State::RepReceived {
            return Err(Invalid);
        }
        self.enter(id, State::Established);
        let (tid, local, remote) = self.ids(id);
        self.send(id, Mad::with_ids(Kind::Rtu, tid, local, remote));
        Ok(())
    }

    /// Refuses a connection, or gives one up that is not complete.
    ///
    /// # Errors
    /// [`Invalid`] in another state, or for too much private data.
    pub fn reject(
        &mut self,
        conn: ConnId,
        reason: Reason,
        private: &[u8],
        now: Instant,
    ) -> Result<(), Invalid> {
        let id = conn.0;
        fits(private, REJ_PRIVATE_LEN)?;
        match self.state(id)? {
            State::ReqSent | State::ReqReceived | State::RepReceived => {
                self.send_rej(id, reason, private);
                self.remove(id);
            }
            State::RepSent => {
                self.send_rej(id, reason, private);
                self.enter_timewait(id, now);
            }
            _ => return Err(Invalid),
        }
        Ok(())
    }

    /// Ends a connection, or agrees that it ends.
    ///
    /// # Errors
    /// [`Invalid`] in another state.
    pub fn disconnect(&mut self, conn: ConnId, now: Instant) -> Result<(), Invalid> {
        let id = conn.0;
        match self.state(id)? {
            State::Established => self.send_dreq(id, now),
            State::DreqReceived => self.send_drep(id, now),
            _ => return Err(Invalid),
        }
        Ok(())
    }

    fn send_dreq(&mut self, id: u32, now: Instant) {
        let tid = self.new_tid(id);
        let (_, local, remote) = self.ids(id);
        let mut mad = Mad::with_ids(Kind::Dreq, tid, local, remote);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = State::DreqSent;
            mad.set_u24(8, conn.remote_qpn);
        }
        self.request(id, mad, now);
    }

    fn send_drep(&mut self, id: u32, now: Instant) {
        let (tid, local, remote) = self.ids(id);
        self.send(id, Mad::with_ids(Kind::Drep, tid, local, remote));
        self.enter_timewait(id, now);
    }

    /// The program saw a message on a connection whose RTU has not come: that says the same.
    ///
    /// # Errors
    /// Whether it is established already, else [`Invalid`].
    pub fn notify_established(&mut self, conn: ConnId) -> Result<bool, Invalid> {
        match self.state(conn.0)? {
            State::RepSent => {
                self.enter(conn.0, State::Established);
                self.tell(conn.0, Event::Established(conn));
                Ok(true)
            }
            State::Established => Ok(false),
            _ => Err(Invalid),
        }
    }

    /// Asks which queue pair serves a datagram service.
    ///
    /// # Errors
    /// [`Invalid`] for too much private data, or when there are too many conversations.
    pub fn sidr_request(
        &mut self,
        path: Path,
        service_id: u64,
        private: &[u8],
        now: Instant,
    ) -> Result<ConnId, Invalid> {
        fits(private, SIDR_REQ_PRIVATE_LEN)?;
        let id = self.insert(sidr(State::SidrReqSent, path, 0, service_id)).ok_or(Invalid)?;
        let tid = self.new_tid(id);
        self.request(id, sidr_req(tid, id, service_id, private), now);
        Ok(ConnId(id))
    }

    /// Answers which it is.
    ///
    /// # Errors
    /// [`Invalid`] in another state, or for too much private data.
    pub fn sidr_reply(&mut self, conn: ConnId, params: SidrReplyParams) -> Result<(), Invalid> {
        fits(&params.private, SIDR_REP_PRIVATE_LEN)?;
        if self.state(conn.0)? != State::SidrReqReceived {
            return Err(Invalid);
        }
        self.send_sidr_rep(conn.0, params);
        Ok(())
    }

    fn send_sidr_rep(&mut self, id: u32, params: SidrReplyParams) {
        let Some(conn) = self.conns.get(&id) else { return };
        let rep = SidrRep {
            request_id: conn.remote_id,
            status: params.status,
            qpn: params.qpn,
            service_id: conn.service_id,
            qkey: params.qkey,
            private: params.private,
        };
        let mad = rep.emit(conn.tid);
        self.send(id, mad);
        self.remove(id);
    }

    /// The layer above is done with a conversation: the peer is told, and it ends by itself.
    pub fn destroy(&mut self, conn: ConnId, now: Instant) {
        let id = conn.0;
        let Ok(state) = self.state(id) else { return };
        match state {
            State::ReqSent => {
                self.send_rej(id, Reason::TIMEOUT, &[]);
                self.remove(id);
            }
            State::ReqReceived | State::RepReceived => {
                self.send_rej(id, Reason::CONSUMER_DEFINED, &[]);
                self.remove(id);
            }
            State::RepSent => {
                self.send_rej(id, Reason::CONSUMER_DEFINED, &[]);
                self.enter_timewait(id, now);
            }
            State::Established => self.send_dreq(id, now),
            State::DreqReceived => self.send_drep(id, now),
            State::SidrReqReceived => {
                let status = SidrStatus::REJECT;
                let private = Vec::new();
                self.send_sidr_rep(id, SidrReplyParams { status, qpn: 0, qkey: 0, private });
            }
            State::SidrReqSent => self.remove(id),
            State::DreqSent | State::Timewait => {}
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.detached = true;
        }
    }

    /// A MAD arrived on queue pair 1 along `path`, which is the way back.
    pub fn receive(&mut self, path: Path, mad: &[u8; MAD_LEN], now: Instant) {
        let mad = Mad(*mad);
        let Some(kind) = mad.kind() else { return };
        match kind {
            Kind::Req => self.receive_req(path, &mad),
            Kind::SidrReq => self.receive_sidr_req(path, &mad),
            Kind::SidrRep => self.receive_sidr_rep(path, &mad),
            Kind::Rej => self.receive_rej(path, &mad, now),
            Kind::Dreq => self.receive_dreq(path, &mad, now),
            Kind::Rep => {
                if let Some(id) = self.find(path, mad.remote_id()) {
                    self.receive_rep(id, &mad);
                }
            }
            Kind::Mra | Kind::Rtu | Kind::Drep => {
                let Some(id) = self.find_both(path, &mad) else { return };
                match kind {
                    Kind::Mra => self.receive_mra(id, &mad, now),
                    Kind::Rtu => self.receive_rtu(id),
                    _ => self.receive_drep(id, now),
                }
            }
        }
    }

    /// The conversation that we named so, with the peer at the end of `path`.
    fn find(&self, path: Path, id: u32) -> Option<u32> {
        let conn = self.conns.get(&id)?;
        (conn.path.remote == path.remote).then_some(id)
    }

    /// The same, if the peer names it as it did before.
    fn find_both(&self, path: Path, mad: &Mad) -> Option<u32> {
        let id = self.find(path, mad.remote_id())?;
        let known = self.conns.get(&id)?.remote_id;
        (known == 0 || known == mad.local_id()).then_some(id)
    }

    fn receive_req(&mut self, path: Path, mad: &Mad) {
        let Some(req) = Req::parse(mad) else { return };
        let theirs = (req.local_id, req.ca_guid, path.remote);
        if let Some(id) = self.begun.get(&theirs).copied() {
            return self.receive_req_again(id);
        }
        let conn = Conn {
            state: State::ReqReceived,
            path,
            tid: mad.tid(),
            remote_id: req.local_id,
            remote_guid: req.ca_guid,
            remote_qpn: req.qpn,
            service_id: req.service_id,
            transport: req.transport,
            detached: false,
            last: None,
            retries_left: 0,
            patience: duration(req.local_timeout),
            retries: req.max_retries,
            timewait: duration(req.ack_timeout),
            deadline: None,
        };
        let Some(id) = self.insert(conn) else { return };
        self.begun.insert(theirs, id);
        self.events.push_back(Event::Request(Box::new(Request {
            conn: ConnId(id),
            path,
            service_id: req.service_id,
            transport: req.transport,
            qpn: req.qpn,
            psn: req.psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            mtu: req.mtu,
            ack_timeout: req.ack_timeout,
            flow_label: req.flow_label,
            traffic_class: req.traffic_class,
            hop_limit: req.hop_limit,
            remote_gid: req.local_gid,
            ece: req.ece,
            private: req.private,
        })));
    }

    /// The peer repeats its REQ: our answer was lost, or is not there yet.
    fn receive_req_again(&mut self, id: u32) {
        match self.conns.get(&id).map(|conn| conn.state) {
            Some(State::ReqReceived) => self.send_mra(id, About::Req),
            Some(State::RepSent) => self.repeat(id),
            Some(State::Timewait) => self.send_rej(id, Reason::STALE_CONN, &[]),
            _ => {}
        }
    }

    fn send_mra(&mut self, id: u32, about: About) {
        let (tid, local, remote) = self.ids(id);
        let mut mad = Mad::with_ids(Kind::Mra, tid, local, remote);
        mad.set(8, &[(about as u8) << 6, THINKING_TIME << 3]);
        if let Some(conn) = self.conns.get(&id) {
            self.out.push_back((conn.path, mad));
        }
    }

    fn repeat(&mut self, id: u32) {
        if let Some(conn) = self.conns.get(&id)
            && let Some(mad) = &conn.last
        {
            self.out.push_back((conn.path, mad.clone()));
        }
    }

    fn receive_rep(&mut self, id: u32, mad: &Mad) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        match conn.state {
            State::ReqSent => {}
            State::RepReceived => return self.send_mra(id, About::Rep),
            State::Established if conn.remote_id == mad.local_id() => return self.repeat(id),
            _ => return,
        }
        let rep = Rep::parse(mad, conn.transport == Transport::Xrc);
        conn.remote_id = rep.local_id;
        conn.remote_guid = rep.ca_guid;
        conn.remote_qpn = rep.qpn;
        self.enter(id, State::RepReceived);
        let reply = Reply {
            conn: ConnId(id),
            qpn: rep.qpn,
            psn: rep.psn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            ece: rep.ece,
            private: rep.private,
        };
        self.tell(id, Event::Reply(Box::new(reply)));
    }

    fn receive_rtu(&mut self, id: u32) {
        if self.conns.get(&id).is_some_and(|conn| conn.state == State::RepSent) {
            self.enter(id, State::Established);
            self.tell(id, Event::Established(ConnId(id)));
        }
    }

    /// The peer received our message and needs more time.
    fn receive_mra(&mut self, id: u32, mad: &Mad, now: Instant) {
        let Some(conn) = self.conns.get(&id) else { return };
        let about = mad.u8(8) >> 6;
        let awaited = match conn.state {
            State::ReqSent => About::Req,
            State::RepSent => About::Rep,
            _ => return,
        };
        if about == awaited as u8 {
            let at = now + duration(mad.u8(9) >> 3) + conn.patience;
            self.set_deadline(id, Some(at));
        }
    }

    fn receive_rej(&mut self, path: Path, mad: &Mad, now: Instant) {
        let reason = Reason(mad.u16(10));
        let found = match mad.remote_id() {
            // Who gave up before it heard from us does not know our name for it, but says its own.
            0 if reason == Reason::TIMEOUT => {
                let theirs = (mad.local_id(), mad.u64(12), path.remote);
                self.begun.get(&theirs).copied()
            }
            _ => self.find_both(path, mad),
        };
        let Some(id) = found else { return };
        let event = Event::Refused(Box::new(Refused {
            conn: ConnId(id),
            reason,
            private: mad.private(84, REJ_PRIVATE_LEN),
        }));
        let Some(state) = self.conns.get(&id).map(|conn| conn.state) else { return };
        match state {
            State::ReqSent | State::ReqReceived | State::RepSent => {
                self.tell(id, event);
                self.remove(id);
            }
            State::RepReceived | State::Established | State::DreqSent => {
                self.enter_timewait(id, now);
                self.tell(id, event);
            }
            _ => {}
        }
    }

    fn receive_dreq(&mut self, path: Path, mad: &Mad, now: Instant) {
        let Some(id) = self.find_both(path, mad) else {
            // Whatever it was, it is over.
            let drep = Mad::with_ids(Kind::Drep, mad.tid(), mad.remote_id(), mad.local_id());
            return self.out.push_back((path, drep));
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.tid = mad.tid();
        match conn.state {
            State::RepSent | State::Established => {
                self.enter(id, State::DreqReceived);
                self.tell(id, Event::DisconnectRequested(ConnId(id)));
            }
            State::DreqSent => {
                // Both want the same.
                self.tell(id, Event::DisconnectRequested(ConnId(id)));
                self.send_drep(id, now);
            }
            State::Timewait => {
                let (tid, local, remote) = self.ids(id);
                self.send(id, Mad::with_ids(Kind::Drep, tid, local, remote));
            }
            _ => {}
        }
    }

    fn receive_drep(&mut self, id: u32, now: Instant) {
        if self.conns.get(&id).is_some_and(|conn| conn.state == State::DreqSent) {
            self.tell(id, Event::Disconnected(ConnId(id)));
            self.enter_timewait(id, now);
        }
    }

    fn receive_sidr_req(&mut self, path: Path, mad: &Mad) {
        let theirs = (mad.u32(0), 0, path.remote);
        if self.begun.contains_key(&theirs) {
            return;
        }
        let service_id = mad.u64(8);
        let mut conn = sidr(State::SidrReqReceived, path, mad.u32(0), service_id);
        conn.tid = mad.tid();
        let Some(id) = self.insert(conn) else { return };
        self.begun.insert(theirs, id);
        self.events.push_back(Event::SidrRequest(Box::new(SidrRequest {
            conn: ConnId(id),
            path,
            service_id,
            private: mad.private(16, SIDR_REQ_PRIVATE_LEN),
        })));
    }

    fn receive_sidr_rep(&mut self, path: Path, mad: &Mad) {
        let rep = SidrRep::parse(mad);
        let Some(id) = self.find(path, rep.request_id) else { return };
        if self.conns.get(&id).is_none_or(|conn| conn.state != State::SidrReqSent) {
            return;
        }
        let reply = SidrReply {
            conn: ConnId(id),
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            private: rep.private,
        };
        self.tell(id, Event::SidrReply(Box::new(reply)));
        self.remove(id);
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.first().copied()
            && at <= now
        {
            self.expire(id, now);
        }
    }

    fn expire(&mut self, id: u32, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let event = ConnId(id);
        if conn.state == State::Timewait {
            self.tell(id, Event::TimewaitExit(event));
            return self.remove(id);
        }
        if conn.retries_left > 0 {
            conn.retries_left -= 1;
            let again = now + conn.patience;
            self.repeat(id);
            return self.set_deadline(id, Some(again));
        }
        match conn.state {
            State::ReqSent | State::RepSent => {
                self.tell(id, Event::Unreachable(event));
                self.send_rej(id, Reason::TIMEOUT, &[]);
                self.remove(id);
            }
            State::SidrReqSent => {
                self.tell(id, Event::SidrUnanswered(event));
                self.remove(id);
            }
            State::DreqSent => {
                self.enter_timewait(id, now);
                self.tell(id, Event::DisconnectUnanswered(event));
            }
            _ => self.set_deadline(id, None),
        }
    }
}

/// A conversation about a datagram service.
fn sidr(state: State, path: Path, remote_id: u32, service_id: u64) -> Conn {
    Conn {
        state,
        path,
        tid: 0,
        remote_id,
        remote_guid: 0,
        remote_qpn: 0,
        service_id,
        transport: Transport::Rc,
        detached: false,
        last: None,
        retries_left: RETRIES,
        patience: duration(RESPONSE_TIMEOUT),
        retries: RETRIES,
        timewait: Duration::ZERO,
        deadline: None,
    }
}
