//! What comes from outside: the peer's messages, and time.

use crate::conn::{Conn, ConnState, duration, sidr};
use crate::event::{Event, Refused, Reply, Request, SidrReply, SidrRequest};
use crate::machine::Cm;
use crate::params::{ConnId, Path};
use std::time::Instant;
use wire::cm::{
    About, Dreq, Ids, Kind, Mad, Mra, REJ_INFO_LEN, REJ_PRIVATE_LEN, Reason, Rej, Rep, Req,
    SidrRep, SidrReq, Transport,
};
use wire::mad::MAD_LEN;

/// How long a program may think about a request: about a minute (`CMA_CM_MRA_SETTING`).
const THINKING_TIME: u8 = 24;

impl Cm {
    /// A MAD arrived on queue pair 1 along `path`, which is the way back.
    pub fn receive(&mut self, path: Path, mad: &[u8; MAD_LEN], now: Instant) {
        let mad = Mad::from_bytes(mad);
        let Some(kind) = mad.kind() else { return };
        match kind {
            Kind::Req => self.receive_req(path, &mad, now),
            Kind::SidrReq => self.receive_sidr_req(path, &mad),
            Kind::SidrRep => self.receive_sidr_rep(path, &mad),
            Kind::Rej => self.receive_rej(path, &mad, now),
            Kind::Dreq => self.receive_dreq(path, &mad, now),
            Kind::Rep => self.receive_rep(path, &mad, now),
            Kind::Mra => self.receive_mra(path, &mad, now),
            Kind::Rtu => {
                if let Some(id) = self.find_both(path, mad.ids()) {
                    self.receive_rtu(id);
                }
            }
            Kind::Drep => {
                if let Some(id) = self.find_both(path, mad.ids()) {
                    self.receive_drep(id, now);
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
    fn find_both(&self, path: Path, ids: Ids) -> Option<u32> {
        let id = self.find(path, ids.remote)?;
        let known = self.conns.get(&id)?.remote_id;
        (known == 0 || known == ids.local).then_some(id)
    }

    fn receive_req(&mut self, path: Path, mad: &Mad, now: Instant) {
        let Some(req) = Req::parse(mad) else { return };
        let theirs = (req.local_id, req.ca_guid, path.remote);
        if let Some(id) = self.begun.get(&theirs).copied() {
            return self.receive_req_again(id);
        }
        let queue_pair = (req.qpn, req.ca_guid, path.remote);
        if let Some(stale) = self.queue_pairs.get(&queue_pair).copied() {
            let ids = Ids { local: 0, remote: req.local_id };
            self.refuse(path, mad.tid(), About::REQ, ids, Reason::STALE_CONN);
            return self.end_stale(stale, now);
        }
        let conn = Conn {
            state: ConnState::ReqReceived,
            path,
            tid: mad.tid(),
            remote_id: req.local_id,
            remote_guid: req.ca_guid,
            remote_qpn: req.qpn,
            local_qpn: 0,
            service_id: req.service_id,
            transport: req.transport,
            detached: false,
            last: None,
            retries_left: 0,
            patience: duration(req.local_timeout),
            granted: None,
            retries: req.max_retries,
            timewait: duration(req.ack_timeout),
            deadline: None,
        };
        let Some(id) = self.insert(conn) else { return };
        self.begun.insert(theirs, id);
        self.queue_pairs.insert(queue_pair, id);
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
            private: req.private.to_vec(),
        })));
    }

    /// The peer repeats its REQ: our answer was lost, or is not there yet.
    fn receive_req_again(&mut self, id: u32) {
        match self.conns.get(&id).map(|conn| conn.state) {
            Some(ConnState::ReqReceived) => self.send_mra(id, About::REQ),
            Some(ConnState::RepSent) => self.repeat(id),
            Some(ConnState::Timewait) => {
                self.send_rej(id, Reason::STALE_CONN, [0; REJ_PRIVATE_LEN])
            }
            _ => {}
        }
    }

