//! What the connection manager below reports, turned into ids and events (kernel `cma_ib_handler`
//! and its kin).

use crate::addr::{Addr, IbAddr, gid_of};
use crate::cma::Cma;
use crate::error::Error;
use crate::event::{ConnParam, DatagramParam, Ece, Event, EventKind, Param};
use crate::id::{HOP_LIMIT, Id, IdState, Key, Path, QpType, Remote};
use cm::{ConnId, Reason, SidrStatus, Transport};
use std::net::IpAddr;
use std::time::Instant;
use wire::cm::{IP_HEADER_LEN, IpHeader};

/// A request as both kinds have it.
struct Wanted<'a> {
    conn: ConnId,
    path: cm::Path,
    service_id: u64,
    private: &'a [u8],
    qp_type: QpType,
}

/// Why a request comes to nobody.
enum Unwanted {
    /// Nobody listens.
    Nobody,
    /// The listener has as many requests as it asked for.
    NoRoom,
}

impl Cma {
    /// A MAD arrived on queue pair 1.
    pub fn receive(&mut self, from: cm::Path, mad: &[u8; cm::MAD_LEN], now: Instant) {
        self.cm.receive(from, mad, now);
        self.take_events_at(now);
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Instant) {
        self.cm.on_timeout(now);
        self.take_events_at(now);
    }

    pub(crate) fn take_events(&mut self) {
        while let Some(event) = self.cm.poll_event() {
            self.take_event(event);
        }
    }

    fn take_events_at(&mut self, now: Instant) {
        while let Some(event) = self.cm.poll_event() {
            match event {
                cm::Event::Request(request) => self.request(&request, now),
                cm::Event::SidrRequest(request) => self.sidr_request(&request),
                event => self.take_event(event),
            }
        }
    }

    fn take_event(&mut self, event: cm::Event) {
        use EventKind as K;
        match event {
            // Requests come from messages only.
            cm::Event::Request(_) | cm::Event::SidrRequest(_) => {}
            cm::Event::Reply(reply) => self.replied(&reply),
            cm::Event::Refused(refused) => self.refused(&refused),
            cm::Event::SidrReply(reply) => self.sidr_replied(&reply),
            cm::Event::Established(conn) => self.simple(conn, K::Established, 0),
            cm::Event::Unreachable(conn) | cm::Event::SidrUnanswered(conn) => {
                self.simple(conn, K::Unreachable, -Error::TIMEDOUT.0)
            }
            cm::Event::DisconnectRequested(conn) | cm::Event::Disconnected(conn) => {
                self.disconnected(conn, 0)
            }
            cm::Event::DisconnectUnanswered(conn) => self.disconnected(conn, -Error::TIMEDOUT.0),
            cm::Event::TimewaitExit(conn) => self.simple(conn, K::TimewaitExit, 0),
        }
    }

    fn simple(&mut self, conn: ConnId, kind: EventKind, status: i32) {
        if let Some(key) = self.conns.get(&conn).copied() {
            self.report(key, kind, status);
        }
    }

    fn disconnected(&mut self, conn: ConnId, status: i32) {
        let Some(key) = self.conns.get(&conn).copied() else { return };
        if let Some(id) = self.ids.get_mut(&key)
            && id.state == IdState::Connected
        {
            id.state = IdState::Disconnected;
            self.report(key, EventKind::Disconnected, status);
        }
    }

    /// The ids that listen at a port, in whichever port space: all that a request is compared with.
    fn listening_at(&self, port: u16) -> impl Iterator<Item = (Key, &Id)> {
        let keys = self.listening.range((port, Key(0))..=(port, Key(u64::MAX)));
        keys.filter_map(|(_, key)| Some((*key, self.ids.get(key)?)))
    }

    /// The id that listens for a service at an address, and whether requests to it bear addresses.
    fn listener(&self, service_id: u64, to: &IpHeader, path: &cm::Path) -> Option<Key> {
        let of_space = |id: &Id| {
            let space = id.space.for_binding(&id.src);
            space.is_some_and(|space| space.service_id(id.src.port()) == service_id)
        };
        let fits = |id: &Id| match id.src {
            Addr::Ib(_) => id.src.is_any() || id.src.ip() == Some(path.local),
            Addr::V4(..) => to.dst.is_ipv4() && (id.src.is_any() || id.src.ip() == Some(to.dst)),
            Addr::V6(.., scope) => {
                let family = to.dst.is_ipv6() || id.one_family != Some(true);
                let here = id.src.ip() == Some(to.dst) && (scope == 0 || scope == path.ifindex);
                family && (id.src.is_any() || here)
            }
            Addr::None => false,
        };
        let ids = self.listening_at(service_id as u16);
        let found = ids.filter(|(_, id)| of_space(id) && fits(id));
        // One that listens at the address goes before one that listens everywhere.
        found.min_by_key(|(key, id)| (id.src.is_any(), *key)).map(|(key, _)| key)
    }

