//! The classic BPF program that steers a datagram to the socket of its slot.
//!
//! The kernel runs it for every datagram (or GRO train) to the port and takes the result as an
//! index into the reuseport group. Offset 0 is the UDP payload, which is the BTH (IBA 9.2); its
//! destination QP number is bytes 5 to 7, and the slot is that number's upper 10 bits. Slots nobody
//! holds, slot 0 (QP 0 and 1) and runts go to the leader. A probe, a datagram for QP 0 with
//! [`PROBE_MAGIC`], goes to the index that it names; that is how the order of a group is found out
//! (see `locate`).
//!
//! Datagrams for QP 1 are messages of the connection manager, which every process has one of. An
//! answer goes by the upper 10 bits of the communication id that its receiver chose; a request goes
//! to the member that claimed its service id, for the address that the request's private data names
//! or for all (`services`).
//!
//! The map is a compare tree over runs of slots: runs that share an index are one leaf, and so are
//! runs where the index grows with the slot, which is what members that joined in turn look like.

use std::collections::BTreeMap;
use std::net::IpAddr;

pub use wire::QPN_INDEX_BITS;
use wire::cm::{Kind, place};

/// Number of slots; 0 is reserved.
pub const SLOTS: u16 = 1024;

/// Marks a probe: payload bytes 12 to 15, behind a BTH for QP 0.
pub(crate) const PROBE_MAGIC: u32 = 0x7044_4d41;
/// Bytes of a probe: BTH, magic, index.
pub(crate) const PROBE_BYTES: usize = 20;

/// One instruction (`struct sock_filter`).
pub(crate) type Insn = libc::sock_filter;

const LD_ABS: u16 = 0x20;
const LDH_ABS: u16 = 0x28;
const LD_MEM: u16 = 0x60;
const ST: u16 = 0x02;
const TAX: u16 = 0x07;
const XOR_X: u16 = 0xac;
const AND: u16 = 0x54;
const SUB: u16 = 0x14;
const RSH: u16 = 0x74;
const JA: u16 = 0x05;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const RET_K: u16 = 0x06;
const RET_A: u16 = 0x16;

fn op(code: u16, k: u32) -> Insn {
    Insn { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Insn {
    Insn { code, jt, jf, k }
}

/// Slots from `start` on, up to the next run.
#[derive(Clone, Copy)]
struct Run {
    start: u16,
    first: u32,
    /// The index grows by one with each slot.
    rising: bool,
}

impl Run {
    fn leaf(self) -> Vec<Insn> {
        if !self.rising {
            return vec![op(RET_K, self.first)];
        }
        let delta = u32::from(self.start).wrapping_sub(self.first);
        vec![op(SUB, delta), op(RET_A, 0)]
    }
}

fn runs(map: &BTreeMap<u16, u32>, leader: u32) -> Vec<Run> {
    let target = |slot: u16| match slot {
        0 => leader,
        _ => map.get(&slot).copied().unwrap_or(leader),
    };
    let mut runs: Vec<Run> = Vec::new();
    for slot in 0..SLOTS {
        let index = target(slot);
        if let Some(run) = runs.last_mut() {
            let offset = u32::from(slot - run.start);
            if !run.rising && index == run.first {
                continue;
            }
            if index == run.first.wrapping_add(offset) && (run.rising || offset == 1) {
                run.rising = true;
                continue;
            }
        }
        runs.push(Run { start: slot, first: index, rising: false });
    }
    runs
}

fn tree(runs: &[Run]) -> Vec<Insn> {
    if let [run] = runs {
        return run.leaf();
    }
    let (low, high) = runs.split_at(runs.len() / 2);
    let pivot = u32::from(high[0].start);
    let (low, high) = (tree(low), tree(high));
    let mut code = Vec::with_capacity(low.len() + high.len() + 2);
    match u8::try_from(low.len()) {
        Ok(skip) => code.push(jump(JGE, pivot, skip, 0)),
        Err(_) => {
            code.push(jump(JGE, pivot, 0, 1));
            code.push(op(JA, low.len() as u32));
        }
    }
    code.extend(low);
    code.extend(high);
    code
}

/// The QP of the general services interface.
const GSI_QPN: u32 = 1;
// Kinds of messages.
const REQ: u32 = Kind::Req as u32;
const SIDR_REQ: u32 = Kind::SidrReq as u32;
const SIDR_REP: u32 = Kind::SidrRep as u32;
/// Bits of a communication id below the slot of the process that chose it.
pub const COMM_ID_INDEX_BITS: u32 = 22;
/// Longest program the kernel takes (BPF_MAXINSNS).
pub(crate) const MAX_INSNS: usize = 4096;

/// An address in 32 bits, for claims of a service id at one address: IPv4 as it is, IPv6 folded.
pub fn fold(ip: IpAddr) -> u32 {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) if ip.is_unspecified() => ANY_V6,
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            (0..4).fold(0, |folded, word| folded ^ (bits >> (32 * word)) as u32)
        }
    }
}

