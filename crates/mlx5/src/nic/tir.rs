//! Where steered frames go on: transport interface receives (PRM "TIR Context" `tirc`) to a receive
//! queue, or by a hash through an indirection table (`rqtc`) to one of many.

use crate::layout::head::Status;
use crate::request::nic::{CreateRqt, CreateTir, ModifyTir};
use hca::{HashFields, RxHash};
use wire::frame::{Frame, Ports};

// Values of `self_lb_block`.
const LOOPS_UNICAST: u8 = 1;
const LOOPS_MULTICAST: u8 = 2;
// Values of `disp_type` and `rx_hash_fn`.
const DIRECT: u8 = 0;
const INDIRECT: u8 = 1;
const TOEPLITZ: u8 = 2;
/// Which parts of `MODIFY_TIR` are meant.
const MODIFY_MERGING: u64 = 1;
const MODIFY_TABLE: u64 = 2;
const MODIFY_HASH: u64 = 4;
const MODIFY_LOOPBACK: u64 = 16;

/// A transport interface receive.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tir {
    to: Destination,
    domain: u32,
    /// Which frames of the same transport domain arrive (`self_lb_block`).
    loops: u8,
}

/// Where its frames go.
#[derive(Clone, PartialEq, Debug)]
enum Destination {
    /// One queue.
    Queue(u32),
    /// One of a table's.
    Table { table: u32, hash: Option<Hash> },
}

/// How frames are hashed.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Hash {
    hash: RxHash,
    /// Both directions of a conversation get one hash.
    symmetric: bool,
}

impl Hash {
    fn of(request: &CreateTir) -> Result<Option<Hash>, Status> {
        type F = HashFields;
        if request.rx_hash_fn != TOEPLITZ {
            return Ok(None);
        }
        let (v6, udp) = (request.l3_prot_type, request.l4_prot_type);
        let selected = request.selected_fields;
        let mut fields = F::empty();
        let all = [
            (1, if v6 { F::SRC_IPV6 } else { F::SRC_IPV4 }),
            (2, if v6 { F::DST_IPV6 } else { F::DST_IPV4 }),
            (4, if udp { F::SRC_PORT_UDP } else { F::SRC_PORT_TCP }),
            (8, if udp { F::DST_PORT_UDP } else { F::DST_PORT_TCP }),
        ];
        all.iter().filter(|(bit, _)| selected & bit != 0).for_each(|(_, field)| fields |= *field);
        let key = request.rx_hash_toeplitz_key.ok_or(Status::BadInputLength)?;
        let hash = RxHash::new(fields, &key)?;
        Ok(Some(Hash { hash, symmetric: request.rx_hash_symmetric }))
    }

    fn value(&self, frame: &Frame) -> u32 {
        let forth = self.hash.of(frame).unwrap_or(0);
        if !self.symmetric {
            return forth;
        }
        forth ^ self.hash.of(&reversed(frame)).unwrap_or(0)
    }
}

/// The frame of an answer.
fn reversed(frame: &Frame) -> Frame {
    let ip = frame.ip.map(|ip| ip.reversed());
    let ports = frame.ports.map(|ports| Ports { src: ports.dst, dst: ports.src });
    Frame { ip, ports, ..*frame }
}

impl Tir {
    /// As `create_tir_in` describes it.
    pub(super) fn new(request: &CreateTir) -> Result<Tir, Status> {
        if request.lro_enable_mask != 0 || request.tunneled_offload_en {
            return Err(Status::BadParameter);
        }
        let to = match request.disp_type {
            DIRECT => Destination::Queue(request.inline_rqn),
            INDIRECT => {
                Destination::Table { table: request.indirect_table, hash: Hash::of(request)? }
            }
            _ => return Err(Status::BadParameter),
        };
        Ok(Tir { to, domain: request.transport_domain, loops: request.self_lb_block })
    }

    /// Whether it takes a frame that `from`, a transport domain of the same port, sent.
    pub(super) fn takes_from(&self, from: u32, frame: &Frame) -> bool {
        let needed = if frame.is_multicast() { LOOPS_MULTICAST } else { LOOPS_UNICAST };
        from != self.domain || self.loops & needed != 0
    }

    /// `MODIFY_TIR`.
    pub(super) fn modify(&mut self, request: &ModifyTir) -> Result<(), Status> {
        let (which, new) = (request.bitmask, &request.new);
        let known = MODIFY_MERGING | MODIFY_TABLE | MODIFY_HASH | MODIFY_LOOPBACK;
        if which & !known != 0 || (which & MODIFY_MERGING != 0 && new.lro_enable_mask != 0) {
            return Err(Status::BadParameter);
        }
        if let Destination::Table { table, hash } = &mut self.to {
            if which & MODIFY_TABLE != 0 {
                *table = new.indirect_table;
            }
            if which & MODIFY_HASH != 0 {
                *hash = Hash::of(new)?;
            }
        } else if which & (MODIFY_TABLE | MODIFY_HASH) != 0 {
            return Err(Status::BadResourceState);
        }
        if which & MODIFY_LOOPBACK != 0 {
            self.loops = new.self_lb_block;
        }
        Ok(())
    }