    /// Makes the id of a request and answers it with the listener; `None` where nobody listens or
    /// there is no room.
    fn accept_request(&mut self, wanted: &Wanted<'_>) -> Result<(Key, Key, usize), Unwanted> {
        let header = IpHeader::parse(wanted.private);
        let ends =
            header.unwrap_or(IpHeader { port: 0, src: wanted.path.remote, dst: wanted.path.local });
        let listener = self.listener(wanted.service_id, &ends, &wanted.path);
        let Some(listener) = listener else { return Err(Unwanted::Nobody) };
        let Some(id) = self.ids.get_mut(&listener) else { return Err(Unwanted::Nobody) };
        let is_ib = matches!(id.src, Addr::Ib(_));
        let datagram = wanted.qp_type == QpType::UD;
        if (header.is_none() && !is_ib) || id.is_datagram() != datagram {
            return Err(Unwanted::Nobody);
        }
        if id.backlog == 0 {
            return Err(Unwanted::NoRoom);
        }
        id.backlog -= 1;
        let (channel, space) = (id.channel, id.space);
        let (src, dst) = addresses(&ends, wanted, is_ib);
        let traffic_class = id.traffic_class;
        let ack_timeout = id.ack_timeout;
        let key = self.insert(channel, 0, space, wanted.qp_type);
        if let Some(id) = self.ids.get_mut(&key) {
            id.src = src;
            id.dst = dst;
            id.adapter = wanted.path.adapter;
            id.ifindex = wanted.path.ifindex;
            id.state = IdState::Connected;
            id.conn = Some(wanted.conn);
            id.traffic_class = traffic_class;
            id.ack_timeout = ack_timeout;
        }
        self.conns.insert(wanted.conn, key);
        Ok((listener, key, if is_ib { 0 } else { IP_HEADER_LEN }))
    }

    fn request(&mut self, request: &cm::Request, now: Instant) {
        let qp_type = match request.transport {
            Transport::Rc => QpType::RC,
            Transport::Uc => QpType::UC,
            Transport::Xrc => QpType::XRC_RECV,
        };
        let wanted = Wanted {
            conn: request.conn,
            path: request.path,
            service_id: request.service_id,
            private: &request.private,
            qp_type,
        };
        let (listener, key, offset) = match self.accept_request(&wanted) {
            Ok(found) => found,
            Err(Unwanted::Nobody) => {
                let _ = self.cm.reject(request.conn, Reason::INVALID_SERVICE_ID, &[], now);
                return;
            }
            // The peer asks again, when there may be room (kernel `cm_destroy_id` for ENOMEM).
            Err(Unwanted::NoRoom) => return self.cm.ignore(request.conn),
        };
        let ece = Ece { vendor_id: request.ece.vendor_id, attr_mod: request.ece.attr_mod };
        if let Some(id) = self.ids.get_mut(&key) {
            id.path = Some(Path {
                sgid: gid_of(request.path.local),
                dgid: gid_of(request.path.remote),
                flow_label: request.flow_label,
                hop_limit: if request.hop_limit == 0 { HOP_LIMIT } else { request.hop_limit },
                traffic_class: id.traffic_class.unwrap_or(request.traffic_class),
                mtu: request.mtu.clamp(1, 5),
                packet_life_time: request.ack_timeout.saturating_sub(1),
                ack_timeout: request.ack_timeout,
            });
            id.remote = Some(Remote { qpn: request.qpn, psn: request.psn });
            id.responder_resources = request.responder_resources;
            id.initiator_depth = request.initiator_depth;
            id.retry_count = request.retry_count;
            id.rnr_retry_count = request.rnr_retry_count;
            id.remote_ece = ece;
        }
        let param = Param::Conn(ConnParam {
            qp_num: request.qpn,
            qkey: 0,
            private_data: request.private.get(offset..).unwrap_or_default().to_vec(),
            srq: request.srq,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
        });
        self.queue_request(listener, key, param, ece);
    }

    fn sidr_request(&mut self, request: &cm::SidrRequest) {
        let wanted = Wanted {
            conn: request.conn,
            path: request.path,
            service_id: request.service_id,
            private: &request.private,
            qp_type: QpType::UD,
        };
        let (listener, key, offset) = match self.accept_request(&wanted) {
            Ok(found) => found,
            Err(unwanted) => {
                let status = match unwanted {
                    Unwanted::Nobody => SidrStatus::UNSUPPORTED,
                    Unwanted::NoRoom => SidrStatus::REJECT,
                };
                let private = Vec::new();
                let params = cm::SidrReplyParams { status, qpn: 0, qkey: 0, private };
                let _ = self.cm.sidr_reply(request.conn, params);
                return;
            }
        };
        let private_data = request.private.get(offset..).unwrap_or_default().to_vec();
        let param = DatagramParam { private_data, ..DatagramParam::default() };
        self.queue_request(listener, key, Param::Datagram(Box::new(param)), Ece::default());
    }

    fn queue_request(&mut self, listener: Key, key: Key, param: Param, ece: Ece) {
        self.queue(Event {
            kind: EventKind::ConnectRequest,
            status: 0,
            param,
            ece,
            id: listener,
            request: Some(key),
            membership: None,
        });
    }

