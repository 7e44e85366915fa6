#!/usr/bin/env python3
"""Sends hostile RoCEv2 packets to the queue pairs of a running program, from a plain UDP socket,
without privilege.

It is a program of the same user, whose packets arrive: it sends from the RoCE port, which only that
user may bind. Its socket is on an address that nobody else uses, so it takes nothing away. With
--other-user it sends from any port, as anybody may.

Targets come from the lines `target NAME TYPE QPN PSN RKEY ADDRESS LENGTH` and `address IP` of a
file (the output of tests/c/processes/victim.c). Without them only the families run that need none.
NAME says what a queue pair is for:

  quiet-*   idle, stands at PSN; nothing that a receiver must accept is aimed at it
  prey-*    serves requests; acceptable forgeries are aimed at it, and it may end in error
  asking-*  waits for answers from PSN on; likewise

Every packet carries the right ICRC unless its family says otherwise. That works because an
unconnected socket with IP_PMTUDISC_DO sends IPv4 packets with DF and identification 0. The seed is
printed; the same seed and targets give the same packets. An own small implementation, from IBA
chapter 9 and annex A17; it shares no code with the Rust crates.
"""

import argparse
import ipaddress
import random
import socket
import struct
import sys
import zlib

PORT = 4791
PKEY = 0xFFFF
QKEY = 0x11223344
MTU = 1024
PSN_MASK = 0xFFFFFF

SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(6)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(6, 12)
READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ACK, ATOMIC_ACK, SWAP, ADD = range(
    12, 21
)
SEND_LAST_INV, SEND_ONLY_INV = 22, 23
RC, UC, RD, UD, XRC = 0x00, 0x20, 0x40, 0x60, 0xA0
CNP = 0x81
SERVICES = {"rc": RC, "uc": UC, "ud": UD}

FLUSH, ATOMIC_WRITE = 0x1C, 0x1D
RETH = {WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM, READ_REQUEST, FLUSH, ATOMIC_WRITE}
AETH = {READ_FIRST, READ_LAST, READ_ONLY, ACK, ATOMIC_ACK}
IMM = {SEND_LAST_IMM, SEND_ONLY_IMM, WRITE_LAST_IMM, WRITE_ONLY_IMM, SEND_LAST_INV, SEND_ONLY_INV}


class Target:
    def __init__(self, line):
        _, self.name, self.kind, *numbers = line.split()
        self.qpn, self.psn, self.rkey, self.va, self.length = map(int, numbers)
        self.service = SERVICES[self.kind]


class Wire:
    """A socket, and the ICRC of what leaves it."""

    def __init__(self, source, destination, other_user):
        self.version = ipaddress.ip_address(source).version
        family = socket.AF_INET if self.version == 4 else socket.AF_INET6
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        if self.version == 4:
            self.socket.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        if other_user:
            self.socket.bind((source, 0))
        else:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.socket.bind(("127.47.91.1" if self.version == 4 else "::1", PORT))
        self.to = (destination, PORT)
        packed = ipaddress.ip_address(source).packed
        if self.version == 4:  # IP_PKTINFO, IPV6_PKTINFO: the source address
            self.control = [(socket.IPPROTO_IP, 8, struct.pack("=I4s4s", 0, packed, bytes(4)))]
        else:
            self.control = [(socket.IPPROTO_IPV6, 50, struct.pack("=16sI", packed, 0))]
        self.port = self.socket.getsockname()[1]
        self.addresses = (
            ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
        )
        self.sent = 0

    def icrc(self, packet, identification=0):
        length = 8 + len(packet) + 4
        if self.version == 4:
            ip = struct.pack(
                "!BBHHHBBH", 0x45, 0xFF, 20 + length, identification, 0x4000, 0xFF, 17, 0xFFFF
            )
        else:
            ip = struct.pack("!IHBB", 0x6FFFFFFF, length, 17, 0xFF)
        udp = struct.pack("!HHHH", self.port, PORT, length, 0xFFFF)
        bth = packet[:4] + b"\xff" + packet[5:]
        return zlib.crc32(b"\xff" * 8 + ip + self.addresses + udp + bth)

    def raw(self, data):
        try:
            self.socket.sendmsg([data], self.control, 0, self.to)
            self.sent += 1
        except OSError:
            pass  # Longer than the path, or nobody there: not what is tried here.

    def send(self, packet):
        self.raw(packet + struct.pack("<I", self.icrc(packet)))

    def wrong_icrc(self, packet, rng):
        """An ICRC that is wrong for every identification, which a receiver on IPv4 cannot see."""
        right = self.icrc(packet)
        basis = []
        for bit in range(16 if self.version == 4 else 0):
            basis.append(right ^ self.icrc(packet, 1 << bit))
        while True:
            wrong = rng.getrandbits(32)
            if not spans(basis, wrong ^ right):
                return struct.pack("<I", wrong)


