//! Reliable-connection queue pairs: built, handed to the peer as an [`Endpoint`], connected, used.

use crate::context::{Mtu, Pd};
use crate::cq::Cq;
use crate::error::{Error, Result, check};
use crate::ffi::{self, mask};
use crate::gid::Gid;
use crate::memory::{Access, LocalSlice, RemoteSlice};
use crate::work::{Op, SendFlags};
use std::fmt;
use std::ptr::NonNull;
use std::str::FromStr;

/// What a peer must know to connect. Prints as text that parses back: `qpn/psn/mtu/gid`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Endpoint {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First packet sequence number this side sends, 24 bits.
    pub psn: u32,
    /// Largest packet payload this side takes.
    pub mtu: Mtu,
    /// Address.
    pub gid: Gid,
    /// Local identifier of the port; 0 on RoCE.
    pub lid: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:06x}/{:06x}/{}/{:04x}/{}",
            self.qpn,
            self.psn,
            self.mtu.bytes(),
            self.lid,
            self.gid
        )
    }
}

impl FromStr for Endpoint {
    type Err = Error;
    fn from_str(text: &str) -> Result<Endpoint> {
        let parse = || {
            let mut fields = text.trim().splitn(5, '/');
            let mut number = |radix| u32::from_str_radix(fields.next()?, radix).ok();
            let (qpn, psn, mtu, lid) = (number(16)?, number(16)?, number(10)?, number(16)?);
            let gid = fields.next()?.parse().ok()?;
            let fits = qpn < 1 << 24 && psn < 1 << 24;
            fits.then_some(Endpoint {
                qpn,
                psn,
                mtu: mtu.try_into().ok()?,
                gid,
                lid: lid.try_into().ok()?,
            })
        };
        parse().ok_or_else(|| Error::Endpoint(text.to_owned()))
    }
}

/// State of a queue pair (`enum ibv_qp_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of ibv_modify_qp(3)")]
pub enum QpState {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueDrained = 4,
    SendQueueError = 5,
    Error = 6,
}

/// A queue pair to be: every setting has a default that suits most programs.
#[derive(Clone, Debug)]
#[must_use = "nothing is created before build()"]
pub struct QpBuilder {
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    cap: ffi::QpCap,
    access: Access,
    port: u8,
    gid_index: Option<u8>,
    mtu: Option<Mtu>,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    traffic_class: u8,
    hop_limit: u8,
}