    /// The queue that a frame goes to; `table` gives the queues of an indirection table.
    pub(super) fn queue<'a>(
        &self,
        frame: &Frame,
        table: impl FnOnce(u32) -> Option<&'a [u32]>,
    ) -> Option<u32> {
        match &self.to {
            Destination::Queue(queue) => Some(*queue),
            Destination::Table { table: number, hash } => {
                let queues = table(*number)?;
                let value = hash.as_ref().map_or(0, |hash| hash.value(frame));
                queues.get(value as usize % queues.len().max(1)).copied()
            }
        }
    }
}

/// Most entries of an indirection table, as a logarithm.
pub(crate) const LOG_MAX_TABLE: u64 = 11;

/// The queues of an indirection table that a command lists (`rqtc`).
pub(crate) fn table(request: &CreateRqt) -> Result<Vec<u32>, Status> {
    let size = usize::from(request.rqt_actual_size);
    if size > 1 << LOG_MAX_TABLE {
        return Err(Status::Limits);
    }
    let list = request.rq_num.get(..size).ok_or(Status::BadInputLength)?;
    Ok(list.iter().map(|word| word & 0xff_ffff).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ip::{Ip, PROTOCOL_TCP};
    use wire::ipv4;

    fn conversation() -> Frame {
        let ip = ipv4::Repr {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            protocol: PROTOCOL_TCP,
            tos: 0,
            ttl: 64,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: 0,
        };
        Frame {
            dst: [1; 6],
            src: [2; 6],
            vlan: None,
            ether_type: 0x800,
            ip: Some(Ip::V4(ip)),
            ports: Some(Ports { src: 1000, dst: 80 }),
        }
    }

    fn indirect(rx_hash_symmetric: bool) -> Tir {
        let request = CreateTir {
            disp_type: INDIRECT,
            indirect_table: 3,
            rx_hash_fn: TOEPLITZ,
            rx_hash_symmetric,
            selected_fields: 15,
            rx_hash_toeplitz_key: Some(std::array::from_fn(|index| (index * 37 + 11) as u8)),
            ..CreateTir::default()
        };
        Tir::new(&request).unwrap()
    }

    #[test]
    fn a_conversation_has_one_queue_in_both_directions() {
        let queues: Vec<u32> = (0..64).collect();
        let (forth, back) = (conversation(), reversed(&conversation()));
        let at = |tir: &Tir, frame| {
            tir.queue(frame, |number| {
                assert_eq!(number, 3);
                Some(&queues[..])
            })
        };
        let symmetric = indirect(true);
        assert_eq!(at(&symmetric, &forth), at(&symmetric, &back));
        let plain = indirect(false);
        assert_ne!(at(&plain, &forth), at(&plain, &back));
        assert_eq!(plain.queue(&forth, |_| None), None);
        assert_eq!(plain.queue(&forth, |_| Some(&[])), None);
    }

    #[test]
    fn frames_of_the_same_domain_arrive_where_they_may() {
        let new = CreateTir { transport_domain: 5, ..CreateTir::default() };
        let mut tir = Tir::new(&new).unwrap();
        let (unicast, group) = (Frame { dst: [2; 6], ..conversation() }, conversation());
        let taken = |tir: &Tir| {
            [(5, &unicast), (5, &group), (6, &unicast), (6, &group)]
                .map(|(from, frame)| tir.takes_from(from, frame))
        };
        assert_eq!(taken(&tir), [false, false, true, true]);
        let new = CreateTir { self_lb_block: LOOPS_UNICAST, ..new };
        tir.modify(&ModifyTir { tirn: 0, bitmask: MODIFY_LOOPBACK, new }).unwrap();
        assert_eq!(taken(&tir), [true, false, true, true]);
    }

    #[test]
    fn tables_that_are_cut_short_are_refused() {
        let mut request = CreateRqt { rqt_actual_size: 2, rq_num: vec![5, 6] };
        assert_eq!(table(&request), Ok(vec![5, 6]));
        request.rq_num.pop();
        assert_eq!(table(&request), Err(Status::BadInputLength));
        request.rqt_actual_size = 0xffff;
        assert_eq!(table(&request), Err(Status::Limits));
    }
}