/// The folded form of all IPv4 and of all IPv6 addresses.
pub(crate) const ANY_V4: u32 = 0;
pub(crate) const ANY_V6: u32 = u32::MAX;

/// What a steering program is made from.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'a> {
    /// Index of each slot in the group.
    pub map: &'a BTreeMap<u16, u32>,
    /// Index for everything else.
    pub leader: u32,
    /// Slot of each claimed service: its id's lower half, then its folded address.
    pub services: &'a BTreeMap<u64, u16>,
    pub v6: bool,
}

impl Plan<'_> {
    fn index(&self, slot: u16) -> u32 {
        self.map.get(&slot).copied().unwrap_or(self.leader)
    }
}

/// Leaves the folded destination address at `at` in scratch memory.
fn fold_address(at: u32, v6: bool) -> Vec<Insn> {
    if !v6 {
        return vec![op(LD_ABS, at + 12), op(ST, 0)];
    }
    let mut code = vec![op(LD_ABS, at)];
    for word in 1..4 {
        code.extend([op(TAX, 0), op(LD_ABS, at + 4 * word), op(XOR_X, 0)]);
    }
    code.push(op(ST, 0));
    code
}

/// Answers by service id, which is in the accumulator, and by the folded address.
fn services(plan: Plan<'_>) -> Vec<Insn> {
    let any = if plan.v6 { ANY_V6 } else { ANY_V4 };
    let mut groups: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
    for (key, slot) in plan.services {
        let (id, folded) = ((key >> 32) as u32, *key as u32);
        groups.entry(id).or_default().push((folded, plan.index(*slot)));
    }
    let mut code = Vec::new();
    for (id, claims) in groups {
        let wildcard = claims.iter().find(|(folded, _)| *folded == any);
        let otherwise = wildcard.map_or(plan.leader, |(_, index)| *index);
        let mut group = Vec::new();
        for (folded, index) in claims.iter().filter(|(folded, _)| *folded != any) {
            if group.is_empty() {
                group.push(op(LD_MEM, 0));
            }
            group.extend([jump(JEQ, *folded, 0, 1), op(RET_K, *index)]);
        }
        group.push(op(RET_K, otherwise));
        code.extend([jump(JEQ, id, 1, 0), op(JA, group.len() as u32)]);
        code.extend(group);
    }
    code.push(op(RET_K, plan.leader));
    code
}

