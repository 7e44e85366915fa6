#!/usr/bin/env python3
"""Recomputes the invariant CRC of every RoCEv2 packet in a capture.

An independent judge: written from IBA Annex A17.3.3, it shares no code with the Rust crates. Reads
pcap files (either byte order, micro- or nanoseconds) of link types RAW, IPV4, IPV6, NULL, ETHERNET,
SLL and SLL2, with VLAN tags, IPv4 and IPv6. Prints `N packets, N good, N bad`.

Exit status: 0 when every RoCEv2 packet is good, 1 when one is bad or there are fewer than --min, 2
when the file cannot be read as a capture. A packet that the capture cut short, or whose lengths
contradict each other, counts as bad.
"""

import argparse
import struct
import sys

ROCE_PORT = 4791
UDP = 17
ETHERTYPE_IP4 = 0x0800
ETHERTYPE_IP6 = 0x86DD
VLAN_TAGS = (0x8100, 0x88A8, 0x9100)
# IPv6 extension headers that name the next one and their length in units of 8 bytes.
IP6_OPTIONS = (0, 43, 60)

DLT_NULL, DLT_EN10MB, DLT_RAW_BSD, DLT_RAW, DLT_SLL, DLT_IPV4, DLT_IPV6, DLT_SLL2 = (
    0,
    1,
    12,
    101,
    113,
    228,
    229,
    276,
)


class Broken(Exception):
    """The packet is RoCEv2 but cannot be right."""


def make_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ 0xEDB88320 if value & 1 else value >> 1
        table.append(value)
    return table


TABLE = make_table()


def crc32(data):
    register = 0xFFFFFFFF
    for byte in data:
        register = TABLE[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def read_pcap(data):
    """Yields (link type, frame, length on the wire)."""
    if len(data) < 24:
        raise ValueError("no pcap header")
    magic = data[:4]
    if magic in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1"):
        order = "<"
    elif magic in (b"\xa1\xb2\xc3\xd4", b"\xa1\xb2\x3c\x4d"):
        order = ">"
    else:
        raise ValueError("not a pcap file (pcapng: convert it with `editcap -F pcap`)")
    link = struct.unpack(order + "I", data[20:24])[0] & 0xFFFF
    at = 24
    while at < len(data):
        if at + 16 > len(data):
            raise ValueError("capture ends inside a record header")
        _, _, kept, length = struct.unpack(order + "IIII", data[at : at + 16])
        at += 16
        if at + kept > len(data):
            raise ValueError("capture ends inside a packet")
        yield link, data[at : at + kept], length
        at += kept


def network_layer(link, frame):
    """The bytes from the IP header on, or None when the frame carries no IP."""
    if link in (DLT_RAW, DLT_RAW_BSD, DLT_IPV4, DLT_IPV6):
        return frame
    if link == DLT_NULL:
        return frame[4:]
    if link == DLT_EN10MB:
        at = 12
    elif link == DLT_SLL:
        at = 14
    elif link == DLT_SLL2:
        at = None
    else:
        raise ValueError("link type %d is not known here" % link)
    if at is None:
        if len(frame) < 20:
            return None
        kind, rest = struct.unpack("!H", frame[:2])[0], frame[20:]
    else:
        if len(frame) < at + 2:
            return None
        kind, rest = struct.unpack("!H", frame[at : at + 2])[0], frame[at + 2 :]
    while kind in VLAN_TAGS and len(rest) >= 4:
        kind, rest = struct.unpack("!H", rest[2:4])[0], rest[4:]
    return rest if kind in (ETHERTYPE_IP4, ETHERTYPE_IP6) else None


def split_ip(ip):
    """(masked IP header, UDP datagram), or None when this is no whole UDP datagram."""
    if not ip:
        return None
    version = ip[0] >> 4
    if version == 4 and len(ip) >= 20:
        header_len = (ip[0] & 15) * 4
        total, flags = struct.unpack("!H", ip[2:4])[0], struct.unpack("!H", ip[6:8])[0]
        if ip[9] != UDP or header_len < 20 or flags & 0x3FFF:
            return None
        masked = bytearray(ip[:header_len])
        masked[1] = 0xFF
        masked[8] = 0xFF
        masked[10:12] = b"\xff\xff"
        return bytes(masked), ip[header_len:total]
    if version == 6 and len(ip) >= 40:
        total = 40 + struct.unpack("!H", ip[4:6])[0]
        kind, at = ip[6], 40
        masked = bytearray(ip[:40])
        masked[0:4] = bytes([0x6F, 0xFF, 0xFF, 0xFF])
        masked[7] = 0xFF
        while kind in IP6_OPTIONS and at + 8 <= len(ip):
            step = 8 * (ip[at + 1] + 1)
            masked += ip[at : at + step]
            kind, at = ip[at], at + step
        if kind != UDP:
            return None
        return bytes(masked), ip[at:total]
    return None


def verdict(ip):
    """True or False for a RoCEv2 packet, None for anything else."""
    split = split_ip(ip)
    if split is None:
        return None
    masked_ip, udp = split
    if len(udp) < 8:
        return None
    _, destination, length, _ = struct.unpack("!HHHH", udp[:8])
    if destination != ROCE_PORT:
        return None
    if length != len(udp):
        raise Broken("UDP says %d bytes, %d are there" % (length, len(udp)))
    if length < 8 + 12 + 4:
        raise Broken("%d bytes are too few for a BTH and an ICRC" % length)
    masked_udp = udp[:6] + b"\xff\xff"
    bth = bytearray(udp[8:20])
    bth[4] = 0xFF
    covered = b"\xff" * 8 + masked_ip + masked_udp + bytes(bth) + udp[20:-4]
    expected, found = crc32(covered), struct.unpack("<I", udp[-4:])[0]
    if expected != found:
        raise Broken("ICRC is %08x, should be %08x" % (found, expected))
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("capture", help="pcap file, or - for standard input")
    parser.add_argument(
        "--min",
        type=int,
        default=0,
        metavar="N",
        help="fail when fewer than N RoCEv2 packets are found",
    )
    parser.add_argument(
        "--show",
        type=int,
        default=10,
        metavar="N",
        help="describe at most N bad packets (default 10)",
    )
    parser.add_argument(
        "--most",
        type=int,
        default=0,
        metavar="N",
        help="judge the first N packets of the capture only (default 0: all)",
    )
    arguments = parser.parse_args()
    good = bad = 0
    try:
        if arguments.capture == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(arguments.capture, "rb") as file:
                data = file.read()
        for number, (link, frame, length) in enumerate(read_pcap(data), 1):
            if arguments.most and number > arguments.most:
                break
            try:
                ip = network_layer(link, frame)
                if ip is not None and verdict(ip):
                    good += 1
            except Broken as reason:
                bad += 1
                if bad <= arguments.show:
                    cut = " (cut short by the capture)" if length > len(frame) else ""
                    print("packet %d: %s%s" % (number, reason, cut), file=sys.stderr)
    except (OSError, ValueError) as error:
        print("icrc_check: %s: %s" % (arguments.capture, error), file=sys.stderr)
        return 2
    print("%d packets, %d good, %d bad" % (good + bad, good, bad))
    if good + bad < arguments.min:
        print("icrc_check: fewer than %d RoCEv2 packets" % arguments.min, file=sys.stderr)
        return 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
