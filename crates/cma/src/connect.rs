//! Connecting, accepting, refusing and ending: the commands that send messages.

use crate::addr::{Addr, PortSpace};
use crate::cma::Cma;
use crate::error::Error;
use crate::event::{ConnParam, Ece};
use crate::id::{Id, IdState, Key, Local, Path, QpType, RATE};
use cm::{ConnId, Reason, SidrStatus, Transport};
use std::time::Instant;
use wire::cm::{IP_HEADER_LEN, IpHeader};

/// `IB_EVENT_COMM_EST`.
const COMMUNICATION_ESTABLISHED: u32 = 4;
/// Largest retry count.
const MAX_RETRY: u8 = 7;

/// What a program connects or accepts with.
#[derive(Clone, Debug, Default)]
pub struct ConnectParam {
    /// The queue pair and its limits.
    pub conn: ConnParam,
    /// Vendor options.
    pub ece: Ece,
}

pub(crate) fn cm_ece(ece: Ece) -> cm::Ece {
    cm::Ece { vendor_id: ece.vendor_id, attr_mod: ece.attr_mod }
}

/// The way that a path's management datagrams take.
fn cm_path(id: &Id, local: &Local, path: &Path) -> Option<cm::Path> {
    Some(cm::Path {
        adapter: local.device,
        local: local.ip,
        remote: id.dst.ip()?,
        ifindex: if id.dst.scope() != 0 { id.dst.scope() } else { local.ifindex },
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
    })
}

/// The header for a connection between two IP addresses; `None` where an end has none.
fn ip_header(src: &Addr, dst: &Addr) -> Option<IpHeader> {
    if matches!(src, Addr::Ib(_)) {
        return None;
    }
    Some(IpHeader { port: src.port(), src: src.ip()?, dst: dst.ip()? })
}

/// Private data with the header in front that IP addresses need.
fn private_data(id: &Id, own: &[u8]) -> Vec<u8> {
    let mut private = Vec::with_capacity(IP_HEADER_LEN + own.len());
    if let Some(header) = ip_header(&id.src, &id.dst) {
        private.extend(header.emit());
    }
    private.extend(own);
    private
}

fn transport(qp_type: QpType) -> Result<Transport, Error> {
    match qp_type {
        QpType::RC => Ok(Transport::Rc),
        QpType::UC => Ok(Transport::Uc),
        QpType::XRC_SEND => Ok(Transport::Xrc),
        _ => Err(Error::INVAL),
    }
}

impl Cma {
    /// Asks the peer for a connection, or for the queue pair of its datagram service.
    ///
    /// # Errors
    /// EINVAL when the route is not resolved or there is too much private data.
    pub fn connect(&mut self, key: Key, param: ConnectParam, now: Instant) -> Result<(), Error> {
        let id = self.ids.get_mut(&key).ok_or(Error::NOENT)?;
        if id.state != IdState::RouteResolved {
            return Err(Error::INVAL);
        }
        let (Some(local), Some(path)) = (id.local, id.path) else { return Err(Error::INVAL) };
        let way = cm_path(id, &local, &path).ok_or(Error::INVAL)?;
        let service_id = destination_service(id);
        let own = param.conn;
        let private = private_data(id, &own.private_data);
        let conn = if id.is_datagram() {
            self.cm.sidr_request(way, service_id, &private, now)
        } else {
            id.qpn = own.qp_num;
            id.srq = own.srq;
            id.responder_resources = own.responder_resources;
            id.initiator_depth = own.initiator_depth;
            id.retry_count = own.retry_count.min(MAX_RETRY);
            id.rnr_retry_count = own.rnr_retry_count.min(MAX_RETRY);
            self.cm.connect(
                cm::ConnectParams {
                    path: way,
                    service_id,
                    transport: transport(id.qp_type)?,
                    qpn: own.qp_num,
                    psn: id.psn,
                    responder_resources: own.responder_resources,
                    initiator_depth: own.initiator_depth,
                    flow_control: own.flow_control,
                    retry_count: id.retry_count,
                    rnr_retry_count: id.rnr_retry_count,
                    srq: own.srq,
                    mtu: path.mtu,
                    ack_timeout: path.ack_timeout,
                    rate: RATE,
                    flow_label: path.flow_label,
                    ece: cm_ece(param.ece),
                    local_gid: path.sgid,
                    remote_gid: path.dgid,
                    private,
                },
                now,
            )
        };
        let conn = conn.map_err(|_| Error::INVAL)?;
        id.state = IdState::Connected;
        id.conn = Some(conn);
        self.conns.insert(conn, key);
        Ok(())
    }

