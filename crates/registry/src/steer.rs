//! The classic BPF program that steers a datagram to the socket of its slot.
//!
//! The kernel runs it for every datagram (or GRO train) to the port and takes the result as an index
//! into the reuseport group. Offset 0 is the UDP payload, which is the BTH (IBA 9.2); its destination
//! QP number is bytes 5 to 7, and the slot is that number's upper 10 bits. Slots nobody holds,
//! slot 0 (QP 0 and 1) and runts go to the leader. A probe, a datagram for QP 0 with [`PROBE_MAGIC`],
//! goes to the index that it names; that is how the order of a group is found out (see `locate`).
//!
//! The map is a compare tree over runs of slots: runs that share an index are one leaf, and so are
//! runs where the index grows with the slot, which is what members that joined in turn look like.

use std::collections::BTreeMap;

/// Bits of a queue pair's index within its slot.
pub const QPN_INDEX_BITS: u32 = 14;
/// Number of slots; 0 is reserved.
pub const SLOTS: u16 = 1024;

/// Marks a probe: payload bytes 12 to 15, behind a BTH for QP 0.
pub(crate) const PROBE_MAGIC: u32 = 0x7044_4d41;
/// Bytes of a probe: BTH, magic, index, token.
pub(crate) const PROBE_BYTES: usize = 24;

/// One instruction (`struct sock_filter`).
pub(crate) type Insn = libc::sock_filter;

const LD_ABS: u16 = 0x20;
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

/// The program for a map from slot to index in the group; `leader` is the index for everything else.
pub(crate) fn program(map: &BTreeMap<u16, u32>, leader: u32) -> Vec<Insn> {
    let mut code = vec![
        op(LD_ABS, 4),
        op(AND, 0x00ff_ffff),
        jump(JEQ, 0, 0, 5),
        op(LD_ABS, 12),
        jump(JEQ, PROBE_MAGIC, 0, 2),
        op(LD_ABS, 16),
        op(RET_A, 0),
        op(RET_K, leader),
        op(RSH, QPN_INDEX_BITS),
    ];
    code.extend(tree(&runs(map, leader)));
    code
}

/// A socket filter that drops the probes with this token and nothing else. Its offset 0 is the UDP
/// header.
pub(crate) fn probe_trap(token: u32) -> [Insn; 9] {
    [
        op(LD_ABS, 8 + 4),
        op(AND, 0x00ff_ffff),
        jump(JEQ, 0, 0, 5),
        op(LD_ABS, 8 + 12),
        jump(JEQ, PROBE_MAGIC, 0, 3),
        op(LD_ABS, 8 + 20),
        jump(JEQ, token, 0, 1),
        op(RET_K, 0),
        op(RET_K, u32::MAX),
    ]
}

/// A probe for one index of a group.
pub(crate) fn probe(index: u32, token: u32) -> [u8; PROBE_BYTES] {
    let mut bytes = [0; PROBE_BYTES];
    // An opcode that no transport service uses (IBA 9.2.1: manufacturer-specific).
    bytes[0] = 0xe0;
    bytes[12..16].copy_from_slice(&PROBE_MAGIC.to_be_bytes());
    bytes[16..20].copy_from_slice(&index.to_be_bytes());
    bytes[20..24].copy_from_slice(&token.to_be_bytes());
    bytes
}

/// Runs a program over a payload as the kernel would.
#[cfg(test)]
pub(crate) fn execute(code: &[Insn], payload: &[u8]) -> u32 {
    let (mut pc, mut a) = (0_usize, 0_u32);
    loop {
        let i = &code[pc];
        pc += 1;
        match i.code {
            LD_ABS => {
                let at = i.k as usize;
                let Some(word) = payload.get(at..at + 4) else { return 0 };
                a = u32::from_be_bytes(word.try_into().unwrap());
            }
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

    fn check(map: &BTreeMap<u16, u32>, leader: u32) -> usize {
        let code = program(map, leader);
        for slot in 1..SLOTS {
            let want = map.get(&slot).copied().unwrap_or(leader);
            for low in [0, 0x1555, 0x3fff] {
                let qpn = u32::from(slot) << QPN_INDEX_BITS | low;
                assert_eq!(execute(&code, &bth(qpn)), want, "slot {slot}");
            }
        }
        assert_eq!(execute(&code, &bth(0)), 0, "too short to be a probe");
        assert_eq!(execute(&code, &bth(1)), leader);
        assert_eq!(execute(&code, &probe(77, 1)), 77);
        let mut not_probe = probe(77, 1);
        not_probe[13] ^= 1;
        assert_eq!(execute(&code, &not_probe), leader);
        code.len()
    }

    #[test]
    fn members_that_joined_in_turn_cost_few_instructions() {
        let map = (0..900).map(|i| (100 + i as u16, i)).collect();
        assert!(check(&map, 0) < 24);
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
            assert!(check(&map, 3) <= 4096, "{members} members");
        }
        let alternating = (0..512).map(|i| (2 * i as u16 + 1, i)).collect();
        assert!(check(&alternating, 5) <= 4096);
    }

    #[test]
    fn the_trap_drops_its_own_probes_only() {
        let trap = probe_trap(5);
        let udp = |payload: &[u8]| [&[0_u8; 8], payload].concat();
        assert_eq!(execute(&trap, &udp(&probe(1, 5))), 0);
        assert_eq!(execute(&trap, &udp(&probe(1, 6))), u32::MAX);
        let mut packet = [0_u8; 64];
        packet[..12].copy_from_slice(&bth(0x12_3456));
        assert_eq!(execute(&trap, &udp(&packet)), u32::MAX);
    }
}
