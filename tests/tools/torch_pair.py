"""PyTorch's tensors on GPUs of two processes, moved by NIXL over UCX's RC transport: one that
`copy_` filled is written into the other process's, which then changes it and has it read back.
Prints `right` for each transfer whose bytes arrived.

The arguments are how many bytes, and `target` for the other process, which is this program again.
"""

import subprocess
import sys

import nixl_cu12._api as nixl
import torch
from nixl_talk import hear, moved, new_agent, say, until

LENGTH = int(sys.argv[1])


def pattern(seed):
    return ((torch.arange(LENGTH) * 7 + seed) % 251).to(torch.uint8)


def new_tensor(seed):
    """On the GPU, behind another one in the same block of the allocator's."""
    before = torch.empty(1000, device="cuda")
    tensor = torch.empty(LENGTH, dtype=torch.uint8, device="cuda").copy_(pattern(seed))
    torch.cuda.synchronize()
    return before, tensor


def target():
    """The passive side, whose tensor is written and read."""
    _before, tensor = new_tensor(1)
    own = new_agent(nixl, "target")
    registered = own.register_memory(tensor)
    say(own.get_agent_metadata().hex())
    own.add_remote_agent(bytes.fromhex(sys.stdin.readline()))
    say(f"{tensor.data_ptr()} {tensor.get_device()}")
    until("a notification", lambda: own.get_new_notifs())
    arrived = torch.equal(tensor.cpu(), pattern(2))
    tensor.copy_(pattern(3))
    torch.cuda.synchronize()
    say("right" if arrived else "wrong")
    sys.stdin.readline()
    own.deregister_memory(registered)


def initiator():
    """The active side."""
    line = [sys.executable, __file__, str(LENGTH), "target"]
    other = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _before, tensor = new_tensor(2)
    own = new_agent(nixl, "initiator")
    own.register_memory(tensor)
    name = own.add_remote_agent(bytes.fromhex(hear(other)))
    other.stdin.write(own.get_agent_metadata().hex() + "\n")
    other.stdin.flush()
    address, device = map(int, hear(other).split())
    remote = own.get_xfer_descs([(address, LENGTH, device)], "VRAM")

    def transfer(operation):
        local = own.get_xfer_descs(tensor)
        request = own.initialize_xfer(operation, local, remote, name, operation.encode())
        moved(own, operation, request)

    transfer("WRITE")
    print("tensor to tensor:", hear(other), flush=True)
    transfer("READ")
    arrived = torch.equal(tensor.cpu(), pattern(3))
    print("tensor from tensor:", "right" if arrived else "wrong", flush=True)
    other.stdin.write("\n")
    other.stdin.close()
    sys.exit(other.wait())


target() if sys.argv[2:] == ["target"] else initiator()