impl QpBuilder {
    pub(crate) fn new(pd: &Pd, send_cq: &Cq, recv_cq: &Cq) -> QpBuilder {
        QpBuilder {
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            cap: ffi::QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            port: 1,
            gid_index: None,
            mtu: None,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    /// Outstanding send requests (64).
    pub fn max_send_wr(mut self, requests: u32) -> QpBuilder {
        self.cap.max_send_wr = requests;
        self
    }
    /// Outstanding receive requests (64).
    pub fn max_recv_wr(mut self, requests: u32) -> QpBuilder {
        self.cap.max_recv_wr = requests;
        self
    }
    /// Slices of one send and of one receive request (1).
    pub fn max_sge(mut self, slices: u32) -> QpBuilder {
        self.cap.max_send_sge = slices;
        self.cap.max_recv_sge = slices;
        self
    }
    /// Bytes that [`Op::SendInline`] and [`Op::WriteInline`] may carry (0).
    pub fn max_inline_data(mut self, bytes: u32) -> QpBuilder {
        self.cap.max_inline_data = bytes;
        self
    }
    /// What the peer may do through this queue pair (write, read, atomics).
    pub fn access(mut self, access: Access) -> QpBuilder {
        self.access = access;
        self
    }
    /// Port, counted from 1 (1).
    pub fn port(mut self, port: u8) -> QpBuilder {
        self.port = port;
        self
    }
    /// Entry of the GID table ([`Context::default_gid`](crate::Context::default_gid)).
    pub fn gid_index(mut self, index: u8) -> QpBuilder {
        self.gid_index = Some(index);
        self
    }
    /// Largest MTU to use (the port's).
    pub fn mtu(mut self, mtu: Mtu) -> QpBuilder {
        self.mtu = Some(mtu);
        self
    }
    /// Time to wait for an acknowledge before trying again: 4.096 µs · 2^`code`; 0 waits for ever (14: 67 ms).
    pub fn timeout(mut self, code: u8) -> QpBuilder {
        self.timeout = code;
        self
    }
    /// Tries before giving a peer up, at most 7 (7).
    pub fn retry_cnt(mut self, tries: u8) -> QpBuilder {
        self.retry_cnt = tries;
        self
    }
    /// Tries while the peer has no receive posted; 7 is without end (7).
    pub fn rnr_retry(mut self, tries: u8) -> QpBuilder {
        self.rnr_retry = tries;
        self
    }
    /// Timer code a peer is told when no receive is posted here (12: 0.64 ms; IBA table 46).
    pub fn min_rnr_timer(mut self, code: u8) -> QpBuilder {
        self.min_rnr_timer = code;
        self
    }
    /// DSCP and ECN bits of the packets (0).
    pub fn traffic_class(mut self, class: u8) -> QpBuilder {
        self.traffic_class = class;
        self
    }

    /// Creates the queue pair and brings it to INIT: receives may be posted.
    pub fn build(self) -> Result<IdleQp> {
        let context = self.pd.context().clone();
        let port = context.port_attr(self.port)?;
        let gid = match self.gid_index {
            None => context.default_gid(self.port)?,
            Some(index) => context
                .gids(self.port)?
                .into_iter()
                .find(|entry| entry.index == index)
                .ok_or(Error::Argument("that entry of the GID table is unused"))?,
        };
        let device = context.device_attr()?;
        let mut init = ffi::QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: self.send_cq.inner.raw.as_ptr(),
            recv_cq: self.recv_cq.inner.raw.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: self.cap,
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are alive, and the queue pair keeps them so.
        let raw = unsafe {
            (context.inner.functions().ibv_create_qp)(self.pd.inner.raw.as_ptr(), &mut init)
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_qp"))?;
        let qp =
            RawQp { pd: self.pd.clone(), _cqs: (self.send_cq.clone(), self.recv_cq.clone()), raw };
        let mut attr = ffi::QpAttr {
            qp_state: QpState::Init as u32,
            port_num: self.port,
            qp_access_flags: self.access.bits(),
            ..Default::default()
        };
        qp.modify(&mut attr, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)?;
        let mtu = self.mtu.unwrap_or(port.active_mtu).min(port.active_mtu);
        let endpoint =
            Endpoint { qpn: qp.qpn(), psn: random_psn(), mtu, gid: gid.gid, lid: port.lid };
        let responder_depth = device.max_qp_rd_atom.min(255) as u8;
        let initiator_depth = device.max_qp_init_rd_atom.min(255) as u8;
        Ok(IdleQp {
            qp,
            endpoint,
            sgid_index: gid.index,
            depths: (responder_depth.min(16), initiator_depth.min(16)),
            ethernet: port.ethernet,
            settings: self,
        })
    }
}

/// A queue pair that is not connected: it takes receives and has an address.
#[derive(Debug)]
pub struct IdleQp {
    qp: RawQp,
    endpoint: Endpoint,
    sgid_index: u8,
    /// READs and atomics served, and begun, at once.
    depths: (u8, u8),
    ethernet: bool,
    settings: QpBuilder,
}

impl IdleQp {
    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Posts a receive; it is used once connected.
    pub fn post_recv(&self, id: u64, local: &[LocalSlice<'_>]) -> Result<()> {
        self.qp.post_recv(id, local)
    }

    /// Connects to the peer's endpoint: the queue pair can receive and send. The peer must do the same before what is
    /// sent here can arrive.
    pub fn connect(self, peer: &Endpoint) -> Result<Qp> {
        let IdleQp { qp, endpoint, sgid_index, depths, ethernet, settings } = self;
        let mut attr = ffi::QpAttr {
            qp_state: QpState::ReadyToReceive as u32,
            path_mtu: endpoint.mtu.min(peer.mtu) as u32,
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: depths.0,
            min_rnr_timer: settings.min_rnr_timer,
            ah_attr: ffi::AhAttr {
                dgid: peer.gid.to_raw(),
                sgid_index,
                hop_limit: settings.hop_limit,
                traffic_class: settings.traffic_class,
                dlid: peer.lid,
                is_global: (ethernet || !peer.gid.is_zero()).into(),
                port_num: settings.port,
                ..Default::default()
            },
            ..Default::default()
        };
        qp.modify(
            &mut attr,
            mask::STATE
                | mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER,
        )?;
        let mut attr = ffi::QpAttr {
            qp_state: QpState::ReadyToSend as u32,
            sq_psn: endpoint.psn,
            timeout: settings.timeout,
            retry_cnt: settings.retry_cnt,
            rnr_retry: settings.rnr_retry,
            max_rd_atomic: depths.1,
            ..Default::default()
        };
        qp.modify(
            &mut attr,
            mask::STATE
                | mask::SQ_PSN
                | mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::MAX_QP_RD_ATOMIC,
        )?;
        Ok(Qp { qp, endpoint, peer: *peer })
    }
}

/// A connected queue pair. Requests complete in order on the queues it was built with.
#[derive(Debug)]
pub struct Qp {
    qp: RawQp,
    endpoint: Endpoint,
    peer: Endpoint,
}

impl Qp {
    /// This side's endpoint.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The peer's endpoint.
    pub fn peer(&self) -> Endpoint {
        self.peer
    }

    /// The state the device reports.
    pub fn state(&self) -> Result<QpState> {
        self.qp.state()
    }

    /// Gives all outstanding requests back as [`Status::Flushed`](crate::Status::Flushed) and stops.
    pub fn set_error(&self) -> Result<()> {
        let mut attr = ffi::QpAttr { qp_state: QpState::Error as u32, ..Default::default() };
        self.qp.modify(&mut attr, mask::STATE)
    }

    /// Posts a request. `id` comes back in its completion.
    ///
    /// A region may be dropped before the completion; the request then fails with
    /// [`Status::LocalProtection`](crate::Status::LocalProtection).
    pub fn post(&self, id: u64, op: &Op<'_>, flags: SendFlags) -> Result<()> {
        self.qp.post_send(id, op, flags)
    }

    /// Posts a receive for a message or a write with immediate data.
    pub fn post_recv(&self, id: u64, local: &[LocalSlice<'_>]) -> Result<()> {
        self.qp.post_recv(id, local)
    }

    /// RDMA WRITE with a completion.
    pub fn post_write(&self, id: u64, local: &[LocalSlice<'_>], remote: RemoteSlice) -> Result<()> {
        self.post(id, &Op::Write { local, remote, imm: None }, SendFlags::default())
    }

    /// RDMA READ with a completion.
    pub fn post_read(&self, id: u64, local: &[LocalSlice<'_>], remote: RemoteSlice) -> Result<()> {
        self.post(id, &Op::Read { local, remote }, SendFlags::default())
    }

    /// SEND with a completion.
    pub fn post_send(&self, id: u64, local: &[LocalSlice<'_>]) -> Result<()> {
        self.post(id, &Op::Send { local, imm: None }, SendFlags::default())
    }
}

struct RawQp {
    pd: Pd,
    _cqs: (Cq, Cq),
    raw: NonNull<ffi::Qp>,
}

// SAFETY: see OpenDevice in context.rs; posting from several threads is allowed.
unsafe impl Send for RawQp {}
// SAFETY: as above.
unsafe impl Sync for RawQp {}

impl fmt::Debug for RawQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.qpn())
    }
}

impl Drop for RawQp {
    fn drop(&mut self) {
        // SAFETY: the only owner.
        unsafe { (self.functions().ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}

impl RawQp {
    fn functions(&self) -> &ffi::Functions {
        self.pd.inner.context.inner.functions()
    }

    fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is alive; its number never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    fn modify(&self, attr: &mut ffi::QpAttr, mask: libc::c_int) -> Result<()> {
        // SAFETY: the queue pair is alive; the attributes are a value of verbs.h's layout.
        check("ibv_modify_qp", unsafe {
            (self.functions().ibv_modify_qp)(self.raw.as_ptr(), attr, mask)
        })
    }

    fn state(&self) -> Result<QpState> {
        let mut attr = ffi::QpAttr::default();
        // SAFETY: null pointers and zeroes are values of the struct, which the call only fills.
        let mut init: ffi::QpInitAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the queue pair is alive and both structs are valid for the call.
        let value = unsafe {
            (self.functions().ibv_query_qp)(self.raw.as_ptr(), &mut attr, mask::STATE, &mut init)
        };
        check("ibv_query_qp", value)?;
        Ok(match attr.qp_state {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::ReadyToReceive,
            3 => QpState::ReadyToSend,
            4 => QpState::SendQueueDrained,
            5 => QpState::SendQueueError,
            _ => QpState::Error,
        })
    }

    fn post_recv(&self, id: u64, local: &[LocalSlice<'_>]) -> Result<()> {
        let Some(post) = self.pd.inner.context.inner.ops().post_recv else {
            return Err(Error::NotSupported("the device has no post_recv"));
        };
        let mut wr = ffi::RecvWr {
            wr_id: id,
            next: 0,
            sg_list: local.as_ptr() as usize,
            num_sge: slices(local)?,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; the request and its list (LocalSlice is a transparent sge) are valid for
        // the call, which copies them. The memory named is guarded by its key, not by a lifetime.
        check("ibv_post_recv", unsafe { post(self.raw.as_ptr(), &mut wr, &mut bad) })
    }

    fn post_send(&self, id: u64, op: &Op<'_>, flags: SendFlags) -> Result<()> {
        let Some(post) = self.pd.inner.context.inner.ops().post_send else {
            return Err(Error::NotSupported("the device has no post_send"));
        };
        let inline;
        let single;
        let (list, mut wr): (&[ffi::Sge], ffi::SendWr) = match *op {
            Op::Send { local, imm } => {
                (sges(local), ffi::SendWr::of(if imm.is_some() { 3 } else { 2 }, imm))
            }
            Op::SendInline { data, imm } => {
                inline = [inline_sge(data)?];
                (&inline, ffi::SendWr::of(if imm.is_some() { 3 } else { 2 }, imm).inline())
            }
            Op::Write { local, remote, imm } => {
                fits(local, remote)?;
                (sges(local), ffi::SendWr::of(if imm.is_some() { 1 } else { 0 }, imm).rdma(remote))
            }
            Op::WriteInline { data, remote, imm } => {
                inline = [inline_sge(data)?];
                if data.len() as u64 > remote.len {
                    return Err(Error::Range {
                        offset: 0,
                        len: data.len() as u64,
                        size: remote.len,
                    });
                }
                (
                    &inline,
                    ffi::SendWr::of(if imm.is_some() { 1 } else { 0 }, imm).rdma(remote).inline(),
                )
            }
            Op::Read { local, remote } => {
                fits(local, remote)?;
                (sges(local), ffi::SendWr::of(4, None).rdma(remote))
            }
            Op::CompareSwap { local, remote, compare, swap } => {
                single = [word(local, remote)?];
                (&single, ffi::SendWr::of(5, None).atomic(remote, compare, swap))
            }
            Op::FetchAdd { local, remote, add } => {
                single = [word(local, remote)?];
                (&single, ffi::SendWr::of(6, None).atomic(remote, add, 0))
            }
        };
        wr.wr_id = id;
        wr.send_flags |= flags.bits();
        wr.sg_list = list.as_ptr() as usize;
        wr.num_sge =
            libc::c_int::try_from(list.len()).map_err(|_| Error::Argument("too many slices"))?;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; request and list are valid for the call, which copies them, and so is the
        // inline data, which only the inline operations point at (a LocalSlice is never read by the CPU). Other
        // memory is guarded by its key, not by a lifetime.
        check("ibv_post_send", unsafe { post(self.raw.as_ptr(), &mut wr, &mut bad) })
    }
}

impl ffi::SendWr {
    /// A request with `opcode` of `enum ibv_wr_opcode`.
    fn of(opcode: u32, imm: Option<u32>) -> ffi::SendWr {
        ffi::SendWr { opcode, imm_data: imm.unwrap_or(0).to_be(), ..Default::default() }
    }
    fn inline(self) -> ffi::SendWr {
        ffi::SendWr { send_flags: ffi::SEND_INLINE, ..self }
    }
    fn rdma(self, remote: RemoteSlice) -> ffi::SendWr {
        ffi::SendWr { remote_addr: remote.addr, rkey_or_compare: low_half(remote.rkey), ..self }
    }
    fn atomic(self, remote: RemoteSlice, compare_add: u64, swap: u64) -> ffi::SendWr {
        ffi::SendWr {
            remote_addr: remote.addr,
            rkey_or_compare: compare_add,
            swap,
            atomic_rkey: low_half(remote.rkey),
            ..self
        }
    }
}

/// A 32-bit field at the start of an 8-byte slot.
fn low_half(value: u32) -> u64 {
    let [a, b, c, d] = value.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

fn sges<'a>(local: &'a [LocalSlice<'_>]) -> &'a [ffi::Sge] {
    // SAFETY: LocalSlice is a transparent wrapper of Sge.
    unsafe { std::slice::from_raw_parts(local.as_ptr().cast(), local.len()) }
}

fn slices(local: &[LocalSlice<'_>]) -> Result<libc::c_int> {
    libc::c_int::try_from(local.len()).map_err(|_| Error::Argument("too many slices"))
}

fn inline_sge(data: &[u8]) -> Result<ffi::Sge> {
    let length =
        u32::try_from(data.len()).map_err(|_| Error::Argument("inline data is too long"))?;
    Ok(ffi::Sge { addr: data.as_ptr() as u64, length, lkey: 0 })
}

fn fits(local: &[LocalSlice<'_>], remote: RemoteSlice) -> Result<()> {
    let len: u64 = local.iter().map(|slice| u64::from(slice.len())).sum();
    if len > remote.len { Err(Error::Range { offset: 0, len, size: remote.len }) } else { Ok(()) }
}

fn word(local: LocalSlice<'_>, remote: RemoteSlice) -> Result<ffi::Sge> {
    if local.len() != 8 || remote.len < 8 || !remote.addr.is_multiple_of(8) {
        return Err(Error::Argument("an atomic works on 8 aligned bytes at both ends"));
    }
    Ok(local.sge)
}

/// A random first sequence number, so that packets of an earlier connection do not fit.
fn random_psn() -> u32 {
    let mut bytes = [0_u8; 4];
    // SAFETY: the buffer holds 4 bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != 4 {
        // Without entropy the clock still differs from one connection to the next.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or(0, |now| now.subsec_nanos()).to_ne_bytes();
    }
    u32::from_ne_bytes(bytes) & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_text_and_back() {
        let endpoint = Endpoint {
            qpn: 0x123456,
            psn: 0xabc,
            mtu: Mtu::B1024,
            gid: "192.0.2.1".parse().unwrap(),
            lid: 0,
        };
        let text = endpoint.to_string();
        assert_eq!(text, "123456/000abc/1024/0000/192.0.2.1");
        assert_eq!(text.parse::<Endpoint>().unwrap(), endpoint);
        for bad in [
            "",
            "1/2/3/4/5",
            "1000000/0/1024/0/::1",
            "1/1/1024/0",
            "1/1/1500/0/::1",
            "1/1/1024/10000/::1",
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_sit_where_c_reads_them() {
        let remote = RemoteSlice { addr: 8, len: 8, rkey: 0x11223344 };
        let wr = ffi::SendWr::of(0, None).rdma(remote);
        assert_eq!(wr.rkey_or_compare.to_ne_bytes()[..4], 0x11223344_u32.to_ne_bytes());
        let wr = ffi::SendWr::of(5, None).atomic(remote, 5, 6);
        assert_eq!((wr.rkey_or_compare, wr.swap), (5, 6));
        assert_eq!(wr.atomic_rkey.to_ne_bytes()[..4], 0x11223344_u32.to_ne_bytes());
    }
}
