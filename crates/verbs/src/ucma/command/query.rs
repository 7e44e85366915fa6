//! Queries: what an id knows of its device, its addresses and its path.

use super::request::Command;
use crate::base::ffi::{Errno, Res};
use crate::platform::device;
use crate::ucma::layout::{
    Answer, Fields, IN6_LEN, PATH_DATA_LEN, STORAGE_LEN, path_data, user_path,
};
use cma::{Addr, Described, IbAddr, gid_of};

/// Index of an id's device, as `ibv_get_device_index` answers it; zero before it has one.
fn device_index(id: &Described) -> u32 {
    id.device.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

impl Command<'_> {
    fn describe(&self, handle: u32) -> Res<Described> {
        let key = self.key(handle)?;
        self.find_local(key)?;
        self.with(|cma| cma.describe(key))
    }

    /// Node GUID, big-endian as in memory, and port of an id's device; zero before it has one.
    fn device_of(&self, id: &Described) -> (u64, u8) {
        id.device.map_or((0, 0), |number| (device::guid(number).to_be(), 1))
    }

    pub(super) fn query_route(&self) -> Res<()> {
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

    pub(super) fn query(&self) -> Res<()> {
        let bytes = self.read::<16>()?;
        let fields = Fields(&bytes);
        let id = self.describe(fields.u32(8))?;
        let answer = match fields.u32(12) {
            0 => self.addresses(&id, id.src, id.dst)?,
            1 => self.paths(&id)?,
            2 => {
                let pkey = if id.device.is_some() { hca::DEFAULT_PKEY } else { 0 };
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
        let pkey = if id.device.is_some() { hca::DEFAULT_PKEY } else { 0 };
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
}
