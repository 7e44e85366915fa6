"""A driver that means no good, as root of a guest: it drives the function itself, by its registers
and commands in memory of its own.

BDF in the environment is the function, which no driver is bound to.
"""

import mmap
import os
import random
import struct

DEVICE = f"/sys/bus/pci/devices/{os.environ['BDF']}"
PAGE = 4096
NOWHERE = 1 << 46
UARS = 16 * PAGE
CREATE_EQ = 0x301
POISON = b"\xa5" * PAGE


def write(name, text):
    with open(f"{DEVICE}/{name}", "w") as file:
        file.write(text)


def locked_page():
    """A page that stays where it is, and its address in the machine."""
    page = mmap.mmap(-1, PAGE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x2000)  # MAP_LOCKED
    page[:] = bytes(PAGE)
    address = int(next(line.split("-")[0] for line in maps_of(page)), 16)
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // PAGE * 8)
        frame = struct.unpack("<Q", file.read(8))[0]
    assert frame >> 63, "the page is there"
    return page, (frame & (1 << 55) - 1) * PAGE


def maps_of(page):
    """The lines of our memory map for shared memory of one page; the last one is the newest of
    them."""
    page[:8] = b"mine here"[:8]
    with open("/proc/self/maps") as file, open("/proc/self/mem", "rb") as memory:
        for line in file:
            if "/dev/zero" in line:
                memory.seek(int(line.split("-")[0], 16))
                if memory.read(8) == b"mine here"[:8]:
                    page[:8] = bytes(8)
                    yield line
                    return


def main():
    write("enable", "1")
    with open(f"{DEVICE}/config", "r+b", buffering=0) as config:
        os.pwrite(config.fileno(), struct.pack("<H", 6), 4)  # memory, bus master
    file = os.open(f"{DEVICE}/resource0", os.O_RDWR | os.O_SYNC)
    registers = mmap.mmap(file, 32 << 20)
    queue, queue_at = locked_page()
    guard, _ = locked_page()
    guard[:] = POISON

    def register(at, value):
        registers[at : at + 4] = struct.pack(">I", value)

    def queue_is_at(address):
        register(0x10, address >> 32)
        register(0x14, address & 0xFFFF_FFFF)

    def command(opcode, rest=b"", signed=True, token=1):
        entry = bytearray(64)
        body = struct.pack(">H", opcode) + rest
        entry[0] = 7
        entry[4:8] = struct.pack(">I", max(16, len(body)))
        entry[16 : 16 + len(body[:16])] = body[:16]
        entry[56:60] = struct.pack(">I", 16)
        entry[60] = token
        entry[63] = 1
        if signed:
            sum = 0
            for byte in entry:
                sum ^= byte
            entry[61] = sum ^ 0xFF
        queue[:64] = bytes(entry)
        register(0x18, 1)
        # A read comes back after the writes before it are done.
        registers[0x18:0x1C]
        return queue[63] >> 1, queue[32]

    queue_is_at(NOWHERE)
    register(0x18, 0xFFFF_FFFF)
    queue_is_at(queue_at)
    assert command(0x10A) == (0, 0), "an honest command"
    assert command(0x10A, signed=False)[0] == 1, "a wrong signature"
    assert command(0x800) == (0, 4), "the driver that went disabled the function"
    assert command(0x104) == (0, 0) and command(0x102) == (0, 0), "enabled, initialized"
    assert command(0xFFF) == (0, 2), "no such command"
    assert command(0x500) != (0, 0), "a queue pair of nothing"
    assert command(CREATE_EQ, bytes(600))[0] == 5, "a command that lies nowhere"
    random.seed(1)
    for _ in range(2000):
        at = UARS + random.randrange(0, 64 * PAGE - 8) // 8 * 8
        registers[at : at + 8] = random.randbytes(8)
    assert command(0x10A) == (0, 0), "it still answers"
    assert guard[:] == POISON and queue[64:] == bytes(PAGE - 64), "nothing else is touched"
    print("all as expected")


main()
