//! Where steered frames go on: transport interface receives (PRM "TIR Context" `tirc`) to a receive queue, or by a hash through
//! an indirection table (`rqtc`) to one of many.

use crate::bits::Field;
use crate::opcode::Status;
use hca::{HASH_KEY_LEN, HashFields, RxHash};
use wire::frame::Frame;

/// `tirc` in the commands that carry one.
const CONTEXT_BIT: usize = 0x100;
const KIND: Field = Field::new(0x20, 4).at(CONTEXT_BIT);
pub(super) const QUEUE: Field = Field::new(0xe8, 24).at(CONTEXT_BIT);
const SYMMETRIC: Field = Field::new(0x100, 1).at(CONTEXT_BIT);
pub(super) const TABLE: Field = Field::new(0x108, 24).at(CONTEXT_BIT);
const TUNNELED: Field = Field::new(0x102, 1).at(CONTEXT_BIT);
const HASH: Field = Field::new(0x120, 4).at(CONTEXT_BIT);
/// Which frames of the same transport domain arrive (`self_lb_block`, which drivers take to allow them).
const LOOPS: Field = Field::new(0x126, 2).at(CONTEXT_BIT);
const LOOPS_UNICAST: u64 = 1;
const LOOPS_MULTICAST: u64 = 2;
pub(super) const DOMAIN: Field = Field::new(0x128, 24).at(CONTEXT_BIT);
const KEY: std::ops::Range<usize> = 0x48..0x48 + HASH_KEY_LEN;
const HASHED_V6: Field = Field::new(0x280, 1).at(CONTEXT_BIT);
const HASHED_UDP: Field = Field::new(0x281, 1).at(CONTEXT_BIT);
const HASHED: Field = Field::new(0x282, 30).at(CONTEXT_BIT);
const MERGING: Field = Field::new(0x94, 4).at(CONTEXT_BIT);
const DIRECT: u64 = 0;
const INDIRECT: u64 = 1;
const TOEPLITZ: u64 = 2;
/// Which parts of `MODIFY_TIR` are meant.
const MODIFIED: Field = Field::new(0x80, 64);
const MODIFY_MERGING: u64 = 1;
const MODIFY_TABLE: u64 = 2;
const MODIFY_HASH: u64 = 4;
const MODIFY_LOOPBACK: u64 = 16;

/// A transport interface receive.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tir {
    to: Destination,
    domain: u32,
    /// [`LOOPS`].
    loops: u64,
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
    fn of(input: &[u8]) -> Result<Option<Hash>, Status> {
        type F = HashFields;
        if HASH.get(input) != TOEPLITZ {
            return Ok(None);
        }
        let (v6, udp) = (HASHED_V6.is_set(input), HASHED_UDP.is_set(input));
        let selected = HASHED.get(input);
        let mut fields = F::empty();
        let all = [
            (1, if v6 { F::SRC_IPV6 } else { F::SRC_IPV4 }),
            (2, if v6 { F::DST_IPV6 } else { F::DST_IPV4 }),
            (4, if udp { F::SRC_PORT_UDP } else { F::SRC_PORT_TCP }),
            (8, if udp { F::DST_PORT_UDP } else { F::DST_PORT_TCP }),
        ];
        all.iter().filter(|(bit, _)| selected & bit != 0).for_each(|(_, field)| fields |= *field);
        let key = input.get(KEY).ok_or(Status::BadInputLength)?;
        let hash = RxHash::new(fields, key)?;
        Ok(Some(Hash { hash, symmetric: SYMMETRIC.is_set(input) }))
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
    use wire::frame::{Ip, Ipv4, Ipv6, Ports};
    let ip = frame.ip.map(|ip| match ip {
        Ip::V4(ip) => Ip::V4(Ipv4 { src: ip.dst, dst: ip.src, ..ip }),
        Ip::V6(ip) => Ip::V6(Ipv6 { src: ip.dst, dst: ip.src, ..ip }),
    });
    let ports = frame.ports.map(|ports| Ports { src: ports.dst, dst: ports.src });
    Frame { ip, ports, ..*frame }
}

impl Tir {
    /// As `create_tir_in` describes it.
    pub(super) fn new(input: &[u8]) -> Result<Tir, Status> {
        if MERGING.get(input) != 0 || TUNNELED.is_set(input) {
            return Err(Status::BadParameter);
        }
        let to = match KIND.get(input) {
            DIRECT => Destination::Queue(QUEUE.get32(input)),
            INDIRECT => Destination::Table { table: TABLE.get32(input), hash: Hash::of(input)? },
            _ => return Err(Status::BadParameter),
        };
        Ok(Tir { to, domain: DOMAIN.get32(input), loops: LOOPS.get(input) })
    }

