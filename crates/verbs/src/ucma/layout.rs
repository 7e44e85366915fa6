//! The structures of `rdma/rdma_user_cm.h`, `rdma/ib_user_verbs.h` and `rdma/ib_user_sa.h` as
//! bytes: reading commands out of the program's memory and building answers.

use crate::base::ffi::{Errno, Res};
use cma::{Addr, AddressVector, ConnParam, DatagramParam, Delivered, Ece, Param, Path, QpAttr};
use mm::{Sink, Source};

const FAULT: Errno = Errno(libc::EFAULT);
/// Length of the private data field.
const PRIVATE_DATA_LEN: usize = 256;
/// `struct rdma_ucm_ud_param`.
const UD_PARAM_LEN: usize = 8 + 32 + PRIVATE_DATA_LEN + 8;
/// `struct rdma_ucm_event_resp` before it had ECE.
pub const EVENT_LEN_OLD: usize = 8 + 12 + UD_PARAM_LEN;
/// `struct __kernel_sockaddr_storage`.
pub const STORAGE_LEN: usize = 128;
/// `struct sockaddr_in6`.
pub const IN6_LEN: usize = 28;

/// Reads `N` bytes of the program's memory.
///
/// # Safety
/// The program's command is at `at`, or names it as a place to read.
pub unsafe fn read<const N: usize>(at: u64) -> Res<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the caller's promise.
    unsafe { read_into(at, &mut bytes) }?;
    Ok(bytes)
}

/// Fills `into` from the program's memory.
///
/// # Safety
/// As for [`read`].
pub unsafe fn read_into(at: u64, into: &mut [u8]) -> Res<()> {
    // SAFETY: the caller's promise.
    unsafe { Source::vouched(at, into.len() as u64) }.read(into).map_err(|_| FAULT)
}

/// Writes an answer, cut to what the program has room for.
///
/// # Safety
/// The program's command names `at` as the place for its answer.
pub unsafe fn write(at: u64, bytes: &[u8], room: usize) -> Res<()> {
    let bytes = bytes.get(..room.min(bytes.len())).unwrap_or_default();
    // SAFETY: with the command the program asked for an answer there.
    unsafe { Sink::vouched(at, bytes.len() as u64) }.write(bytes).map_err(|_| FAULT)
}

/// Fields of a command by their offset. Beyond the end all is zero.
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let found = self.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
        found.unwrap_or([0; N])
    }

    pub fn u8(&self, at: usize) -> u8 {
        self.array::<1>(at)[0]
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    /// An address in `room` bytes; none for an unknown family.
    pub fn addr(&self, at: usize, room: usize) -> Addr {
        let bytes = self.0.get(at..at + room).unwrap_or_default();
        Addr::parse(bytes).unwrap_or_default()
    }

    /// `struct rdma_ucm_ece`.
    pub fn ece(&self, at: usize) -> Ece {
        Ece { vendor_id: self.u32(at), attr_mod: self.u32(at + 4) }
    }

    /// Private data whose length is given.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        self.0.get(at..at + len).unwrap_or_default().to_vec()
    }

    /// `struct rdma_ucm_conn_param`; `None` when it is not valid.
    pub fn conn_param(&self, at: usize) -> Option<ConnParam> {
        let tail = at + 8 + PRIVATE_DATA_LEN;
        if self.u8(tail + 7) == 0 {
            return None;
        }
        Some(ConnParam {
            qp_num: self.u32(at),
            qkey: self.u32(at + 4),
            private_data: self.bytes(at + 8, self.u8(tail).into()),
            srq: self.u8(tail + 1) != 0,
            responder_resources: self.u8(tail + 2),
            initiator_depth: self.u8(tail + 3),
            flow_control: self.u8(tail + 4) != 0,
            retry_count: self.u8(tail + 5),
            rnr_retry_count: self.u8(tail + 6),
        })
    }
}

/// Bytes of an answer, appended in order.
#[derive(Default)]
pub struct Answer(pub Vec<u8>);