def spans(vectors, wanted):
    """Whether `wanted` is a sum over GF(2) of some of `vectors`."""
    reduced = []
    for vector in vectors:
        for other in reduced:
            vector = min(vector, vector ^ other)
        if vector:
            reduced.append(vector)
    for other in sorted(reduced, reverse=True):
        wanted = min(wanted, wanted ^ other)
    return wanted == 0


def bth(opcode, qpn, psn, pad=0, pkey=PKEY, version=0, flags=0x40, ack=True):
    return struct.pack(
        "!BBHII",
        opcode,
        flags & 0xC0 | (pad & 3) << 4 | version & 15,
        pkey,
        qpn & 0xFFFFFF,
        (0x80000000 if ack else 0) | psn & PSN_MASK,
    )


def extensions(rng, opcode, va, rkey, length, syndrome=None):
    """Extension headers in their order for an opcode with its service bits."""
    service, operation = opcode & 0xE0, opcode & 0x1F
    out = b""
    if service == UD:
        out += struct.pack("!II", QKEY, rng.getrandbits(24))
    if service == XRC:
        out += struct.pack("!I", rng.getrandbits(24))
    if operation == FLUSH:
        out += struct.pack("!I", rng.choice((1, 2, 3, 0x11, 0x13, rng.getrandbits(32))))
    if operation in RETH:
        out += struct.pack("!QII", va & (1 << 64) - 1, rkey & 0xFFFFFFFF, length & 0xFFFFFFFF)
    if operation in (SWAP, ADD):
        out += struct.pack(
            "!QIQQ", va & (1 << 64) - 1, rkey & 0xFFFFFFFF, rng.getrandbits(64), rng.getrandbits(64)
        )
    if operation in AETH:
        out += struct.pack(
            "!BBH", rng.getrandbits(8) if syndrome is None else syndrome, 0, rng.getrandbits(16)
        )
    if operation == ATOMIC_ACK:
        out += struct.pack("!Q", rng.getrandbits(64))
    if operation in IMM:
        out += struct.pack("!I", rng.choice((rkey, rng.getrandbits(32))) & 0xFFFFFFFF)
    return out


def padded(rng, length):
    """(payload with padding, pad count)"""
    pad = -length & 3
    return rng.randbytes(length) + bytes(pad), pad


def perfect(rng, target, psn=None, pkey=PKEY, version=0, operation=SEND_ONLY):
    """What the target would accept, were it not for what the caller changes."""
    payload, pad = padded(rng, rng.randrange(0, 500))
    opcode = target.service | operation
    head = bth(opcode, target.qpn, target.psn if psn is None else psn, pad, pkey, version)
    return head + extensions(rng, opcode, target.va, target.rkey, len(payload) - pad) + payload


# Families that no receiver may let have an effect. Each yields packets without ICRC, or sends by
# itself.


def garbage(rng, wire, targets):
    data = rng.randbytes(
        rng.choice((rng.randrange(0, 64), rng.randrange(0, 1500), rng.randrange(0, 9000)))
    )
    if rng.random() < 0.5 and len(data) >= 5:
        return data
    return wire.raw(data)


def truncated(rng, wire, targets):
    target = rng.choice(targets)
    operation = (
        rng.choice((SEND_ONLY_IMM, WRITE_ONLY, READ_REQUEST, SWAP, ADD))
        if target.service == RC
        else SEND_ONLY_IMM
    )
    opcode = target.service | operation
    whole = bth(opcode, target.qpn, target.psn) + extensions(rng, opcode, target.va, target.rkey, 8)
    return whole[: rng.randrange(5, len(whole))]


