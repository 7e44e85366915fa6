//! Commands other than `GET_EVENT`, checked in the kernel's order (`ucma.c`) and carried out.

use super::channel::Channel;
use super::layout::{
    Answer, Fields, IN6_LEN, PATH_DATA_LEN, PATH_FLAGS, STORAGE_LEN, parse_path_data, path_data,
    qp_attr, read, user_path,
};
use super::service::Service;
use super::{host, layout};
use crate::device;
use crate::ffi::{Errno, INVALID, Res};
use cma::{Addr, ConnectParam, Described, Error, FreePorts, IbAddr, IdOption, Key, gid_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// `struct rdma_ucm_cmd_hdr`.
const HEADER_LEN: u64 = 8;
/// Longest structure of a command.
const MAX_COMMAND_LEN: usize = 8 + 8 + 2 * STORAGE_LEN + 64;
/// Longest value of an option that is looked at: a few paths.
const MAX_OPTION_LEN: usize = 16 * PATH_DATA_LEN;

const CREATE_ID: u32 = 0;
const DESTROY_ID: u32 = 1;
const BIND_IP: u32 = 2;
const RESOLVE_IP: u32 = 3;
const RESOLVE_ROUTE: u32 = 4;
const QUERY_ROUTE: u32 = 5;
const CONNECT: u32 = 6;
const LISTEN: u32 = 7;
const ACCEPT: u32 = 8;
const REJECT: u32 = 9;
const DISCONNECT: u32 = 10;
const INIT_QP_ATTR: u32 = 11;
const GET_EVENT: u32 = 12;
const GET_OPTION: u32 = 13;
const SET_OPTION: u32 = 14;
const NOTIFY: u32 = 15;
const JOIN_IP_MCAST: u32 = 16;
const LEAVE_MCAST: u32 = 17;
const MIGRATE_ID: u32 = 18;
const QUERY: u32 = 19;
const BIND: u32 = 20;
const RESOLVE_ADDR: u32 = 21;
const JOIN_MCAST: u32 = 22;
const RESOLVE_IB_SERVICE: u32 = 23;
const WRITE_CM_EVENT: u32 = 24;
/// Number of commands; those of newer kernels are refused as an older one would.
const COMMANDS: u32 = 25;

/// What stands before every command.
#[derive(Clone, Copy)]
pub struct Header {
    command: u32,
    in_len: usize,
    /// Room for the answer.
    pub out_len: usize,
}

impl Header {
    /// Whether it is the one that waits.
    pub fn is_get_event(&self) -> bool {
        self.command == GET_EVENT
    }
}

/// Reads and checks the header of `len` bytes at `buffer`.
pub fn header(buffer: u64, len: usize) -> Res<Header> {
    if (len as u64) < HEADER_LEN {
        return Err(INVALID);
    }
    let bytes = read::<8>(buffer)?;
    let fields = Fields(&bytes);
    let in_len = usize::from(fields.u16(4));
    let header = Header { command: fields.u32(0), in_len, out_len: fields.u16(6).into() };
    if header.command >= COMMANDS || in_len + HEADER_LEN as usize > len {
        return Err(INVALID);
    }
    if header.command == GET_OPTION {
        return Err(Errno(libc::ENOSYS));
    }
    Ok(header)
}

/// The errno of a refusal.
pub fn errno(error: Error) -> Errno {
    Errno(error.0)
}

/// One command on its way.
struct Command<'a> {
    channel: &'a Channel,
    service: &'a Service,
    fd: RawFd,
    header: Header,
    /// Where the structure is in the program's memory.
    at: u64,
}