impl Answer {
    /// Appends bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Answer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends bytes and as many zeros as bring them to `len`.
    pub fn padded(self, bytes: &[u8], len: usize) -> Answer {
        let end = self.0.len() + len;
        let mut answer = self.bytes(bytes.get(..len.min(bytes.len())).unwrap_or_default());
        answer.0.resize(end, 0);
        answer
    }

    /// Appends a byte.
    pub fn u8(self, value: u8) -> Answer {
        self.bytes(&[value])
    }

    /// Appends two bytes.
    pub fn u16(self, value: u16) -> Answer {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends four bytes.
    pub fn u32(self, value: u32) -> Answer {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends eight bytes.
    pub fn u64(self, value: u64) -> Answer {
        self.bytes(&value.to_ne_bytes())
    }

    /// `struct ib_uverbs_ah_attr`.
    fn ah(self, ah: Option<AddressVector>) -> Answer {
        let Some(ah) = ah else { return self.padded(&[], 32) };
        self.bytes(&ah.dgid)
            .u32(ah.flow_label)
            .bytes(&[ah.sgid_index, ah.hop_limit, ah.traffic_class, 0])
            .u16(ah.dlid)
            // Service level, path bits, static rate, global, port.
            .bytes(&[0, 0, 0, 1, 1, 0])
    }
}

fn conn_param(param: &ConnParam) -> Answer {
    Answer::default()
        .u32(param.qp_num)
        .u32(param.qkey)
        .padded(&param.private_data, PRIVATE_DATA_LEN)
        .u8(param.private_data.len() as u8)
        .u8(param.srq.into())
        .u8(param.responder_resources)
        .u8(param.initiator_depth)
        .u8(param.flow_control.into())
        .u8(param.retry_count)
        .u8(param.rnr_retry_count)
        .u8(0)
}

fn datagram_param(param: &DatagramParam) -> Answer {
    Answer::default()
        .u32(param.qp_num)
        .u32(param.qkey)
        .ah(Some(param.ah))
        .padded(&param.private_data, PRIVATE_DATA_LEN)
        .u8(param.private_data.len() as u8)
        .bytes(&[0; 7])
}

/// `struct rdma_ucm_event_resp`.
pub fn event(delivered: &Delivered) -> Vec<u8> {
    let event = &delivered.event;
    let param = match &event.param {
        Param::Conn(param) => conn_param(param),
        Param::Datagram(param) => datagram_param(param),
        Param::Argument(argument) => Answer::default().u64(*argument),
    };
    Answer::default()
        .u64(delivered.uid)
        .u32(delivered.handle)
        .u32(event.kind as u32)
        .u32(event.status as u32)
        .padded(&param.0, UD_PARAM_LEN)
        .u32(0)
        .u32(event.ece.vendor_id)
        .u32(event.ece.attr_mod)
        .0
}

/// `struct ib_uverbs_qp_attr`.
pub fn qp_attr(attr: &QpAttr) -> Vec<u8> {
    Answer::default()
        .u32(attr.mask)
        .u32(attr.state)
        .u32(0)
        .u32(attr.path_mtu)
        .u32(0)
        .u32(attr.qkey)
        .u32(attr.rq_psn)
        .u32(attr.sq_psn)
        .u32(attr.dest_qp_num)
        .u32(attr.access_flags)
        .ah(attr.ah)
        .ah(None)
        .padded(&[], 5 * 4)
        // P_Key indices, SQD notification, draining.
        .padded(&[], 2 + 2 + 1 + 1)
        .u8(attr.max_rd_atomic)
        .u8(attr.max_dest_rd_atomic)
        // RNR timer, port.
        .bytes(&[0, 1])
        .u8(attr.timeout)
        .u8(attr.retry_cnt)
        .u8(attr.rnr_retry)
        // Alternate port and timeout, reserved.
        .padded(&[], 1 + 1 + 5)
        .0
}

const MTU_EXACTLY: u8 = 2;

/// `struct ib_user_path_rec` of a path, or what is known before there is one.
pub fn user_path(path: Option<&Path>, dgid: [u8; 16], sgid: [u8; 16]) -> Vec<u8> {
    let Some(path) = path else {
        return Answer::default()
            .bytes(&dgid)
            .bytes(&sgid)
            .padded(&[], 4 + 16)
            .bytes(&hca::DEFAULT_PKEY.to_be_bytes())
            .padded(&[], 10)
            .0;
    };
    Answer::default()
        .bytes(&path.dgid)
        .bytes(&path.sgid)
        .padded(&[], 4 + 4)
        .bytes(&path.flow_label.to_be_bytes())
        // Reversible.
        .u32(1)
        .u32(path.mtu.into())
        .bytes(&hca::DEFAULT_PKEY.to_be_bytes())
        .u8(path.hop_limit)
        .u8(path.traffic_class)
        // Number of paths, service level.
        .bytes(&[0, 0])
        .u8(MTU_EXACTLY)
        .u8(MTU_EXACTLY)
        .u8(cma::RATE)
        .u8(MTU_EXACTLY)
        .u8(path.packet_life_time)
        .u8(0)
        .0
}

/// A path that serves in both directions, first choice, also for management datagrams
/// (`IB_PATH_GMP` and so on).
pub const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
/// `struct ib_path_rec_data`.
pub const PATH_DATA_LEN: usize = 8 + 64;

/// `struct ib_path_rec_data` with the path record as the subnet administrator packs it (IBA
/// 15.2.5.16).
pub fn path_data(path: &Path) -> Vec<u8> {
    let selected = |value: u8| MTU_EXACTLY << 6 | value;
    Answer::default()
        .u32(PATH_FLAGS)
        .u32(0)
        // Service id.
        .padded(&[], 8)
        .bytes(&path.dgid)
        .bytes(&path.sgid)
        // LIDs.
        .padded(&[], 4)
        .bytes(&(path.flow_label << 8 | u32::from(path.hop_limit)).to_be_bytes())
        .u8(path.traffic_class)
        // Reversible.
        .u8(0x80)
        .bytes(&hca::DEFAULT_PKEY.to_be_bytes())
        .padded(&[], 2)
        .u8(selected(path.mtu))
        .u8(selected(cma::RATE))
        .u8(selected(path.packet_life_time))
        .u8(0)
        .padded(&[], 6)
        .0
}

/// Reads the path out of `struct ib_path_rec_data`: its flags, and what RoCE has of it.
pub fn parse_path_data(bytes: &[u8]) -> (u32, Path) {
    let fields = Fields(bytes);
    let record = 8;
    let label = u32::from_be_bytes(fields.array(record + 8 + 32 + 4));
    let at = record + 8 + 32 + 8;
    let packet_life_time = fields.u8(at + 8) & 0x3f;
    let path = Path {
        sgid: [0; 16],
        dgid: [0; 16],
        flow_label: label >> 8 & 0xf_ffff,
        hop_limit: label as u8,
        traffic_class: fields.u8(at),
        mtu: fields.u8(at + 6) & 0x3f,
        packet_life_time,
        ack_timeout: packet_life_time.saturating_add(1).min(31),
    };
    (fields.u32(0), path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_lengths() {
        assert_eq!(conn_param(&ConnParam::default()).0.len(), 272);
        assert_eq!(datagram_param(&DatagramParam::default()).0.len(), UD_PARAM_LEN);
        assert_eq!(qp_attr(&QpAttr::default()).len(), 144);
        assert_eq!(user_path(None, [0; 16], [0; 16]).len(), 64);
        let path = Path {
            sgid: [0; 16],
            dgid: [0; 16],
            flow_label: 0x12345,
            hop_limit: 64,
            traffic_class: 8,
            mtu: 3,
            packet_life_time: 18,
            ack_timeout: 19,
        };
        assert_eq!(user_path(Some(&path), [0; 16], [0; 16]).len(), 64);
        let data = path_data(&path);
        assert_eq!(data.len(), PATH_DATA_LEN);
        assert_eq!(parse_path_data(&data), (PATH_FLAGS, path));
    }
}