def foreign_opcodes(rng, wire, targets):
    target = rng.choice(targets)
    while True:
        opcode = rng.getrandbits(8)
        reserved = opcode & 0x1F > (0x17 if target.service == RC else 0x0B) or opcode & 0x1F == 0x15
        if target.service == RC and opcode & 0x1F in (FLUSH, ATOMIC_WRITE):
            reserved = False
        if opcode & 0xE0 != target.service or reserved:
            break
    payload, pad = padded(rng, rng.randrange(0, 64))
    return (
        bth(opcode, target.qpn, target.psn, pad)
        + extensions(rng, opcode, target.va, target.rkey, 64)
        + payload
    )


def unknown_qps(rng, wire, targets):
    known = {target.qpn for target in targets}
    slots = {qpn >> 14 for qpn in known}
    slot = rng.choice(sorted(slots)) if slots and rng.random() < 0.5 else rng.getrandbits(10)
    # The victim's own numbers follow one another; anything far from them is nobody's.
    while True:
        qpn = slot << 14 | rng.getrandbits(14)
        if all(abs(qpn - other) > 300 for other in known):
            break
    opcode = rng.choice((RC, UC, UD)) | rng.randrange(0, 24)
    payload, pad = padded(rng, rng.randrange(0, 64))
    return bth(opcode, qpn, rng.getrandbits(24), pad) + extensions(rng, opcode, 0, 0, 64) + payload


def partitions(rng, wire, targets):
    while True:
        pkey = rng.getrandbits(16)
        if pkey & 0x7FFF != 0x7FFF:
            return perfect(rng, rng.choice(targets), pkey=pkey)


def checksums(rng, wire, targets):
    packet = perfect(rng, rng.choice(targets))
    return wire.raw(packet + wire.wrong_icrc(packet, rng))


def versions(rng, wire, targets):
    return perfect(rng, rng.choice(targets), version=rng.randrange(1, 16))


def padding(rng, wire, targets):
    """More padding than there is payload."""
    target = rng.choice(targets)
    opcode = target.service | SEND_ONLY
    short = rng.randrange(0, 3)
    head = bth(opcode, target.qpn, target.psn, pad=rng.randrange(short + 1, 4))
    return head + extensions(rng, opcode, 0, 0, 0) + bytes(short)


def stale_answers(rng, wire, targets):
    """ACKs, NAKs and responses for requests that a queue pair never made."""
    target = rng.choice([t for t in targets if t.service == RC])
    operation = rng.choice(
        (ACK, ACK, ACK, ATOMIC_ACK, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY)
    )
    payload, pad = (
        padded(rng, rng.choice((0, 8, MTU)))
        if operation in range(READ_FIRST, READ_ONLY + 1)
        else (b"", 0)
    )
    psn = rng.choice((target.psn, target.psn + rng.randrange(-50, 50), rng.getrandbits(24)))
    return bth(operation, target.qpn, psn, pad) + extensions(rng, operation, 0, 0, 0) + payload


def repetitions(rng, wire, targets):
    """Requests that are already served, as far as their PSN says."""
    target = rng.choice([t for t in targets if t.service == RC])
    operation = rng.choice(
        (SEND_ONLY, SEND_FIRST, SEND_LAST, WRITE_ONLY, WRITE_FIRST, READ_REQUEST, SWAP, ADD)
    )
    length = rng.choice((8, 8192, 0xFFFFFFFF))
    rkey = rng.choice((target.rkey, target.rkey ^ 0xFF00, 0))
    payload, pad = padded(rng, 0 if operation in (READ_REQUEST, SWAP, ADD) else 64)
    psn = target.psn - rng.randrange(1, 1 << 22)
    return (
        bth(operation, target.qpn, psn, pad)
        + extensions(rng, operation, target.va, rkey, length)
        + payload
    )


def early(rng, wire, targets):
    """Requests ahead of the PSN that comes next."""
    target = rng.choice([t for t in targets if t.service == RC])
    return perfect(
        rng,
        target,
        psn=target.psn + rng.randrange(1, 1 << 22),
        operation=rng.choice((SEND_ONLY, WRITE_ONLY)),
    )


def queue_keys(rng, wire, targets):
    target = rng.choice([t for t in targets if t.service == UD])
    packet = bytearray(perfect(rng, target))
    while True:
        qkey = rng.getrandbits(32)
        if qkey != QKEY:
            packet[12:16] = struct.pack("!I", qkey)
            return bytes(packet)