/// Carries out the command at `buffer`.
///
/// # Safety
/// The program wrote the command, with places of its own for the answer.
pub unsafe fn run(channel: &Channel, fd: RawFd, header: Header, buffer: u64) -> Res<()> {
    let at = buffer.wrapping_add(HEADER_LEN);
    let command = Command { channel, service: &channel.engine().cm, fd, header, at };
    match header.command {
        CREATE_ID => command.create_id(),
        DESTROY_ID => command.destroy_id(),
        BIND_IP => command.bind_ip(),
        BIND => command.bind_storage(),
        RESOLVE_IP => command.resolve_ip(),
        RESOLVE_ADDR => command.resolve_storage(),
        RESOLVE_ROUTE => command.resolve_route(),
        QUERY_ROUTE => command.query_route(),
        QUERY => command.query(),
        CONNECT => command.connect(),
        LISTEN => command.listen(),
        ACCEPT => command.accept(),
        REJECT => command.reject(),
        DISCONNECT => command.disconnect(),
        INIT_QP_ATTR => command.init_qp_attr(),
        SET_OPTION => command.set_option(),
        NOTIFY => command.notify(),
        JOIN_IP_MCAST => command.join_ip(),
        JOIN_MCAST => command.join_storage(),
        LEAVE_MCAST => command.leave(),
        MIGRATE_ID => command.migrate(),
        RESOLVE_IB_SERVICE => command.resolve_service(),
        WRITE_CM_EVENT => command.write_event(),
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// Index of an id's device, as `ibv_get_device_index` answers it; zero before it has one.
fn device_index(id: &Described) -> u32 {
    id.device.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

impl Command<'_> {
    /// Reads the command's structure.
    fn read<const N: usize>(&self) -> Res<[u8; N]> {
        const { assert!(N <= MAX_COMMAND_LEN + 256) };
        read::<N>(self.at)
    }

    /// The same for commands that grew: what the program did not pass is zero.
    fn read_passed<const N: usize>(&self) -> Res<[u8; N]> {
        let mut bytes = [0; N];
        let passed = self.header.in_len.min(N);
        let into = bytes.get_mut(..passed).unwrap_or_default();
        mm::guard::copy_from(self.at, into).map_err(|_| Errno(libc::EFAULT))?;
        Ok(bytes)
    }

    /// Writes an answer to the place that the command names, cut to `room`.
    fn answer(&self, at: u64, bytes: &[u8], room: usize) -> Res<()> {
        // SAFETY: the command is the program's own (`run`).
        unsafe { layout::write(at, bytes, room) }
    }

    fn room_for(&self, len: usize) -> Res<()> {
        if self.header.out_len < len { Err(Errno(libc::ENOSPC)) } else { Ok(()) }
    }

    fn with<R>(&self, call: impl FnOnce(&mut cma::Cma) -> Result<R, Error>) -> Res<R> {
        self.service.with(self.channel.id(), self.fd, call).map_err(errno)
    }

    fn key(&self, handle: u32) -> Res<Key> {
        self.with(|cma| cma.key(self.channel.id(), handle))
    }

    /// Finds out what an accepted connection's address is among the device's, before it is asked for.
    fn find_local(&self, key: Key) -> Res<()> {
        if let Some((ip, ifindex)) = self.with(|cma| Ok(cma.lacks_local(key)))?
            && let Some(local) = host::local(self.channel, ip, ifindex)
        {
            self.with(|cma| {
                cma.set_local(key, local);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn create_id(&self) -> Res<()> {
        self.room_for(4)?;
        let bytes = self.read::<24>()?;
        let fields = Fields(&bytes);
        let (space, qp_type) = (fields.u16(16), fields.u8(18));
        let uid = fields.u64(0);
        let handle = self.with(|cma| cma.create(self.channel.id(), uid, space, qp_type))?;
        self.answer(fields.u64(8), &handle.to_ne_bytes(), 4).inspect_err(|_| {
            let _ = self.end(handle);
        })
    }

    fn end(&self, handle: u32) -> Res<u32> {
        let key = self.key(handle)?;
        let reported = self.with(|cma| cma.destroy(key, Instant::now()))?;
        self.service.free_ports(key);
        Ok(reported)
    }

    fn destroy_id(&self) -> Res<()> {
        self.room_for(4)?;
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let reported = self.end(fields.u32(8))?;
        self.answer(fields.u64(0), &reported.to_ne_bytes(), 4)
    }

    fn bind_ip(&self) -> Res<()> {
        let bytes = self.read::<40>()?;
        let fields = Fields(&bytes);
        let addr = fields.addr(8, IN6_LEN);
        if addr.is_empty() {
            return Err(INVALID);
        }
        let key = self.key(fields.u32(36))?;
        self.bind(key, addr)
    }

    fn bind_storage(&self) -> Res<()> {
        let bytes = self.read::<136>()?;
        let fields = Fields(&bytes);
        let addr = fields.addr(8, STORAGE_LEN);
        let len = usize::from(fields.u16(4));
        if fields.u16(6) != 0 || len == 0 || len != addr.len() {
            return Err(INVALID);
        }
        let key = self.key(fields.u32(0))?;
        self.bind(key, addr)
    }

    /// `rdma_bind_addr`.
    fn bind(&self, key: Key, addr: Addr) -> Res<()> {
        let how = self.with(|cma| cma.may_bind(key, &addr))?;
        // In the kernel, too, a binding to the loopback address names no device (`cma_any_addr`): libfabric's server
        // binds there first, and tells its peers that address if it is given one.
        let local = match addr.ip() {
            Some(ip) if !ip.is_unspecified() && !ip.is_loopback() => {
                Some(self.own_address(ip, addr.scope())?)
            }
            _ => None,
        };
        if !host::may_bind(addr.port()) {
            return Err(Errno(libc::EACCES));
        }
        let first = self.with(|cma| Ok(cma.random_port()))?;
        let free = FreePorts { range: host::local_ports(), first };
        let addr = self
            .service
            .with_ports(|ports, claims| ports.bind(key, how, addr, free, claims))
            .map_err(errno)?;
        self.with(|cma| cma.bind(key, addr, local)).inspect_err(|_| self.service.free_ports(key))
    }

    fn own_address(&self, ip: IpAddr, scope: u32) -> Res<cma::Local> {
        host::local(self.channel, ip, scope).ok_or(Errno(libc::EADDRNOTAVAIL))
    }

    fn resolve_ip(&self) -> Res<()> {
        let bytes = self.read::<64>()?;
        let fields = Fields(&bytes);
        let (src, dst) = (fields.addr(0, IN6_LEN), fields.addr(IN6_LEN, IN6_LEN));
        if dst.is_empty() || (src.is_empty() && fields.u16(0) != 0) {
            return Err(INVALID);
        }
        let key = self.key(fields.u32(56))?;
        self.resolve(key, src, dst, fields.u32(60))
    }

    fn resolve_storage(&self) -> Res<()> {
        let bytes = self.read::<272>()?;
        let fields = Fields(&bytes);
        let (src, dst) = (fields.addr(16, STORAGE_LEN), fields.addr(144, STORAGE_LEN));
        let (src_len, dst_len) = (usize::from(fields.u16(8)), usize::from(fields.u16(10)));
        let bad_src = src_len != 0 && src_len != src.len();
        if fields.u32(12) != 0 || bad_src || dst_len == 0 || dst_len != dst.len() {
            return Err(INVALID);
        }
        let key = self.key(fields.u32(0))?;
        self.resolve(key, src, dst, fields.u32(4))
    }

    /// `rdma_resolve_addr`.
    fn resolve(&self, key: Key, src: Addr, dst: Addr, timeout_ms: u32) -> Res<()> {
        if dst.lacks_scope() {
            return Err(INVALID);
        }
        if self.with(|cma| cma.is_idle(key))? {
            let src = if src.is_empty() { any_like(&dst) } else { src };
            self.bind(key, src)?;
        }
        let bound = self.with(|cma| cma.may_resolve(key, &dst))?;
        let from = if bound.is_any() { None } else { bound.ip() };
        let dst = if dst.is_any() { loopback_like(&dst, from) } else { dst };
        let ip = dst.ip().ok_or(INVALID)?;
        let scope = if dst.scope() != 0 { dst.scope() } else { bound.scope() };
        let (local, hop) = host::route(self.channel, from, ip, scope)?;
        let now = Instant::now();
        let wait = hop.map(|hop| (hop, now + Duration::from_millis(timeout_ms.into())));
        self.with(|cma| cma.resolve_addr(key, dst, local, wait, now))
    }

    fn resolve_route(&self) -> Res<()> {
        let bytes = self.read::<8>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(0))?;
        self.with(|cma| cma.resolve_route(key, fields.u32(4)))
    }

    fn describe(&self, handle: u32) -> Res<Described> {
        let key = self.key(handle)?;
        self.find_local(key)?;
        self.with(|cma| cma.describe(key))
    }

    /// Node GUID, big-endian as in memory, and port of an id's device; zero before it has one.
    fn device_of(&self, id: &Described) -> (u64, u8) {
        id.device.map_or((0, 0), |number| (device::guid(number).to_be(), 1))
    }

    fn query_route(&self) -> Res<()> {
        const LEN: usize = 8 + 2 * 64 + 2 * IN6_LEN + 4 + 1 + 3;
        self.room_for(LEN)?;
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let id = self.describe(fields.u32(8))?;
        let (guid, port) = self.device_of(&id);
        let gid = |addr: &Addr| addr.ip().map_or([0; 16], gid_of);
        let path = match id.device {
            Some(_) => user_path(id.path.as_ref(), gid(&id.dst), gid(&id.src)),
            None => Vec::new(),
        };
        let answer = Answer::default()
            .u64(guid)
            .padded(&path, 64)
            .padded(&[], 64)
            .padded(&id.src.emit(), IN6_LEN)
            .padded(&id.dst.emit(), IN6_LEN)
            .u32(id.path.is_some().into())
            .u8(port)
            .bytes(&[0; 3])
            .u32(device_index(&id))
            // Reserved.
            .u32(0);
        self.answer(fields.u64(0), &answer.0, self.header.out_len)
    }

    fn query(&self) -> Res<()> {
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let id = self.describe(fields.u32(8))?;
        let answer = match fields.u32(12) {
            0 => self.addresses(&id, id.src, id.dst)?,
            1 => self.paths(&id)?,
            2 => {
                let pkey = if id.device.is_some() { hca::device::DEFAULT_PKEY } else { 0 };
                let ib = |addr: &Addr| match addr {
                    Addr::Ib(_) => *addr,
                    addr => Addr::Ib(IbAddr {
                        pkey,
                        gid: addr.ip().map_or([0; 16], gid_of),
                        sid: id.space.service_id(addr.port()),
                        ..IbAddr::default()
                    }),
                };
                self.addresses(&id, ib(&id.src), ib(&id.dst))?
            }
            _ => return Err(Errno(libc::ENOSYS)),
        };
        self.answer(fields.u64(0), &answer, self.header.out_len)
    }

    /// `struct rdma_ucm_query_addr_resp`.
    fn addresses(&self, id: &Described, src: Addr, dst: Addr) -> Res<Vec<u8>> {
        const LEN: usize = 8 + 1 + 1 + 2 + 2 + 2 + 2 * STORAGE_LEN;
        self.room_for(LEN)?;
        let (guid, port) = self.device_of(id);
        let pkey = if id.device.is_some() { hca::device::DEFAULT_PKEY } else { 0 };
        let answer = Answer::default()
            .u64(guid)
            .bytes(&[port, 0])
            .bytes(&pkey.to_be_bytes())
            .u16(src.len() as u16)
            .u16(dst.len() as u16)
            .padded(&src.emit(), STORAGE_LEN)
            .padded(&dst.emit(), STORAGE_LEN)
            .u32(device_index(id))
            // Reserved.
            .u32(0);
        Ok(answer.0)
    }

    /// `struct rdma_ucm_query_path_resp`.
    fn paths(&self, id: &Described) -> Res<Vec<u8>> {
        self.room_for(8)?;
        let mut answer = Answer::default().u32(id.path.is_some().into()).u32(0);
        if let Some(path) = &id.path
            && self.header.out_len - 8 > PATH_DATA_LEN
        {
            answer = answer.bytes(&path_data(path));
        }
        Ok(answer.0)
    }

    fn connect(&self) -> Res<()> {
        let bytes = self.read_passed::<288>()?;
        let fields = Fields(&bytes);
        let conn = fields.conn_param(0).ok_or(INVALID)?;
        let key = self.key(fields.u32(272))?;
        let param = ConnectParam { conn, ece: fields.ece(280) };
        self.with(|cma| cma.connect(key, param, Instant::now()))
    }

    fn listen(&self) -> Res<()> {
        let bytes = self.read::<8>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(0))?;
        if self.with(|cma| cma.is_idle(key))? {
            self.bind(key, Addr::V4(Ipv4Addr::UNSPECIFIED, 0))?;
        }
        self.with(|cma| cma.may_listen(key))?;
        // First of all: from here on requests may arrive.
        self.with(|cma| cma.listen(key, fields.u32(4)))?;
        self.service.with_ports(|ports, claims| ports.listen(key, claims)).map_err(|error| {
            let _ = self.with(|cma| cma.stop_listening(key));
            errno(error)
        })
    }

    fn accept(&self) -> Res<()> {
        let bytes = self.read_passed::<296>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(280))?;
        self.find_local(key)?;
        let param = fields.conn_param(8).map(|conn| ConnectParam { conn, ece: fields.ece(288) });
        self.with(|cma| cma.accept(key, fields.u64(0), param, Instant::now()))
    }

    fn reject(&self) -> Res<()> {
        let bytes = self.read::<264>()?;
        let fields = Fields(&bytes);
        let private_data = fields.bytes(8, fields.u8(4).into());
        let key = self.key(fields.u32(0))?;
        self.with(|cma| cma.reject(key, fields.u8(5), &private_data, Instant::now()))
    }

    fn disconnect(&self) -> Res<()> {
        let bytes = self.read::<4>()?;
        let key = self.key(Fields(&bytes).u32(0))?;
        self.with(|cma| cma.disconnect(key, Instant::now()))
    }

    fn init_qp_attr(&self) -> Res<()> {
        self.room_for(144)?;
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(8))?;
        self.find_local(key)?;
        let state = fields.u32(12);
        if state > 6 {
            return Err(INVALID);
        }
        let attr = self.with(|cma| cma.init_qp_attr(key, state))?;
        self.answer(fields.u64(0), &qp_attr(&attr), 144)
    }

    fn set_option(&self) -> Res<()> {
        let bytes = self.read::<24>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(8))?;
        let (level, name, len) = (fields.u32(12), fields.u32(16), fields.u32(20) as usize);
        if len > MAX_OPTION_LEN {
            return Err(INVALID);
        }
        let mut value = vec![0; len];
        mm::guard::copy_from(fields.u64(0), &mut value).map_err(|_| Errno(libc::EFAULT))?;
        let option = option(level, name, &value)?;
        self.with(|cma| cma.set_option(key, option))?;
        if matches!(option, IdOption::ReuseAddr(_) | IdOption::AfOnly(_)) {
            let sharing = self.with(|cma| cma.sharing(key))?;
            self.service.with_ports(|ports, claims| ports.share(key, sharing, claims));
        }
        Ok(())
    }

    fn notify(&self) -> Res<()> {
        let bytes = self.read::<8>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(0))?;
        self.with(|cma| cma.notify(key, fields.u32(4), Instant::now()))
    }

    /// Only a subnet's administrator knows services by name.
    fn resolve_service(&self) -> Res<()> {
        let bytes = self.read::<4>()?;
        self.key(Fields(&bytes).u32(0))?;
        Err(Errno(libc::EOPNOTSUPP))
    }

    fn write_event(&self) -> Res<()> {
        let bytes = self.read_passed::<24>()?;
        let fields = Fields(&bytes);
        let (event, status) = (fields.u32(8), fields.u32(12) as i32);
        let key = self.key(fields.u32(0))?;
        self.with(|cma| cma.write_event(key, event, status, fields.u64(16)))
    }

    fn join_ip(&self) -> Res<()> {
        let bytes = self.read::<48>()?;
        let fields = Fields(&bytes);
        let addr = fields.addr(16, IN6_LEN);
        self.join(fields.u64(0), fields.u64(8), fields.u32(44), addr)
    }

    fn join_storage(&self) -> Res<()> {
        let bytes = self.read::<152>()?;
        let fields = Fields(&bytes);
        let addr = fields.addr(24, STORAGE_LEN);
        // Full member, or one that only sends.
        if usize::from(fields.u16(20)) != addr.len() || fields.u16(22) > 1 {
            return Err(INVALID);
        }
        self.join(fields.u64(0), fields.u64(8), fields.u32(16), addr)
    }

    fn join(&self, response: u64, uid: u64, handle: u32, addr: Addr) -> Res<()> {
        self.room_for(4)?;
        if addr.is_empty() {
            return Err(INVALID);
        }
        let key = self.key(handle)?;
        let membership = self.with(|cma| cma.join(key, &addr, uid))?;
        self.answer(response, &membership.to_ne_bytes(), 4).inspect_err(|_| {
            let _ = self.with(|cma| cma.leave(self.channel.id(), membership));
        })
    }

    fn leave(&self) -> Res<()> {
        self.room_for(4)?;
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let reported = self.with(|cma| cma.leave(self.channel.id(), fields.u32(8)))?;
        self.answer(fields.u64(0), &reported.to_ne_bytes(), 4)
    }

    fn migrate(&self) -> Res<()> {
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let from = super::channel_of(fields.u32(12) as RawFd)?;
        if !std::ptr::eq(from.engine(), self.channel.engine()) {
            return Err(INVALID);
        }
        let to = self.channel.id();
        let reported = self
            .service
            .with(from.id(), fields.u32(12) as RawFd, |cma| {
                let key = cma.key(from.id(), fields.u32(8))?;
                cma.migrate(key, to)
            })
            .map_err(errno)?;
        self.channel.take_from(&from);
        self.answer(fields.u64(0), &reported.to_ne_bytes(), 4)
    }
}

