#!/usr/bin/env python3
"""What a program of another user on the same host may try against programs on the software HCA,
without privilege.

  stranger.py junk SLOT COUNT     datagrams to the queue pairs of a slot and to the port's
                                  management interface
  stranger.py call COUNT          datagrams and connections to every abstract socket of the registry
  stranger.py crowd               connects to the registry's sockets without end, as fast as it can,
                                  so that their backlogs are full
  stranger.py port                takes UDP port 4791
  stranger.py squat UID           holds every name of that user's registry that can be foreseen,
                                  with full backlogs

What has a COUNT sends ten thousand a second. It prints `ready` when it begins, and `sent N` at its
end; what squats stays.
"""

import random
import socket
import struct
import sys
import time
import zlib

RATE = 10000


def paced(count, each):
    """Calls `each` with 0, 1, … in steps of a millisecond; never faster than the rate."""
    print("ready", flush=True)
    begun = time.monotonic()
    for number in range(count):
        if number % (RATE // 1000) == 0:
            time.sleep(max(0.0, begun + number / RATE - time.monotonic()))
        each(number)
    print("sent %d" % count, flush=True)


def junk(slot, count):
    rng = random.Random(4791)
    sockets = []
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        for _ in range(16):
            one = socket.socket(family, socket.SOCK_DGRAM)
            one.bind((address, 0))
            sockets.append((one, (address, 4791)))

    def send(number):
        one, to = sockets[number % len(sockets)]
        qpn = rng.choice((0, 1, slot << 14 | rng.getrandbits(14)))
        packet = struct.pack(
            "!BBHII", rng.choice((4, 0x24, 0x64)), 0x40, 0xFFFF, qpn, rng.getrandbits(24)
        )
        packet += struct.pack("!II", 0x80010000, 1) + bytes((1, 7, 2, 3)) + rng.randbytes(252)
        try:
            one.sendto(packet + struct.pack("<I", zlib.crc32(packet)), to)
        except OSError:
            pass

    paced(count, send)


def call(count):
    idle = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    idle.setblocking(False)
    with open("/proc/net/unix", encoding="utf-8") as lines:
        words = [line.split() for line in lines]
    names = {
        (word[4], "\0" + word[7][1:])
        for word in words
        if len(word) > 7 and word[7].startswith("@peerdma/")
    }
    deeds = [name for kind, name in names if kind == "0002"]
    listeners = [name for kind, name in names if kind == "0005"]
    if not deeds or not listeners:
        sys.exit("no registry here")

    def send(number):
        try:
            if number % 10:
                idle.sendto(b"look", deeds[number % len(deeds)])
            else:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
                    caller.setblocking(False)
                    caller.connect(listeners[number % len(listeners)])
        except OSError:
            pass

    paced(count, send)


def crowd():
    with open("/proc/net/unix", encoding="utf-8") as lines:
        words = [line.split() for line in lines]
    names = [
        "\0" + word[7][1:]
        for word in words
        if len(word) > 7 and word[4] == "0005" and word[7].startswith("@peerdma/")
    ]
    if not names:
        sys.exit("no registry here")
    full = 0
    while True:
        for name in names:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
                caller.setblocking(False)
                try:
                    caller.connect(name)
                except BlockingIOError:
                    full += 1
                    if full == 1:
                        print("ready", flush=True)
                except OSError:
                    pass


def port():
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("0.0.0.0", 4791))
    print("ready", flush=True)
    time.sleep(300)


def squat(uid):
    kept = []

    def hold(kind, name):
        one = socket.socket(socket.AF_UNIX, kind)
        kept.append(one)
        try:
            one.bind("\0" + name)
        except OSError:
            return None
        return one

    for version in range(1, 5):
        base = "peerdma/%d/%d" % (version, uid)
        for generation in range(16):
            name = base + ("/g%d" % generation if generation else "")
            listener = hold(socket.SOCK_SEQPACKET, name)
            if listener:
                listener.listen(0)
            # Of a registry that is there already the backlog is filled as well.
            for _ in range(1 if listener else 2000):
                caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                caller.setblocking(False)
                kept.append(caller)
                try:
                    caller.connect("\0" + name)
                except OSError:
                    break
        for slot in range(1, 1024):
            hold(socket.SOCK_DGRAM, "%s/slot/%d" % (base, slot))
    print("ready", flush=True)
    time.sleep(300)


if __name__ == "__main__":
    {"junk": junk, "call": call, "crowd": crowd, "port": port, "squat": squat}[sys.argv[1]](
        *map(int, sys.argv[2:])
    )