def management(rng, wire, targets):
    """Datagrams to QP0 and QP1 with MADs that nobody can read."""
    payload = bytearray(rng.randbytes(256))
    payload[:2] = bytes((1, rng.choice((7, 3, rng.getrandbits(8)))))
    head = bth(UD | SEND_ONLY, rng.choice((0, 1, 1, 1)), rng.getrandbits(24))
    return (
        head
        + struct.pack("!II", rng.choice((0x80010000, 0)), 1)
        + bytes(payload[: rng.choice((256, 256, 20, 100))])
    )


def congestion(rng, wire, targets):
    target = rng.choice(targets)
    return bth(CNP, target.qpn, rng.getrandbits(24)) + bytes(rng.choice((16, 16, 0, 3, 200)))


# Families of forgeries that may be accepted: the connection may end, nothing worse.


def edges(rng, target):
    """An address and a length around the ends of the memory that the key opens."""
    va = target.va + rng.choice(
        (0, 0, 1, target.length - 64, target.length, -1, -MTU, rng.randrange(target.length))
    )
    length = rng.choice(
        (0, 8, 64, 500, MTU, MTU + 1, 3 * MTU, target.length, 1 << 31, (1 << 31) + 1, 0xFFFFFFFF)
    )
    return va, length


def forged_requests(rng, wire, targets):
    """A short message from the expected PSN on: often right, with one thing or another out of
    order."""
    target = rng.choice(targets)
    va, length = edges(rng, target)
    rkey = (
        target.rkey
        if rng.random() < 0.8
        else rng.choice((0, target.rkey ^ 1, target.rkey + 256, rng.getrandbits(32)))
    )
    psn = target.psn
    kind = rng.randrange(4)
    if kind == 0:
        steps = [
            rng.choice(
                (
                    SEND_ONLY,
                    SEND_ONLY_IMM,
                    SEND_ONLY_INV,
                    WRITE_ONLY,
                    WRITE_ONLY_IMM,
                    READ_REQUEST,
                    SWAP,
                    ADD,
                    FLUSH,
                    ATOMIC_WRITE,
                )
            )
        ]
    elif kind == 1:
        steps = (
            [WRITE_FIRST]
            + [WRITE_MIDDLE] * rng.randrange(4)
            + [rng.choice((WRITE_LAST, WRITE_LAST_IMM))]
        )
    elif kind == 2:
        steps = (
            [SEND_FIRST]
            + [SEND_MIDDLE] * rng.randrange(4)
            + [rng.choice((SEND_LAST, SEND_LAST_IMM, SEND_LAST_INV))]
        )
    else:
        steps = [rng.randrange(0, 24) for _ in range(4)]
    for operation in steps:
        opcode = target.service | operation
        whole = operation in (SEND_FIRST, SEND_MIDDLE, WRITE_FIRST, WRITE_MIDDLE)
        size = (
            MTU
            if whole and rng.random() < 0.9
            else rng.choice((0, 1, 8, 500, min(length, MTU), MTU, MTU + 4, 4096))
        )
        if operation in (READ_REQUEST, SWAP, ADD, FLUSH) and rng.random() < 0.9:
            size = 0
        if operation == ATOMIC_WRITE and rng.random() < 0.9:
            size = length = 8
        payload, pad = padded(rng, size)
        wire.send(
            bth(opcode, target.qpn, psn, pad, ack=rng.random() < 0.7)
            + extensions(rng, opcode, va, rkey, length)
            + payload
        )
        psn += 1


def forged_answers(rng, wire, targets):
    """Answers to requests that wait for some: acknowledges, refusals, data of wrong lengths and
    kinds."""
    target = rng.choice(targets)
    psn = target.psn + rng.choice((0, 0, 0, 1, 2, 7, 8, 9, 16, 24, rng.randrange(40)))
    operation = rng.choice((ACK, ACK, ATOMIC_ACK, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY))
    syndrome = rng.choice(
        (0x1F, 0x1F, 0x60, 0x61, 0x62, 0x63, 0x64, 0x20, 0x3F, 0x7F, 0xFF, rng.getrandbits(8))
    )
    run = rng.choice((1, 1, 8)) if operation in (READ_FIRST, READ_MIDDLE) else 1
    for step in range(run):
        kind = operation if step == 0 else READ_MIDDLE if step < 7 else READ_LAST
        size = (
            rng.choice((MTU, MTU, MTU, 0, 4, MTU - 4, MTU + 4, 4096))
            if kind in range(READ_FIRST, READ_ONLY + 1)
            else 0
        )
        payload, pad = padded(rng, size)
        wire.send(
            bth(kind, target.qpn, psn + step, pad)
            + extensions(rng, kind, 0, 0, 0, syndrome)
            + payload
        )