/// The address that stands for all, of the same family.
fn any_like(addr: &Addr) -> Addr {
    match addr {
        Addr::V6(_, _, _, scope) => Addr::V6(Ipv6Addr::UNSPECIFIED, 0, 0, *scope),
        Addr::Ib(ib) => Addr::Ib(IbAddr { pkey: ib.pkey, ..IbAddr::default() }),
        _ => Addr::V4(Ipv4Addr::UNSPECIFIED, 0),
    }
}

/// Who connects to all addresses means this host.
fn loopback_like(addr: &Addr, own: Option<IpAddr>) -> Addr {
    let loopback: IpAddr = match addr {
        Addr::V6(..) => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    addr.with_ip(own.unwrap_or(loopback), 0)
}

fn option(level: u32, name: u32, value: &[u8]) -> Res<IdOption> {
    let flag = || -> Res<bool> {
        let value: [u8; 4] = value.try_into().map_err(|_| INVALID)?;
        Ok(i32::from_ne_bytes(value) != 0)
    };
    let byte = || -> Res<u8> {
        let [value] = value else { return Err(INVALID) };
        Ok(*value)
    };
    match (level, name) {
        (0, 0) => Ok(IdOption::Tos(byte()?)),
        (0, 1) => Ok(IdOption::ReuseAddr(flag()?)),
        (0, 2) => Ok(IdOption::AfOnly(flag()?)),
        (0, 3) => Ok(IdOption::AckTimeout(byte()?)),
        (1, 1) => {
            if !value.len().is_multiple_of(PATH_DATA_LEN) {
                return Err(INVALID);
            }
            let paths = value.chunks_exact(PATH_DATA_LEN).map(parse_path_data);
            let found = paths.into_iter().find(|(flags, _)| *flags == PATH_FLAGS);
            Ok(IdOption::Path(found.ok_or(INVALID)?.1))
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}
