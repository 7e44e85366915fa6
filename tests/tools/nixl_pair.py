"""Two NIXL agents in two processes, over UCX's RC transport: GPU memory to GPU memory, and host
memory to GPU memory and back, with notifications. Prints `right` for each transfer whose bytes
arrived.

The other process is this program again; the two talk in lines of hexadecimal digits.
"""

import ctypes
import importlib
import os
import subprocess
import sys

from gpu import gpu_bytes, gpu_memory
from nixl_talk import hear, moved, new_agent, say, until

# NIXL for CUDA 12, or the one that NIXL names, `nixl_cu13`.
nixl = importlib.import_module(os.environ.get("NIXL", "nixl_cu12") + "._api")

LENGTH = 1 << 20


def target():
    """The passive side: its memory is written and read, and it hears when."""
    address = gpu_memory(LENGTH, 0x11)
    own = new_agent(nixl, "target")
    registered = own.register_memory([(address, LENGTH, 0, "")], "VRAM")
    say(own.get_agent_metadata().hex())
    own.add_remote_agent(bytes.fromhex(sys.stdin.readline()))
    say(str(address))
    heard = {}

    def notified(text):
        for name, texts in own.get_new_notifs().items():
            heard.setdefault(name, []).extend(texts)
        return text in heard.get("initiator", [])

    for text, byte in ((b"first", 0x22), (b"second", 0x33)):
        until(f"a notification, {text}", lambda: notified(text))
        say("right" if gpu_bytes(address, LENGTH) == bytes([byte]) * LENGTH else "wrong")
    sys.stdin.readline()
    own.deregister_memory(registered)


def initiator():
    """The active side."""
    line = [sys.executable, __file__, "target"]
    other = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    address = gpu_memory(LENGTH, 0x22)
    own = new_agent(nixl, "initiator")
    host = (ctypes.c_ubyte * LENGTH)(*([0x33] * LENGTH))
    vram, dram = (address, LENGTH, 0), (ctypes.addressof(host), LENGTH, 0)
    own.register_memory([vram + ("",)], "VRAM")
    own.register_memory([dram + ("",)], "DRAM")
    name = own.add_remote_agent(bytes.fromhex(hear(other)))
    other.stdin.write(own.get_agent_metadata().hex() + "\n")
    other.stdin.flush()
    remote = own.get_xfer_descs([(int(hear(other)), LENGTH, 0)], "VRAM")

    def transfer(operation, local, kind, text):
        local = own.get_xfer_descs([local], kind)
        request = own.initialize_xfer(operation, local, remote, name, text)
        moved(own, f"{operation} of {kind}", request)

    transfer("WRITE", vram, "VRAM", b"first")
    print("VRAM to VRAM:", hear(other), flush=True)
    transfer("WRITE", dram, "DRAM", b"second")
    print("DRAM to VRAM:", hear(other), flush=True)
    transfer("READ", vram, "VRAM", b"third")
    arrived = gpu_bytes(address, LENGTH) == bytes([0x33]) * LENGTH
    print("VRAM from VRAM:", "right" if arrived else "wrong", flush=True)
    other.stdin.write("\n")
    other.stdin.close()
    sys.exit(other.wait())


target() if sys.argv[1:] == ["target"] else initiator()