def forged_datagrams(rng, wire, targets):
    target = rng.choice(targets)
    opcode = UD | rng.choice((SEND_ONLY, SEND_ONLY_IMM))
    payload, pad = padded(rng, rng.choice((0, 1, 40, MTU, 4055, 4056, 4057, 4096, 4100, 9000)))
    return (
        bth(opcode, target.qpn, rng.getrandbits(24), pad)
        + extensions(rng, opcode, 0, 0, 0)
        + payload
    )


def random_checksums(rng, wire, targets):
    packet = perfect(rng, rng.choice(targets))
    return wire.raw(packet + rng.randbytes(4))


QUIET = (
    garbage,
    truncated,
    foreign_opcodes,
    unknown_qps,
    partitions,
    checksums,
    versions,
    padding,
    stale_answers,
    repetitions,
    early,
    queue_keys,
    management,
    congestion,
)
WITHOUT_TARGETS = (garbage, unknown_qps, management)


def families(targets):
    """(name, function, its targets, whether from an address that is not the peer's)"""
    if not targets:
        return [(f.__name__, f, [], False) for f in WITHOUT_TARGETS]
    quiet = [t for t in targets if t.name.startswith("quiet-")]
    connected = [t for t in quiet if t.service != UD]
    prey = [t for t in targets if t.name.startswith("prey-")]
    asking = [t for t in targets if t.name.startswith("asking-")]
    plan = [(f.__name__, f, quiet, False) for f in QUIET]
    plan.append(
        ("strangers", lambda rng, wire, some: perfect(rng, rng.choice(some)), connected, True)
    )
    plan.append(("strange_answers", stale_answers, connected, True))
    plan.append(("forged_requests", forged_requests, [t for t in prey if t.service != UD], False))
    plan.append(("forged_answers", forged_answers, asking, False))
    plan.append(("forged_datagrams", forged_datagrams, [t for t in prey if t.service == UD], False))
    plan.append(("random_checksums", random_checksums, prey, False))
    return plan


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", help="file with the victim's `target` lines")
    parser.add_argument(
        "--address",
        help="where the victim and its peers are (default: as the file says, or 127.0.0.1)",
    )
    parser.add_argument("--stranger", default="127.0.0.2", help="another address of this machine")
    parser.add_argument(
        "--count", type=int, default=20000, help="calls of each family, of one packet or a few"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--other-user", action="store_true", help="send from any port")
    parser.add_argument("--only", action="append", help="run only this family; may be given again")
    arguments = parser.parse_args()
    targets = []
    if arguments.targets:
        with open(arguments.targets, encoding="utf-8") as lines:
            lines = list(lines)
        targets = [Target(line) for line in lines if line.startswith("target ")]
        said = [line.split()[1] for line in lines if line.startswith("address ")]
        if not targets or not said:
            parser.error("no target or no address in %s" % arguments.targets)
        arguments.address = arguments.address or said[0]
    address = arguments.address or "127.0.0.1"
    print("seed %d, %d targets" % (arguments.seed, len(targets)), flush=True)
    near, far = (
        Wire(source, address, arguments.other_user) for source in (address, arguments.stranger)
    )
    plan = [
        entry for entry in families(targets) if not arguments.only or entry[0] in arguments.only
    ]
    # In turns, so that every family meets every state of the victim.
    rngs = [random.Random("%d %s" % (arguments.seed, name)) for name, _, _, _ in plan]
    sent = [0] * len(plan)
    for _ in range(arguments.count):
        for number, (_, make, some, strange) in enumerate(plan):
            wire = far if strange else near
            before = wire.sent
            packet = make(rngs[number], wire, some)
            if packet is not None:
                wire.send(packet)
            sent[number] += wire.sent - before
    for (name, _, _, _), count in zip(plan, sent):
        print("%s %d" % (name, count))
    print("total %d" % sum(sent))
    return 0 if all(sent) else 1


if __name__ == "__main__":
    sys.exit(main())
