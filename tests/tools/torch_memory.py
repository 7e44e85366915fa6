"""PyTorch's tensors in the memory of software GPUs, with the caching allocator, pinned memory,
streams, other processes and what is refused. Prints `right` for each kind that is as on a GPU, but
for kernels: those are refused, and nothing else is.

The argument is how many GPUs there are to be.
"""

import gc
import os
import sys

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, TensorDataset

MEBI = 1 << 20


def pattern(length, seed=0):
    return ((torch.arange(length) * 7 + seed) % 251).to(torch.uint8)


def devices(count):
    assert torch.cuda.is_available() and torch.cuda.device_count() == count
    for device in range(count):
        about = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        assert "software GPU" in about.name and free <= total == about.total_memory
        assert torch.cuda.get_device_capability(device) == (about.major, about.minor)


def copies(count):
    """Sizes of blocks that the allocator parts, and of such as it asks the runtime for."""
    for length in (1, 511, MEBI + 1, 50 * MEBI):
        host = pattern(length)
        tensor = torch.empty(length, dtype=torch.uint8, device="cuda").copy_(host)
        assert torch.equal(tensor.cpu(), host) and torch.equal(tensor.clone().cpu(), host)
        assert tensor[length // 2].item() == host[length // 2].item()
        assert torch.equal(tensor[length // 3 :].cpu(), host[length // 3 :])
        there = host.to(f"cuda:{count - 1}")
        assert torch.equal(there.to("cuda:0").cpu(), host)
    assert torch.equal(torch.arange(4).cuda().cpu(), torch.arange(4))


def streams():
    host = pattern(5 * MEBI)
    pinned, back = host.pin_memory(), torch.empty_like(host, pin_memory=True)
    assert pinned.is_pinned() and back.is_pinned() and not host.is_pinned()
    one, other = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(20):
        back.zero_()
        with torch.cuda.stream(one):
            begin.record()
            tensor = pinned.to("cuda", non_blocking=True)
            end.record()
        other.wait_event(end)
        with torch.cuda.stream(other):
            back.copy_(tensor, non_blocking=True)
            tensor.record_stream(other)
        other.synchronize()
        assert torch.equal(back, host)
    assert begin.query() and 0 <= begin.elapsed_time(end) < 60_000
    torch.cuda.synchronize()
    assert one.query() and other.query()


def memory_comes_back():
    tensor = torch.empty(100 * MEBI, dtype=torch.uint8, device="cuda")
    held = torch.cuda.memory_reserved()
    assert torch.cuda.memory_allocated() >= tensor.nbytes and "GPU reserved" in summary()
    del tensor
    gc.collect()
    assert torch.cuda.memory_reserved() == held
    before = torch.cuda.mem_get_info()[0]
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] >= before + 100 * MEBI


def summary():
    return torch.cuda.memory_summary()


def out_of_memory():
    kept = pattern(MEBI).cuda()
    total = torch.cuda.mem_get_info()[1]
    for length in (1 << 50, total + 1):
        try:
            torch.empty(length, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert "total capacity of" in str(error), error
        else:
            sys.exit(f"{length} bytes of {total}")
    held = []
    try:
        while len(held) < 2 * total // (256 * MEBI):
            held.append(torch.empty(256 * MEBI, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    assert total // 2 <= len(held) * 256 * MEBI <= total
    assert torch.equal(kept.cpu(), pattern(MEBI))
    del held
    torch.cuda.empty_cache()


def kernels_are_refused():
    tensor = pattern(MEBI).cuda()
    for compute in (lambda: tensor + 1, lambda: torch.zeros(5, device="cuda")):
        try:
            compute()
        except RuntimeError as error:
            assert "operation not supported" in str(error), error
        else:
            sys.exit("a kernel was executed")
    torch.cuda.synchronize()
    assert torch.equal(tensor.cpu(), pattern(MEBI))


def workers():
    rows = pattern(10_000).view(100, 100)
    for context in ("fork", "spawn"):
        batches = DataLoader(
            TensorDataset(rows),
            batch_size=10,
            pin_memory=True,
            num_workers=2,
            multiprocessing_context=context,
        )
        arrived = [batch.cuda(non_blocking=True).cpu() for (batch,) in batches]
        assert torch.equal(torch.cat(arrived), rows), context


def fork():
    child = os.fork()
    if child == 0:
        refused = False
        try:
            torch.empty(1, device="cuda")
        except RuntimeError as error:
            refused = "forked subprocess" in str(error)
        os._exit(0 if refused and pattern(9).sum() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(pattern(9).cuda().cpu(), pattern(9))


def of_another(tensors, answers):
    """The part of a process that is given a tensor."""
    tensor = tensors.get()
    is_right = torch.equal(tensor.cpu(), pattern(MEBI, 1))
    tensor.copy_(pattern(MEBI, 2))
    torch.cuda.synchronize()
    answers.put(is_right)
    tensors.get()


def processes():
    spawn = torch.multiprocessing.get_context("spawn")
    tensors, answers = spawn.Queue(), spawn.Queue()
    other = spawn.Process(target=of_another, args=(tensors, answers))
    other.start()
    tensor = pattern(MEBI, 1).cuda()
    tensors.put(tensor)
    assert answers.get(timeout=120)
    assert torch.equal(tensor.cpu(), pattern(MEBI, 2))
    tensors.put(None)
    other.join()
    assert other.exitcode == 0


def main():
    count = int(sys.argv[1])
    kinds = {
        "devices": lambda: devices(count),
        "copies": lambda: copies(count),
        "streams": streams,
        "memory that comes back": memory_comes_back,
        "no more memory": out_of_memory,
        "kernels": kernels_are_refused,
        "workers": workers,
        "a fork": fork,
        "another process": processes,
    }
    for kind, judge in kinds.items():
        judge()
        print(f"{kind}: right", flush=True)


if __name__ == "__main__":
    main()
