//! Connections: asked for, listened for, answered, and ended.

use super::request::{Command, errno};
use crate::base::ffi::{Errno, INVALID, Res};
use crate::ucma::host;
use crate::ucma::layout::{Fields, qp_attr};
use cma::{Addr, ConnectParam};
use std::net::Ipv4Addr;
use std::time::Instant;

impl Command<'_> {
    pub(super) fn connect(&self) -> Res<()> {
        let bytes = self.read_passed::<288>()?;
        let fields = Fields(&bytes);
        let conn = fields.conn_param(0).ok_or(INVALID)?;
        let key = self.key(fields.u32(272))?;
        let param = ConnectParam { conn, ece: fields.ece(280) };
        self.with(|cma| cma.connect(key, param, Instant::now()))
    }

    pub(super) fn listen(&self) -> Res<()> {
        let bytes = self.read::<8>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(0))?;
        if self.with(|cma| cma.is_idle(key))? {
            self.bind(key, Addr::V4(Ipv4Addr::UNSPECIFIED, 0))?;
        }
        self.with(|cma| cma.may_listen(key))?;
        if self.with(|cma| cma.describe(key))?.src.is_any() {
            host::open_all(self.channel)?;
        }
        // First of all: from here on requests may arrive.
        self.with(|cma| cma.listen(key, fields.u32(4)))?;
        self.service.with_ports(|ports, claims| ports.listen(key, claims)).map_err(|error| {
            let _ = self.with(|cma| cma.stop_listening(key));
            errno(error)
        })
    }

    pub(super) fn accept(&self) -> Res<()> {
        let bytes = self.read_passed::<296>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(280))?;
        self.find_local(key)?;
        let param = fields.conn_param(8).map(|conn| ConnectParam { conn, ece: fields.ece(288) });
        self.with(|cma| cma.accept(key, fields.u64(0), param, Instant::now()))
    }

    pub(super) fn reject(&self) -> Res<()> {
        let bytes = self.read::<264>()?;
        let fields = Fields(&bytes);
        let private_data = fields.bytes(8, fields.u8(4).into());
        let key = self.key(fields.u32(0))?;
        self.with(|cma| cma.reject(key, fields.u8(5), &private_data, Instant::now()))
    }

    pub(super) fn disconnect(&self) -> Res<()> {
        let bytes = self.read::<4>()?;
        let key = self.key(Fields(&bytes).u32(0))?;
        self.with(|cma| cma.disconnect(key, Instant::now()))
    }

    pub(super) fn init_qp_attr(&self) -> Res<()> {
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

    pub(super) fn notify(&self) -> Res<()> {
        let bytes = self.read::<8>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(0))?;
        self.with(|cma| cma.notify(key, fields.u32(4), Instant::now()))
    }

    /// Only a subnet's administrator knows services by name.
    pub(super) fn resolve_service(&self) -> Res<()> {
        let bytes = self.read::<4>()?;
        self.key(Fields(&bytes).u32(0))?;
        Err(Errno(libc::EOPNOTSUPP))
    }

    pub(super) fn write_event(&self) -> Res<()> {
        let bytes = self.read_passed::<24>()?;
        let fields = Fields(&bytes);
        let (event, status) = (fields.u32(8), fields.u32(12) as i32);
        let key = self.key(fields.u32(0))?;
        self.with(|cma| cma.write_event(key, event, status, fields.u64(16)))
    }
}