    fn replied(&mut self, reply: &cm::Reply) {
        let Some(key) = self.conns.get(&reply.conn).copied() else { return };
        let Some(id) = self.ids.get_mut(&key) else { return };
        id.remote = Some(Remote { qpn: reply.qpn, psn: reply.psn });
        id.responder_resources = reply.responder_resources;
        id.initiator_depth = reply.initiator_depth;
        id.rnr_retry_count = reply.rnr_retry_count;
        let ece = Ece { vendor_id: reply.ece.vendor_id, attr_mod: reply.ece.attr_mod };
        id.remote_ece = ece;
        let param = ConnParam {
            qp_num: reply.qpn,
            qkey: 0,
            private_data: reply.private.clone(),
            srq: reply.srq,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            flow_control: reply.flow_control,
            retry_count: 0,
            rnr_retry_count: reply.rnr_retry_count,
        };
        self.report_with(key, EventKind::ConnectResponse, 0, Param::Conn(param), ece);
    }

    fn refused(&mut self, refused: &cm::Refused) {
        let Some(key) = self.conns.get(&refused.conn).copied() else { return };
        let param = ConnParam { private_data: refused.private.clone(), ..ConnParam::default() };
        let status = i32::from(refused.reason.0);
        self.report_with(key, EventKind::Rejected, status, Param::Conn(param), Ece::default());
    }

    fn sidr_replied(&mut self, reply: &cm::SidrReply) {
        let Some(key) = self.conns.get(&reply.conn).copied() else { return };
        let Some(id) = self.ids.get_mut(&key) else { return };
        let mut param =
            DatagramParam { private_data: reply.private.clone(), ..DatagramParam::default() };
        let (kind, status) = if reply.status != SidrStatus::SUCCESS {
            (EventKind::Unreachable, reply.status.0.into())
        } else if !id.choose_qkey(reply.qkey) {
            (EventKind::AddrError, -Error::INVAL.0)
        } else {
            param.qp_num = reply.qpn;
            param.qkey = reply.qkey;
            param.ah = id.address_vector().unwrap_or_default();
            (EventKind::Established, 0)
        };
        self.report_with(key, kind, status, Param::Datagram(Box::new(param)), Ece::default());
    }
}

/// Own and peer's address of a requested connection, in the listener's family.
fn addresses(ends: &IpHeader, wanted: &Wanted<'_>, is_ib: bool) -> (Addr, Addr) {
    let port = wanted.service_id as u16;
    if is_ib {
        let ib = |ip: IpAddr, sid: u64| {
            Addr::Ib(IbAddr {
                pkey: cm::DEFAULT_PKEY,
                gid: gid_of(ip),
                sid,
                sid_mask: !0,
                ..IbAddr::default()
            })
        };
        return (ib(wanted.path.local, wanted.service_id), ib(wanted.path.remote, 0));
    }
    let scope = |ip: IpAddr| match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => wanted.path.ifindex,
        _ => 0,
    };
    let end = |ip: IpAddr, port: u16| match ip {
        IpAddr::V4(ip) => Addr::V4(ip, port),
        IpAddr::V6(v6) => Addr::V6(v6, port, 0, scope(ip)),
    };
    (end(ends.dst, port), end(ends.src, ends.port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PortSpace;
    use crate::id::ChannelId;
    use cm::{Cm, Config};
    use std::net::Ipv4Addr;

    /// Whoever asks for a service makes the manager look for who listens; what that costs must not
    /// grow with the listeners at other ports.
    #[test]
    fn a_request_is_compared_with_the_listeners_at_its_port_alone() {
        const CHANNEL: ChannelId = ChannelId(1);
        const TCP: u16 = 0x0106;
        const UDP: u16 = 0x0111;
        let config = Config { id_bits: 22, seed: 1 };
        let mut cma = Cma::new(Cm::new(config), 1);
        cma.open(CHANNEL);
        let mut listen = |space, port| {
            let handle = cma.create(CHANNEL, 0, space, 0).unwrap();
            let key = cma.key(CHANNEL, handle).unwrap();
            cma.bind(key, Addr::V4(Ipv4Addr::UNSPECIFIED, port), None).unwrap();
            cma.listen(key, 1).unwrap();
            key
        };
        let listeners: Vec<(u16, Key)> =
            (20_000..40_000).map(|port| (port, listen(TCP, port))).collect();
        let datagrams = listen(UDP, 20_000);
        let at = |port: u16| -> Vec<Key> { cma.listening_at(port).map(|(key, _)| key).collect() };
        assert!(at(20_000) == [listeners[0].1, datagrams] && at(19_999).is_empty());
        let (local, remote) =
            (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into());
        let path =
            cm::Path { adapter: 0, local, remote, ifindex: 1, traffic_class: 0, hop_limit: 0 };
        let to = IpHeader { port: 1, src: remote, dst: local };
        let mut compared = 0;
        for (port, key) in listeners {
            compared += cma.listening_at(port).count();
            let service = PortSpace::Tcp.service_id(port);
            assert_eq!(cma.listener(service, &to, &path), Some(key), "{port}");
        }
        assert_eq!(compared, 20_001);
    }
}
