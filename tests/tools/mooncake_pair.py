"""Mooncake's transfer engine in two processes over its RDMA transport: host memory and GPU memory
written to the other process's and read from there. Prints `right` for each transfer whose bytes
arrived.

The other process is this program again; the two talk in lines.
"""

import ctypes
import subprocess
import sys

from gpu import gpu_bytes, gpu_memory
from mooncake.engine import TransferEngine

LENGTH = 1 << 20
HOST = "127.0.0.1"
MARK = "> "


def engine():
    own = TransferEngine()
    if own.initialize(HOST, "P2PHANDSHAKE", "rdma", ""):
        sys.exit("the engine did not begin")
    return own


def register(own, *addresses):
    for address in addresses:
        if own.register_memory(address, LENGTH):
            sys.exit("registration failed")


def host_memory(fill):
    return (ctypes.c_ubyte * LENGTH)(*([fill] * LENGTH))


def target():
    """The passive side: its memory is written and read, and asked for at the end."""
    own, host, vram = engine(), host_memory(1), gpu_memory(LENGTH, 2)
    register(own, ctypes.addressof(host), vram)
    print(MARK, own.get_rpc_port(), ctypes.addressof(host), vram, flush=True)
    for line in sys.stdin:
        where, byte = line.split()
        found = bytes(host) if where == "DRAM" else gpu_bytes(vram, LENGTH)
        print(MARK, "right" if found == bytes([int(byte)]) * LENGTH else "wrong", flush=True)
    own.unregister_memory(vram)
    own.unregister_memory(ctypes.addressof(host))


def hear(process):
    for line in process.stdout:
        if line.startswith(MARK):
            return line[len(MARK) :].split()
    sys.exit("the other process ended")


def initiator():
    """The active side."""
    line = [sys.executable, __file__, "target"]
    other = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    own, host, vram = engine(), host_memory(0x33), gpu_memory(LENGTH, 0x44)
    register(own, ctypes.addressof(host), vram)
    port, there_host, there_vram = map(int, hear(other))
    peer = f"{HOST}:{port}"

    def write(source, there, where, byte):
        if own.transfer_sync_write(peer, source, there, LENGTH):
            return "failed"
        other.stdin.write(f"{where} {byte}\n")
        other.stdin.flush()
        return hear(other)[0]

    def read(into, there):
        return own.transfer_sync_read(peer, into, there, LENGTH)

    print("DRAM to DRAM:", write(ctypes.addressof(host), there_host, "DRAM", 0x33), flush=True)
    print("VRAM to VRAM:", write(vram, there_vram, "VRAM", 0x44), flush=True)
    print("VRAM to DRAM:", write(vram, there_host, "DRAM", 0x44), flush=True)
    failed = read(vram, there_host) or read(ctypes.addressof(host), there_vram)
    both = bytes(host) + gpu_bytes(vram, LENGTH)
    arrived = not failed and both == bytes([0x44]) * 2 * LENGTH
    print("read from both:", "right" if arrived else "wrong", flush=True)
    other.stdin.close()
    sys.exit(other.wait())


target() if sys.argv[1:] == ["target"] else initiator()