/// The program that steers a group.
pub(crate) fn program(plan: Plan<'_>) -> Vec<Insn> {
    let tree = tree(&runs(plan.map, plan.leader));
    let sidr = fold_address(place::SIDR_REQ_DESTINATION, plan.v6);
    let req = fold_address(place::REQ_DESTINATION, plan.v6);
    let behind_tree = tree.len() as u32 + 1;
    let mut code = vec![
        op(LD_ABS, 4),
        op(AND, 0x00ff_ffff),
        jump(JEQ, 0, 0, 5),
        op(LD_ABS, 12),
        jump(JEQ, PROBE_MAGIC, 0, 2),
        op(LD_ABS, 16),
        op(RET_A, 0),
        op(RET_K, plan.leader),
        jump(JEQ, GSI_QPN, 0, 11),
        op(LDH_ABS, place::ATTRIBUTE),
        jump(JEQ, REQ, 7, 0),
        jump(JEQ, SIDR_REQ, 7, 0),
        jump(JEQ, SIDR_REP, 0, 2),
        op(LD_ABS, place::LOCAL_ID),
        op(JA, 1),
        op(LD_ABS, place::REMOTE_ID),
        op(RSH, COMM_ID_INDEX_BITS),
        op(JA, 3),
        op(JA, behind_tree + 1 + sidr.len() as u32 + 1),
        op(JA, behind_tree),
        op(RSH, QPN_INDEX_BITS),
    ];
    code.extend(tree);
    code.extend(sidr);
    code.push(op(JA, req.len() as u32));
    code.extend(req);
    // Service ids of the RDMA CM have no upper half (IBA annex A11).
    code.extend([op(LD_ABS, place::SERVICE_ID), jump(JEQ, 0, 1, 0), op(RET_K, plan.leader)]);
    code.push(op(LD_ABS, place::SERVICE_ID + 4));
    code.extend(services(plan));
    code
}

/// A probe for one index of a group.
pub(crate) fn probe(index: u32) -> [u8; PROBE_BYTES] {
    let mut bytes = [0; PROBE_BYTES];
    // An opcode that no transport service uses (IBA 9.2.1: manufacturer-specific).
    bytes[0] = 0xe0;
    bytes[12..16].copy_from_slice(&PROBE_MAGIC.to_be_bytes());
    bytes[16..20].copy_from_slice(&index.to_be_bytes());
    bytes
}

