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
import time

from gpu import gpu_bytes, gpu_memory

# NIXL for CUDA 12, or the one that NIXL names, `nixl_cu13`.
nixl = importlib.import_module(os.environ.get("NIXL", "nixl_cu12") + "._api")

LENGTH = 1 << 20
SECONDS = 150
MARK = "> "


def agent(name):
    return nixl.nixl_agent(name, nixl.nixl_agent_config(backends=["UCX"]))


def say(word):
    """A word to the other process. NIXL says things on stdout too."""
    print(MARK + word, flush=True)


def hear(process):
    for line in process.stdout:
        if line.startswith(MARK):
            return line[len(MARK) :].strip()
    sys.exit("the other process ended")


def until(what, ready):
    end = time.monotonic() + SECONDS
    while not ready():
        if time.monotonic() > end:
            sys.exit(f"waited too long: {what}")


def target():
    """The passive side: its memory is written and read, and it hears when."""
    address = gpu_memory(LENGTH, 0x11)
    own = agent("target")
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
    own = agent("initiator")
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
        handle = own.initialize_xfer(operation, local, remote, name, text)
        own.transfer(handle)

        def is_done():
            state = own.check_xfer_state(handle)
            if state == "ERR":
                sys.exit(f"{operation} from {kind} failed")
            return state == "DONE"

        until(f"{operation} of {kind}", is_done)
        own.release_xfer_handle(handle)

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