    /// Refuses a message for which there is no conversation.
    fn refuse(&mut self, path: Path, tid: u64, about: About, ids: Ids, reason: Reason) {
        let rej = Rej {
            ids,
            about,
            reason,
            info_len: 0,
            info: [0; REJ_INFO_LEN],
            private: [0; REJ_PRIVATE_LEN],
        };
        self.out.push_back((path, rej.emit(tid)));
    }

    /// The peer forgot this connection, or never ended it: it ends now.
    fn end_stale(&mut self, id: u32, now: Instant) {
        if self.conns.get(&id).is_some_and(|conn| conn.state == ConnState::Established) {
            self.send_dreq(id, now);
        }
    }

    fn send_mra(&mut self, id: u32, about: About) {
        let (tid, ids) = self.ids(id);
        let mad = Mra { ids, about, service_timeout: THINKING_TIME }.emit(tid);
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

    fn receive_rep(&mut self, path: Path, mad: &Mad, now: Instant) {
        let Some(rep) = Rep::parse(mad) else { return };
        let Some(id) = self.find(path, rep.ids.remote) else {
            // Whoever asked is gone, perhaps killed: the peer need not repeat it (IBA 12.9.8.7.1).
            let ids = Ids { local: rep.ids.remote, remote: rep.ids.local };
            return self.refuse(path, mad.tid(), About::REP, ids, Reason::INVALID_COMM_ID);
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        match conn.state {
            ConnState::ReqSent => {}
            ConnState::RepReceived => return self.send_mra(id, About::REP),
            ConnState::Established if conn.remote_id == rep.ids.local => return self.repeat(id),
            _ => return,
        }
        let qpn = if conn.transport == Transport::Xrc { rep.xrc_qpn } else { rep.qpn };
        let queue_pair = (qpn, rep.ca_guid, path.remote);
        if let Some(stale) = self.queue_pairs.get(&queue_pair).copied() {
            let ids = Ids { local: id, remote: rep.ids.local };
            self.refuse(path, mad.tid(), About::REP, ids, Reason::STALE_CONN);
            return self.end_stale(stale, now);
        }
        conn.remote_id = rep.ids.local;
        conn.remote_guid = rep.ca_guid;
        conn.remote_qpn = qpn;
        self.queue_pairs.insert(queue_pair, id);
        self.enter(id, ConnState::RepReceived);
        let reply = Reply {
            conn: ConnId(id),
            qpn,
            psn: rep.psn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            ece: rep.ece,
            private: rep.private.to_vec(),
        };
        self.tell(id, Event::Reply(Box::new(reply)));
    }

    fn receive_rtu(&mut self, id: u32) {
        if self.conns.get(&id).is_some_and(|conn| conn.state == ConnState::RepSent) {
            self.enter(id, ConnState::Established);
            self.tell(id, Event::Established(ConnId(id)));
        }
    }

    /// The peer received our message and needs more time.
    fn receive_mra(&mut self, path: Path, mad: &Mad, now: Instant) {
        let Some(mra) = Mra::parse(mad) else { return };
        let Some(id) = self.find_both(path, mra.ids) else { return };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let awaited = match conn.state {
            ConnState::ReqSent => About::REQ,
            ConnState::RepSent => About::REP,
            _ => return,
        };
        // Once for each message, or the wait would have no end.
        if mra.about == awaited && conn.granted.is_none() {
            let longer = duration(mra.service_timeout) + conn.patience;
            conn.granted = Some(longer);
            self.set_deadline(id, Some(now + longer));
        }
    }

    fn receive_rej(&mut self, path: Path, mad: &Mad, now: Instant) {
        let Some(rej) = Rej::parse(mad) else { return };
        let reason = rej.reason;
        let found = match rej.ids.remote {
            // Who gave up before it heard from us does not know our name for it, but says its own.
            0 if reason == Reason::TIMEOUT => {
                let theirs = (rej.ids.local, rej.ca_guid(), path.remote);
                self.begun.get(&theirs).copied()
            }
            _ => self.find_both(path, rej.ids),
        };
        let Some(id) = found else { return };
        let event = Event::Refused(Box::new(Refused {
            conn: ConnId(id),
            reason,
            private: rej.private.to_vec(),
        }));
        let Some(state) = self.conns.get(&id).map(|conn| conn.state) else { return };
        match state {
            ConnState::ReqSent | ConnState::ReqReceived | ConnState::RepSent
                if reason != Reason::STALE_CONN =>
            {
                self.tell(id, event);
                self.remove(id);
            }
            ConnState::DreqReceived
            | ConnState::Timewait
            | ConnState::SidrReqSent
            | ConnState::SidrReqReceived => {}
            _ => {
                self.enter_timewait(id, now);
                self.tell(id, event);
            }
        }
    }

    fn receive_dreq(&mut self, path: Path, mad: &Mad, now: Instant) {
        let Some(dreq) = Dreq::parse(mad) else { return };
        let Some(id) = self.find_both(path, dreq.ids) else {
            // Whatever it was, it is over.
            let ids = Ids { local: dreq.ids.remote, remote: dreq.ids.local };
            let drep = Mad::with_ids(Kind::Drep, mad.tid(), ids);
            return self.out.push_back((path, drep));
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.local_qpn != dreq.remote_qpn {
            return;
        }
        conn.tid = mad.tid();
        match conn.state {
            ConnState::RepSent | ConnState::Established => {
                self.enter(id, ConnState::DreqReceived);
                self.tell(id, Event::DisconnectRequested(ConnId(id)));
            }
            ConnState::DreqSent => {
                // Both want the same.
                self.tell(id, Event::DisconnectRequested(ConnId(id)));
                self.send_drep(id, now);
            }
            ConnState::Timewait => {
                let (tid, ids) = self.ids(id);
                self.send(id, Mad::with_ids(Kind::Drep, tid, ids));
            }
            _ => {}
        }
    }

    fn receive_drep(&mut self, id: u32, now: Instant) {
        if self.conns.get(&id).is_some_and(|conn| conn.state == ConnState::DreqSent) {
            self.tell(id, Event::Disconnected(ConnId(id)));
            self.enter_timewait(id, now);
        }
    }

    fn receive_sidr_req(&mut self, path: Path, mad: &Mad) {
        let Some(req) = SidrReq::parse(mad) else { return };
        let theirs = (req.request_id, 0, path.remote);
        if self.begun.contains_key(&theirs) {
            return;
        }
        let mut conn = sidr(ConnState::SidrReqReceived, path, req.request_id, req.service_id);
        conn.tid = mad.tid();
        let Some(id) = self.insert(conn) else { return };
        self.begun.insert(theirs, id);
        self.events.push_back(Event::SidrRequest(Box::new(SidrRequest {
            conn: ConnId(id),
            path,
            service_id: req.service_id,
            private: req.private.to_vec(),
        })));
    }

    fn receive_sidr_rep(&mut self, path: Path, mad: &Mad) {
        let Some(rep) = SidrRep::parse(mad) else { return };
        let Some(id) = self.find(path, rep.request_id) else { return };
        if self.conns.get(&id).is_none_or(|conn| conn.state != ConnState::SidrReqSent) {
            return;
        }
        let reply = SidrReply {
            conn: ConnId(id),
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            private: rep.private.to_vec(),
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
        if conn.state == ConnState::Timewait {
            self.tell(id, Event::TimewaitExit(event));
            return self.remove(id);
        }
        if conn.retries_left > 0 {
            if conn.state == ConnState::RepSent
                && let Err(later) = self.pace.take(now)
            {
                return self.set_deadline(id, Some(later));
            }
            conn.retries_left -= 1;
            let again = now + conn.granted.unwrap_or(conn.patience);
            self.repeat(id);
            return self.set_deadline(id, Some(again));
        }
        match conn.state {
            ConnState::ReqSent | ConnState::RepSent => {
                self.tell(id, Event::Unreachable(event));
                self.send_rej(id, Reason::TIMEOUT, [0; REJ_PRIVATE_LEN]);
                self.remove(id);
            }
            ConnState::SidrReqSent => {
                self.tell(id, Event::SidrUnanswered(event));
                self.remove(id);
            }
            ConnState::DreqSent => {
                self.enter_timewait(id, now);
                self.tell(id, Event::DisconnectUnanswered(event));
            }
            _ => self.set_deadline(id, None),
        }
    }
}