    /// Whether it takes a frame that `from`, a transport domain of the same port, sent.
    pub(super) fn takes_from(&self, from: u32, frame: &Frame) -> bool {
        let needed = if frame.is_multicast() { LOOPS_MULTICAST } else { LOOPS_UNICAST };
        from != self.domain || self.loops & needed != 0
    }

    /// `MODIFY_TIR`.
    pub(super) fn modify(&mut self, input: &[u8]) -> Result<(), Status> {
        let which = MODIFIED.get(input);
        let known = MODIFY_MERGING | MODIFY_TABLE | MODIFY_HASH | MODIFY_LOOPBACK;
        if which & !known != 0 || (which & MODIFY_MERGING != 0 && MERGING.get(input) != 0) {
            return Err(Status::BadParameter);
        }
        if let Destination::Table { table, hash } = &mut self.to {
            if which & MODIFY_TABLE != 0 {
                *table = TABLE.get32(input);
            }
            if which & MODIFY_HASH != 0 {
                *hash = Hash::of(input)?;
            }
        } else if which & (MODIFY_TABLE | MODIFY_HASH) != 0 {
            return Err(Status::BadResourceState);
        }
        if which & MODIFY_LOOPBACK != 0 {
            self.loops = LOOPS.get(input);
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
pub(super) const LOG_MAX_TABLE: u64 = 11;

/// The queues of an indirection table that a command lists (`rqtc`).
pub(super) fn table(input: &[u8]) -> Result<Vec<u32>, Status> {
    const SIZE: Field = Field::new(CONTEXT_BIT + 0xd0, 16);
    const LIST: usize = (CONTEXT_BIT + 0x780) / 8;
    let size = SIZE.get(input) as usize;
    if size > 1 << LOG_MAX_TABLE {
        return Err(Status::Limits);
    }
    let list = input.get(LIST..).unwrap_or_default();
    let list = list.get(..size * 4).ok_or(Status::BadInputLength)?;
    Ok(list.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word) & 0xff_ffff).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::frame::{Ip, Ipv4, PROTOCOL_TCP, Ports};

    fn conversation() -> Frame {
        let ip = Ipv4 {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            protocol: PROTOCOL_TCP,
            tos: 0,
            ttl: 64,
            dont_fragment: true,
            more_fragments: false,
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

    fn indirect(symmetric: u64) -> Tir {
        let mut input = vec![0x6d; 0x110];
        for (field, value) in [
            (KIND, INDIRECT),
            (TABLE, 3),
            (HASH, TOEPLITZ),
            (SYMMETRIC, symmetric),
            (HASHED_V6, 0),
            (HASHED_UDP, 0),
            (HASHED, 15),
            (MERGING, 0),
            (TUNNELED, 0),
        ] {
            field.set(&mut input, value);
        }
        for (index, byte) in input[KEY].iter_mut().enumerate() {
            *byte = (index * 37 + 11) as u8;
        }
        Tir::new(&input).unwrap()
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
        let symmetric = indirect(1);
        assert_eq!(at(&symmetric, &forth), at(&symmetric, &back));
        let plain = indirect(0);
        assert_ne!(at(&plain, &forth), at(&plain, &back));
        assert_eq!(plain.queue(&forth, |_| None), None);
        assert_eq!(plain.queue(&forth, |_| Some(&[])), None);
    }

    #[test]
    fn frames_of_the_same_domain_arrive_where_they_may() {
        let mut input = vec![0; 0x110];
        DOMAIN.set(&mut input, 5);
        let mut tir = Tir::new(&input).unwrap();
        let (unicast, group) = (Frame { dst: [2; 6], ..conversation() }, conversation());
        let taken = |tir: &Tir| {
            [(5, &unicast), (5, &group), (6, &unicast), (6, &group)]
                .map(|(from, frame)| tir.takes_from(from, frame))
        };
        assert_eq!(taken(&tir), [false, false, true, true]);
        MODIFIED.set(&mut input, MODIFY_LOOPBACK);
        LOOPS.set(&mut input, LOOPS_UNICAST);
        tir.modify(&input).unwrap();
        assert_eq!(taken(&tir), [true, false, true, true]);
    }

    #[test]
    fn tables_that_are_cut_short_are_refused() {
        let mut input = vec![0; 0x110 + 8];
        Field::new(CONTEXT_BIT + 0xd0, 16).set(&mut input, 2);
        input[0x110..].copy_from_slice(&[0, 0, 0, 5, 0, 0, 0, 6]);
        assert_eq!(table(&input), Ok(vec![5, 6]));
        input.pop();
        assert_eq!(table(&input), Err(Status::BadInputLength));
        Field::new(CONTEXT_BIT + 0xd0, 16).set(&mut input, 0xffff);
        assert_eq!(table(&input), Err(Status::Limits));
    }
}