    /// Accepts a connection that a peer asked for, or completes one of ours that the peer accepted;
    /// `param` is missing then. From now on the program knows the id as `uid`.
    ///
    /// # Errors
    /// EINVAL in another state, or for too much private data. A connection is refused then.
    pub fn accept(
        &mut self,
        key: Key,
        uid: u64,
        param: Option<ConnectParam>,
        now: Instant,
    ) -> Result<(), Error> {
        let id = self.ids.get_mut(&key).ok_or(Error::NOENT)?;
        let (IdState::Connected, Some(conn)) = (id.state, id.conn) else {
            return Err(Error::INVAL);
        };
        let has_param = param.is_some();
        let done = match param {
            None if id.is_datagram() => self.sidr_reply(key, conn, 0, 0, Vec::new()),
            None => self.cm.ready(conn).map_err(|_| Error::INVAL),
            Some(param) if id.is_datagram() => {
                let ConnParam { qp_num, qkey, private_data, .. } = param.conn;
                self.sidr_reply(key, conn, qp_num, qkey, private_data)
            }
            Some(param) => self.reply(key, conn, param, now),
        };
        match done {
            Ok(()) => {
                if has_param && let Some(id) = self.ids.get_mut(&key) {
                    id.uid = uid;
                }
                Ok(())
            }
            Err(error) => {
                let _ = self.cm.reject(conn, Reason::CONSUMER_DEFINED, &[], now);
                Err(error)
            }
        }
    }

    fn reply(
        &mut self,
        key: Key,
        conn: ConnId,
        param: ConnectParam,
        now: Instant,
    ) -> Result<(), Error> {
        let id = self.ids.get_mut(&key).ok_or(Error::NOENT)?;
        let own = param.conn;
        id.qpn = own.qp_num;
        id.srq = own.srq;
        id.responder_resources = own.responder_resources;
        id.initiator_depth = own.initiator_depth;
        let params = cm::ReplyParams {
            qpn: own.qp_num,
            psn: id.psn,
            responder_resources: own.responder_resources,
            initiator_depth: own.initiator_depth,
            flow_control: own.flow_control,
            rnr_retry_count: own.rnr_retry_count.min(MAX_RETRY),
            srq: own.srq,
            ece: cm_ece(param.ece),
            private: own.private_data,
        };
        self.cm.reply(conn, params, now).map_err(|_| Error::INVAL)
    }

    fn sidr_reply(
        &mut self,
        key: Key,
        conn: ConnId,
        qpn: u32,
        qkey: u32,
        private: Vec<u8>,
    ) -> Result<(), Error> {
        let id = self.ids.get_mut(&key).ok_or(Error::NOENT)?;
        if !id.choose_qkey(qkey) {
            return Err(Error::INVAL);
        }
        let status = SidrStatus::SUCCESS;
        let params = cm::SidrReplyParams { status, qpn, qkey: id.qkey, private };
        self.cm.sidr_reply(conn, params).map_err(|_| Error::INVAL)
    }

    /// Refuses a connection. `reason` 0 means the program's own.
    ///
    /// # Errors
    /// EINVAL for a reason that programs may not give, in another state, or for too much private
    /// data.
    pub fn reject(
        &mut self,
        key: Key,
        reason: u8,
        private: &[u8],
        now: Instant,
    ) -> Result<(), Error> {
        let reason = match reason {
            0 => Reason::CONSUMER_DEFINED,
            reason => Reason(reason.into()),
        };
        if !matches!(reason, Reason::CONSUMER_DEFINED | Reason::VENDOR_OPTION_NOT_SUPPORTED) {
            return Err(Error::INVAL);
        }
        let id = self.id(key)?;
        let conn = id.conn.ok_or(Error::INVAL)?;
        let done = if id.is_datagram() {
            let status = SidrStatus::REJECT;
            let private = private.to_vec();
            self.cm.sidr_reply(conn, cm::SidrReplyParams { status, qpn: 0, qkey: 0, private })
        } else {
            self.cm.reject(conn, reason, private, now)
        };
        done.map_err(|_| Error::INVAL)
    }

    /// Ends a connection, or agrees that it ends.
    ///
    /// # Errors
    /// EINVAL where there is none.
    pub fn disconnect(&mut self, key: Key, now: Instant) -> Result<(), Error> {
        let conn = self.id(key)?.conn.ok_or(Error::INVAL)?;
        // The peer may have been first, or the connection may be over: that is no error.
        let _ = self.cm.disconnect(conn, now);
        Ok(())
    }

    /// An asynchronous event of the queue pair's that matters here.
    ///
    /// # Errors
    /// EINVAL for others or without a connection, EISCONN when it is established already.
    pub fn notify(&mut self, key: Key, event: u32, _now: Instant) -> Result<(), Error> {
        let conn = self.id(key)?.conn.ok_or(Error::INVAL)?;
        if event != COMMUNICATION_ESTABLISHED {
            return Err(Error::INVAL);
        }
        match self.cm.notify_established(conn) {
            Ok(true) => {
                self.take_events();
                Ok(())
            }
            Ok(false) => Err(Error::ISCONN),
            Err(_) => Err(Error::INVAL),
        }
    }
}

/// The service at the destination.
fn destination_service(id: &Id) -> u64 {
    match &id.dst {
        crate::Addr::Ib(ib) => ib.sid,
        dst => PortSpace::service_id(id.space, dst.port()),
    }
}
