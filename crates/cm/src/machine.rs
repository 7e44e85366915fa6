//! The state machine: its tables, and the calls from above.

use crate::conn::{Conn, ConnState, RESPONSE_TIMEOUT, RETRIES, duration, sidr};
use crate::event::Event;
use crate::pace::Pace;
use crate::params::{
    Adapter, Config, ConnId, ConnectParams, Invalid, Path, ReplyParams, SidrReplyParams,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;
use wire::cm::{
    About, Dreq, Ids, Kind, Mad, REJ_INFO_LEN, REJ_PRIVATE_LEN, REP_PRIVATE_LEN, REQ_PRIVATE_LEN,
    Reason, Rej, Rep, Req, SIDR_REP_PRIVATE_LEN, SIDR_REQ_PRIVATE_LEN, SidrRep, SidrReq,
    SidrStatus, Transport,
};
use wire::mad::MAD_LEN;

/// Conversations that may exist at once, so that a stranger cannot fill the memory.
const MAX_CONNS: usize = 1 << 17;

/// Queue pair numbers have 24 bits.
const MAX_QPN: u32 = 0xff_ffff;

/// The connection manager of a host, whose adapters share it, as in Linux: a conversation is of the
/// adapter that its path begins at.
pub struct Cm {
    config: Config,
    adapters: HashMap<usize, Adapter>,
    pub(crate) conns: HashMap<u32, Conn>,
    /// Conversations begun by peers: their id, their GUID (0 for datagram services) and address.
    pub(crate) begun: HashMap<(u32, u64, IpAddr), u32>,
    /// Conversations by the peer's queue pair, GUID and address, as long as the queue pair is in
    /// use: a peer that uses it for another connection has forgotten this one.
    pub(crate) queue_pairs: HashMap<(u32, u64, IpAddr), u32>,
    pub(crate) deadlines: BTreeSet<(Instant, u32)>,
    /// How fast REPs are repeated.
    pub(crate) pace: Pace,
    pub(crate) out: VecDeque<(Path, Mad)>,
    pub(crate) events: VecDeque<Event>,
    next_id: u32,
}

/// Private data as long as its place in the message.
fn padded<const N: usize>(private: &[u8]) -> Result<[u8; N], Invalid> {
    let mut out = [0; N];
    out.get_mut(..private.len()).ok_or(Invalid)?.copy_from_slice(private);
    Ok(out)
}

impl Cm {
    /// A manager without conversations.
    pub fn new(config: Config) -> Cm {
        Cm {
            config,
            adapters: HashMap::new(),
            conns: HashMap::new(),
            begun: HashMap::new(),
            queue_pairs: HashMap::new(),
            deadlines: BTreeSet::new(),
            pace: Pace::default(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            next_id: config.seed as u32,
        }
    }

    /// Conversations that begin from now on may be of this adapter.
    pub fn attach(&mut self, number: usize, adapter: Adapter) {
        self.adapters.insert(number, adapter);
    }

    /// GUID of the adapter that a path begins at.
    fn guid(&self, path: &Path) -> u64 {
        self.adapters.get(&path.adapter).map_or(0, |adapter| adapter.ca_guid)
    }

    /// The next message to send, and where to.
    pub fn poll_transmit(&mut self) -> Option<(Path, [u8; MAD_LEN])> {
        self.out.pop_front().map(|(path, mad)| (path, *mad.bytes()))
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

    /// Names a new conversation; none where there are too many, or the adapter is unknown.
    pub(crate) fn insert(&mut self, conn: Conn) -> Option<u32> {
        let prefix = self.adapters.get(&conn.path.adapter)?.id_prefix;
        if self.conns.len() >= MAX_CONNS {
            return None;
        }
        let mask = (1 << self.config.id_bits) - 1;
        loop {
            self.next_id = self.next_id.wrapping_add(1);
            let id = prefix | self.next_id & mask;
            if id != 0 && !self.conns.contains_key(&id) {
                self.conns.insert(id, conn);
                return Some(id);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: u32) {
        let Some(conn) = self.conns.remove(&id) else { return };
        if let Some(at) = conn.deadline {
            self.deadlines.remove(&(at, id));
        }
        let theirs = (conn.remote_id, conn.remote_guid, conn.path.remote);
        if self.begun.get(&theirs) == Some(&id) {
            self.begun.remove(&theirs);
        }
        self.free_queue_pair(&conn, id);
    }

    /// The peer may use its queue pair for something else.
    fn free_queue_pair(&mut self, conn: &Conn, id: u32) {
        let theirs = (conn.remote_qpn, conn.remote_guid, conn.path.remote);
        if self.queue_pairs.get(&theirs) == Some(&id) {
            self.queue_pairs.remove(&theirs);
        }
    }

    pub(crate) fn set_deadline(&mut self, id: u32, at: Option<Instant>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut conn.deadline, at) {
            self.deadlines.remove(&(before, id));
        }
        if let Some(at) = at {
            self.deadlines.insert((at, id));
        }
    }

    pub(crate) fn tell(&mut self, id: u32, event: Event) {
        if self.conns.get(&id).is_some_and(|conn| !conn.detached) {
            self.events.push_back(event);
        }
    }

    /// Sends a message that needs no answer.
    pub(crate) fn send(&mut self, id: u32, mad: Mad) {
        if let Some(conn) = self.conns.get_mut(&id) {
            self.out.push_back((conn.path, mad.clone()));
            conn.last = Some(mad);
        }
    }

    /// Sends a message and repeats it until it is answered.
    fn request(&mut self, id: u32, mad: Mad, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.retries_left = conn.retries;
        conn.granted = None;
        let at = now + conn.patience;
        self.send(id, mad);
        self.set_deadline(id, Some(at));
    }

    fn state(&self, id: u32) -> Result<ConnState, Invalid> {
        let conn = self.conns.get(&id).filter(|conn| !conn.detached).ok_or(Invalid)?;
        Ok(conn.state)
    }

    /// Goes to `state`, in which nothing is awaited.
    pub(crate) fn enter(&mut self, id: u32, state: ConnState) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = state;
        }
        self.set_deadline(id, None);
    }

    pub(crate) fn enter_timewait(&mut self, id: u32, now: Instant) {
        let Some(mut conn) = self.conns.remove(&id) else { return };
        conn.state = ConnState::Timewait;
        self.free_queue_pair(&conn, id);
        let until = now + conn.timewait;
        self.conns.insert(id, conn);
        self.set_deadline(id, Some(until));
    }

    pub(crate) fn ids(&self, id: u32) -> (u64, Ids) {
        let (tid, remote) = self.conns.get(&id).map_or((0, 0), |conn| (conn.tid, conn.remote_id));
        (tid, Ids { local: id, remote })
    }

    pub(crate) fn send_rej(&mut self, id: u32, reason: Reason, private: [u8; REJ_PRIVATE_LEN]) {
        let Some(conn) = self.conns.get(&id) else { return };
        let about = match conn.state {
            ConnState::ReqReceived => About::REQ,
            ConnState::RepReceived => About::REP,
            _ => About::OTHER,
        };
        let mut info = [0; REJ_INFO_LEN];
        let guid = self.guid(&conn.path).to_be_bytes();
        // Who gives up waiting says who it is: the peer may not know our id (IBA table 109).
        let info_len = if reason == Reason::TIMEOUT { guid.len() } else { 0 };
        for (to, from) in info.iter_mut().zip(&guid[..info_len]) {
            *to = *from;
        }
        let (tid, ids) = self.ids(id);
        let rej = Rej { ids, about, reason, info_len: info_len as u8, info, private };
        self.send(id, rej.emit(tid));
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// [`Invalid`] for too much private data, or when there are too many conversations.
    pub fn connect(&mut self, params: ConnectParams, now: Instant) -> Result<ConnId, Invalid> {
        let private: [u8; REQ_PRIVATE_LEN] = padded(&params.private)?;
        let conn = Conn {
            state: ConnState::ReqSent,
            path: params.path,
            tid: 0,
            remote_id: 0,
            remote_guid: 0,
            remote_qpn: 0,
            local_qpn: params.qpn & MAX_QPN,
            service_id: params.service_id,
            transport: params.transport,
            detached: false,
            last: None,
            retries_left: RETRIES,
            patience: duration(RESPONSE_TIMEOUT)
                + 2 * duration(params.ack_timeout.saturating_sub(1)),
            granted: None,
            retries: RETRIES,
            timewait: duration(params.ack_timeout),
            deadline: None,
        };
        let id = self.insert(conn).ok_or(Invalid)?;
        let tid = self.new_tid(id);
        let req = Req {
            local_id: id,
            service_id: params.service_id,
            ca_guid: self.guid(&params.path),
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
            private,
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
        let private: [u8; REP_PRIVATE_LEN] = padded(&params.private)?;
        if self.state(id)? != ConnState::ReqReceived {
            return Err(Invalid);
        }
        let Some(found) = self.conns.get_mut(&id) else { return Err(Invalid) };
        found.state = ConnState::RepSent;
        found.local_qpn = params.qpn & MAX_QPN;
        let path = found.path;
        let xrc = found.transport == Transport::Xrc;
        let (tid, ids) = self.ids(id);
        let (qpn, xrc_qpn) = if xrc { (0, params.qpn) } else { (params.qpn, 0) };
        let rep = Rep {
            ids,
            qpn,
            xrc_qpn,
            psn: params.psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            flow_control: params.flow_control,
            rnr_retry_count: params.rnr_retry_count.min(7),
            srq: params.srq || xrc,
            ca_guid: self.guid(&path),
            ece: params.ece,
            private,
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
        if self.state(id)? != ConnState::RepReceived {
            return Err(Invalid);
        }
        self.enter(id, ConnState::Established);
        let (tid, ids) = self.ids(id);
        self.send(id, Mad::with_ids(Kind::Rtu, tid, ids));
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
        let private: [u8; REJ_PRIVATE_LEN] = padded(private)?;
        match self.state(id)? {
            ConnState::ReqSent | ConnState::ReqReceived | ConnState::RepReceived => {
                self.send_rej(id, reason, private);
                self.remove(id);
            }
            ConnState::RepSent => {
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
            ConnState::Established => self.send_dreq(id, now),
            ConnState::DreqReceived => self.send_drep(id, now),
            _ => return Err(Invalid),
        }
        Ok(())
    }

    pub(crate) fn send_dreq(&mut self, id: u32, now: Instant) {
        let tid = self.new_tid(id);
        let (_, ids) = self.ids(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.state = ConnState::DreqSent;
        let dreq = Dreq { ids, remote_qpn: conn.remote_qpn };
        self.request(id, dreq.emit(tid), now);
    }

    pub(crate) fn send_drep(&mut self, id: u32, now: Instant) {
        let (tid, ids) = self.ids(id);
        self.send(id, Mad::with_ids(Kind::Drep, tid, ids));
        self.enter_timewait(id, now);
    }

    /// The program saw a message on a connection whose RTU has not come: that says the same.
    ///
    /// # Errors
    /// Whether it is established already, else [`Invalid`].
    pub fn notify_established(&mut self, conn: ConnId) -> Result<bool, Invalid> {
        match self.state(conn.0)? {
            ConnState::RepSent => {
                self.enter(conn.0, ConnState::Established);
                self.tell(conn.0, Event::Established(conn));
                Ok(true)
            }
            ConnState::Established => Ok(false),
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
        let private: [u8; SIDR_REQ_PRIVATE_LEN] = padded(private)?;
        let id = self.insert(sidr(ConnState::SidrReqSent, path, 0, service_id)).ok_or(Invalid)?;
        let tid = self.new_tid(id);
        self.request(id, SidrReq { request_id: id, service_id, private }.emit(tid), now);
        Ok(ConnId(id))
    }

    /// Answers which it is.
    ///
    /// # Errors
    /// [`Invalid`] in another state, or for too much private data.
    pub fn sidr_reply(&mut self, conn: ConnId, params: SidrReplyParams) -> Result<(), Invalid> {
        let private = padded(&params.private)?;
        if self.state(conn.0)? != ConnState::SidrReqReceived {
            return Err(Invalid);
        }
        self.send_sidr_rep(conn.0, &params, private);
        Ok(())
    }

    fn send_sidr_rep(
        &mut self,
        id: u32,
        params: &SidrReplyParams,
        private: [u8; SIDR_REP_PRIVATE_LEN],
    ) {
        let Some(conn) = self.conns.get(&id) else { return };
        let rep = SidrRep {
            request_id: conn.remote_id,
            status: params.status,
            qpn: params.qpn,
            service_id: conn.service_id,
            qkey: params.qkey,
            private,
        };
        let mad = rep.emit(conn.tid);
        self.send(id, mad);
        self.remove(id);
    }

    /// Forgets a request for which there is no room now, as if it had been lost: the peer repeats
    /// it.
    pub fn ignore(&mut self, conn: ConnId) {
        if self.state(conn.0) == Ok(ConnState::ReqReceived) {
            self.remove(conn.0);
        }
    }

    /// The layer above is done with a conversation: the peer hears of it, and it ends by itself.
    pub fn destroy(&mut self, conn: ConnId, now: Instant) {
        let id = conn.0;
        let Ok(state) = self.state(id) else { return };
        match state {
            ConnState::ReqSent => {
                self.send_rej(id, Reason::TIMEOUT, [0; REJ_PRIVATE_LEN]);
                self.remove(id);
            }
            ConnState::ReqReceived | ConnState::RepReceived => {
                self.send_rej(id, Reason::CONSUMER_DEFINED, [0; REJ_PRIVATE_LEN]);
                self.remove(id);
            }
            ConnState::RepSent => {
                self.send_rej(id, Reason::CONSUMER_DEFINED, [0; REJ_PRIVATE_LEN]);
                self.enter_timewait(id, now);
            }
            ConnState::Established => self.send_dreq(id, now),
            ConnState::DreqReceived => self.send_drep(id, now),
            ConnState::SidrReqReceived => {
                let status = SidrStatus::REJECT;
                let params = SidrReplyParams { status, qpn: 0, qkey: 0, private: Vec::new() };
                self.send_sidr_rep(id, &params, [0; SIDR_REP_PRIVATE_LEN]);
            }
            ConnState::SidrReqSent => self.remove(id),
            ConnState::DreqSent | ConnState::Timewait => {}
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.detached = true;
        }
    }
}
