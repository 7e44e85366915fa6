"""Mooncake's store: a master, a process that gives it memory, and one that puts values into that
memory and gets them back over RDMA. Prints `right` if they are the same.

The process that gives memory is this program again.
"""

import os
import socket
import subprocess
import sys
import time

import mooncake
from mooncake.store import MooncakeDistributedStore

SEGMENT = 64 << 20
SECONDS = 60
VALUES = [1, 4096, 1 << 20, 5_000_000]
READY = "> ready"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def client(master, segment):
    """A client of the store, which gives it a segment of so many bytes."""
    own = MooncakeDistributedStore()
    address, buffer = f"127.0.0.1:{master}", 16 << 20
    if own.setup("127.0.0.1", "P2PHANDSHAKE", segment, buffer, "rdma", "peerdma0", address):
        sys.exit("the store's client did not begin")
    return own


def holder(master):
    own = client(master, SEGMENT)
    print(READY, flush=True)
    sys.stdin.readline()
    own.close()


def is_heard(port):
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def start_master(port):
    program = os.path.join(os.path.dirname(mooncake.__file__), "mooncake_master")
    line = [program, f"--rpc_port={port}", f"--metrics_port={free_port()}"]
    # It is no program of the verbs.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    master = subprocess.Popen(line, stderr=subprocess.DEVNULL, env=environment)
    end = time.monotonic() + SECONDS
    while not is_heard(port):
        if master.poll() is not None or time.monotonic() > end:
            sys.exit("the master did not begin")
        time.sleep(0.02)
    return master


def main():
    port = free_port()
    master = start_master(port)
    line = [sys.executable, __file__, str(port)]
    other = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if not any(line.startswith(READY) for line in other.stdout):
        sys.exit("the other process ended")
    own = client(port, 0)
    for length in VALUES:
        value = os.urandom(length)
        put = own.put(f"of {length}", value)
        same = put == 0 and own.get(f"of {length}") == value
        print(length, "bytes:", "right" if same else "wrong", flush=True)
    own.close()
    other.stdin.write("\n")
    other.stdin.close()
    ended = other.wait()
    master.kill()
    sys.exit(ended)


holder(sys.argv[1]) if sys.argv[1:] else main()