/// Runs a program over a payload as the kernel would.
#[cfg(test)]
pub(crate) fn execute(code: &[Insn], payload: &[u8]) -> u32 {
    let (mut pc, mut a, mut x, mut scratch) = (0_usize, 0_u32, 0_u32, 0_u32);
    loop {
        let i = &code[pc];
        pc += 1;
        match i.code {
            LD_ABS => {
                let at = i.k as usize;
                let Some(word) = payload.get(at..at + 4) else { return 0 };
                a = u32::from_be_bytes(word.try_into().unwrap());
            }
            LDH_ABS => {
                let at = i.k as usize;
                let Some(half) = payload.get(at..at + 2) else { return 0 };
                a = u32::from(u16::from_be_bytes(half.try_into().unwrap()));
            }
            LD_MEM => a = scratch,
            ST => scratch = a,
            TAX => x = a,
            XOR_X => a ^= x,
            AND => a &= i.k,
            SUB => a = a.wrapping_sub(i.k),
            RSH => a >>= i.k,
            JA => pc += i.k as usize,
            JEQ => pc += usize::from(if a == i.k { i.jt } else { i.jf }),
            JGE => pc += usize::from(if a >= i.k { i.jt } else { i.jf }),
            RET_K => return i.k,
            RET_A => return a,
            other => panic!("instruction {other:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bth(qpn: u32) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[4..8].copy_from_slice(&(0xab00_0000 | qpn).to_be_bytes());
        bytes
    }

    fn steer(map: &BTreeMap<u16, u32>, leader: u32, services: &BTreeMap<u64, u16>) -> Vec<Insn> {
        program(Plan { map, leader, services, v6: false })
    }

    fn check(map: &BTreeMap<u16, u32>, leader: u32) -> usize {
        let code = steer(map, leader, &BTreeMap::new());
        for slot in 1..SLOTS {
            let want = map.get(&slot).copied().unwrap_or(leader);
            for low in [0, 0x1555, 0x3fff] {
                let qpn = u32::from(slot) << QPN_INDEX_BITS | low;
                assert_eq!(execute(&code, &bth(qpn)), want, "slot {slot}");
            }
        }
        assert_eq!(execute(&code, &bth(0)), 0, "too short to be a probe");
        assert_eq!(execute(&code, &probe(77)), 77);
        let mut not_probe = probe(77);
        not_probe[13] ^= 1;
        assert_eq!(execute(&code, &not_probe), leader);
        assert_eq!(execute(&code, &mad(0x99, [0; 3], None)), leader);
        code.len()
    }

    /// A MAD with its attribute, the words behind its header, and a destination address in its
    /// private data.
    fn mad(attribute: u16, words: [u32; 3], to: Option<IpAddr>) -> Vec<u8> {
        let mut bytes = bth(GSI_QPN).to_vec();
        bytes.resize(12 + 8 + 256, 0);
        bytes[36..38].copy_from_slice(&attribute.to_be_bytes());
        for (at, word) in [44, 48, 56].into_iter().zip(words) {
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        let at = if u32::from(attribute) == REQ { 204 } else { 80 };
        match to {
            Some(IpAddr::V4(ip)) => bytes[at + 12..at + 16].copy_from_slice(&ip.octets()),
            Some(IpAddr::V6(ip)) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
            None => {}
        }
        bytes
    }

    #[test]
    fn answers_of_the_connection_manager_go_by_the_id_their_receiver_chose() {
        let map = [(5, 0), (6, 1), (9, 2)].into();
        let code = steer(&map, 0, &BTreeMap::new());
        let id = |slot: u32| slot << COMM_ID_INDEX_BITS | 0x12345;
        for attribute in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a] {
            assert_eq!(execute(&code, &mad(attribute, [id(5), id(9), 0], None)), 2);
        }
        assert_eq!(execute(&code, &mad(0x18, [id(6), id(9), 0], None)), 1);
        assert_eq!(execute(&code, &mad(0x13, [id(6), id(7), 0], None)), 0, "nobody's");
    }

    #[test]
    fn requests_go_to_the_member_that_holds_the_service_at_the_address() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let key = |id: u32, to: &str| u64::from(id) << 32 | u64::from(fold(ip(to)));
        let map = [(5, 0), (6, 1), (9, 2), (10, 3)].into();
        let services = [
            (key(0x0106_1111, "0.0.0.0"), 6),
            (key(0x0106_2222, "10.0.0.1"), 9),
            (key(0x0106_2222, "10.0.0.2"), 10),
            (key(0x0106_3333, "fe80::1"), 9),
            (key(0x0106_3333, "::"), 10),
        ]
        .into();
        for (v6, cases) in [
            (
                false,
                &[
                    (0x0106_1111, "10.0.0.7", 1),
                    (0x0106_2222, "10.0.0.1", 2),
                    (0x0106_2222, "10.0.0.2", 3),
                    (0x0106_2222, "10.0.0.3", 0),
                    (0x0111_2222, "10.0.0.1", 0),
                ][..],
            ),
            (true, &[(0x0106_3333, "fe80::1", 2), (0x0106_3333, "fe80::2", 3)][..]),
        ] {
            let code = program(Plan { map: &map, leader: 0, services: &services, v6 });
            for &(id, to, index) in cases {
                for attribute in [0x10, 0x17] {
                    let request = mad(attribute, [0, 0, id], Some(ip(to)));
                    assert_eq!(execute(&code, &request), index, "{id:#x} at {to}");
                }
                let mut foreign = mad(0x10, [0, 0, id], Some(ip(to)));
                foreign[52] = 1;
                assert_eq!(execute(&code, &foreign), 0, "not of the RDMA CM");
            }
        }
    }

    #[test]
    fn members_that_joined_in_turn_cost_few_instructions() {
        let map = (0..900).map(|i| (100 + i as u16, i)).collect();
        assert!(check(&map, 0) < 48);
    }

    #[test]
    fn every_slot_finds_its_index_in_any_map_within_the_kernels_limit() {
        let mut x = 88_172_645_463_325_252_u64;
        for members in [0, 1, 2, 3, 10, 100, 400, 512, 700, 1023] {
            let mut slots: Vec<u16> = (1..SLOTS).collect();
            for i in (1..slots.len()).rev() {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                slots.swap(i, x as usize % (i + 1));
            }
            let map = slots.iter().take(members).zip(0..).map(|(s, i)| (*s, i)).collect();
            assert!(check(&map, 3) <= MAX_INSNS, "{members} members");
        }
        let alternating = (0..512).map(|i| (2 * i as u16 + 1, i)).collect();
        assert!(check(&alternating, 5) <= MAX_INSNS);
    }
}
