//! Who on this host may send to a socket on the RoCE port: only who has such a socket too.
//!
//! All sockets on the port of one network namespace are of one user, since the kernel lets nobody
//! else bind a port that is bound with `SO_REUSEPORT`. So what comes over the loopback interface
//! *from* that port is this user's, and anything else from this host is a stranger's. [`program`]
//! is a classic BPF socket filter that drops it before it is queued, at the sender's cost. Packets
//! of other hosts pass: there any source port is right (IBA A17.9.1).

use crate::network::{ipv4, ipv6};

/// One instruction (`struct sock_filter`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip where a condition holds.
    pub jt: u8,
    /// Instructions to skip where it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Whether anybody on this host may send to multicast groups that the socket is in. The loopback
/// interface carries groups of queue pairs, which a Q_Key guards and whose senders use any port;
/// those of an InfiniBand subnet and of an Ethernet are sent to from the port itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Groups {
    /// Nobody but who has the port.
    Closed,
    /// Anybody; the socket is of IPv4.
    OpenV4,
    /// Anybody; the socket is of IPv6.
    OpenV6,
}

const LD_ABS: u16 = 0x20;
const LDH_ABS: u16 = 0x28;
const LDB_ABS: u16 = 0x30;
const AND: u16 = 0x54;
const JEQ: u16 = 0x15;
const RET: u16 = 0x06;
/// Where a filter finds the interface's index (SKF_AD_OFF + SKF_AD_IFINDEX) and the network header
/// (SKF_NET_OFF).
const IFINDEX: u32 = 0xffff_f000 + 8;
const NETWORK: u32 = 0xfff0_0000;
/// Index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;
/// Offsets of the destination address.
const IPV4_DESTINATION: u32 = ipv4::field::DESTINATION.start as u32;
const IPV6_DESTINATION: u32 = ipv6::field::DESTINATION.start as u32;

const fn op(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

const fn equal(k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code: JEQ, jt, jf, k }
}

/// The filter of a socket that is bound to UDP `port`. The UDP header is at its offset 0.
pub fn program(port: u16, groups: Groups) -> Vec<Instruction> {
    let multicast = match groups {
        Groups::Closed => None,
        Groups::OpenV4 => Some([
            op(LD_ABS, NETWORK + IPV4_DESTINATION),
            op(AND, 0xf000_0000),
            equal(0xe000_0000, 1, 0),
        ]),
        Groups::OpenV6 => {
            Some([op(LDB_ABS, NETWORK + IPV6_DESTINATION), op(AND, 0xff), equal(0xff, 1, 0)])
        }
    };
    let tail = multicast.into_iter().flatten();
    let to_accept = if groups == Groups::Closed { 1 } else { 4 };
    [
        op(LD_ABS, IFINDEX),
        equal(LOOPBACK, 0, 2 + to_accept),
        op(LDH_ABS, 0),
        equal(port.into(), to_accept, 0),
    ]
    .into_iter()
    .chain(tail)
    .chain([op(RET, 0), op(RET, u32::MAX)])
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram as the filter sees it.
    struct Seen {
        ifindex: u32,
        network: [u8; 40],
        udp: [u8; 8],
    }

    fn seen(ifindex: u32, source_port: u16, destination: &[u8]) -> Seen {
        let mut seen = Seen { ifindex, network: [0; 40], udp: [0; 8] };
        seen.udp[..2].copy_from_slice(&source_port.to_be_bytes());
        let at = if destination.len() == 4 { IPV4_DESTINATION } else { IPV6_DESTINATION } as usize;
        seen.network[at..at + destination.len()].copy_from_slice(destination);
        seen
    }

    fn load(seen: &Seen, k: u32, bytes: usize) -> u32 {
        if k == IFINDEX {
            return seen.ifindex;
        }
        let (from, at) = match k.checked_sub(NETWORK) {
            Some(at) => (&seen.network[..], at as usize),
            None => (&seen.udp[..], k as usize),
        };
        from[at..at + bytes].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
    }

    fn accepts(program: &[Instruction], seen: &Seen) -> bool {
        let (mut at, mut a) = (0, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LD_ABS => a = load(seen, k, 4),
                LDH_ABS => a = load(seen, k, 2),
                LDB_ABS => a = load(seen, k, 1),
                AND => a &= k,
                JEQ => at += usize::from(if a == k { jt } else { jf }),
                RET => return k != 0,
                _ => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn from_this_host_only_the_port_itself_may_send() {
        for groups in [Groups::Closed, Groups::OpenV4, Groups::OpenV6] {
            let program = program(4791, groups);
            let to: &[u8] = if groups == Groups::OpenV6 { &[0xfd; 16] } else { &[127, 0, 0, 1] };
            assert!(accepts(&program, &seen(1, 4791, to)));
            for stranger in [0, 4790, 4792, 0xC000, 53] {
                assert!(!accepts(&program, &seen(1, stranger, to)), "{groups:?} {stranger}");
                assert!(accepts(&program, &seen(2, stranger, to)), "another host's");
            }
        }
    }

    #[test]
    fn groups_are_open_to_all_where_they_shall_be() {
        let v4 = seen(1, 0xC000, &[239, 1, 2, 3]);
        assert!(accepts(&program(4791, Groups::OpenV4), &v4));
        assert!(!accepts(&program(4791, Groups::Closed), &v4));
        let mut group = [0; 16];
        group[0] = 0xff;
        assert!(accepts(&program(4791, Groups::OpenV6), &seen(1, 0xC000, &group)));
    }
}
