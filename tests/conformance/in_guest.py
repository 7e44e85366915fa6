"""Runs rdma-core's own suite in one process, because each start of Python takes seconds in an
emulated guest, and a part of one elsewhere. A line of JSON before each test, and one after it.

Run in the folder that holds the suite's `tests` package, with the suite's own arguments. FIRST in
the environment is the number of the first test that is run, ONLY parts of the names of those that
are, between commas, CHOSEN names a file with beginnings of their names. COUNTER names files of
sysfs with the packets that were sent, with colons between, INTERFACE the network interface that
counts its frames, PEERDMA_COUNTERS the file that our library appends a device's counters to when it
is closed; what an open one has counted is in its sysfs.
"""

import json
import multiprocessing
import os
import resource
import signal
import sys
import unittest

import frames
import list_tests

# No test that works comes near it.
LIMIT_S = 180
# What was sent, by packets and without.
SENT = ("sent_pkts", "direct_requests")
# A test that wants more is told no; it would be killed.
MOST_BYTES = 800 << 20


class Hangs(BaseException):
    """A test took too long."""


def expire(_signal, _frame):
    raise Hangs(f"hangs: not done after {LIMIT_S} seconds")


def packets():
    interface = os.environ.get("INTERFACE")
    sent = frames.sent(interface) if interface else 0
    for name in os.environ["COUNTER"].split(":"):
        with open(name) as file:
            sent += int(file.read())
    if "PEERDMA_COUNTERS" in os.environ:
        with open(os.environ["PEERDMA_COUNTERS"]) as file:
            counts = (line.split() for line in file)
            sent += sum(int(count[1]) for count in counts if count and count[0] in SENT)
        for name in SENT:
            with open(f"/sys/class/infiniband/peerdma0/ports/1/hw_counters/{name}") as file:
                sent += int(file.read())
    return sent


def beginnings():
    """Beginnings of the names of the tests to run."""
    if "CHOSEN" not in os.environ:
        return ("",)
    with open(os.environ["CHOSEN"]) as file:
        return tuple(file.read().split())


def said_by(result):
    """All that a result has to say; nothing of a test that passed."""
    said = [f"skipped '{reason}'" for _, reason in result.skipped]
    return "\n".join(said + [text for _, text in result.failures + result.errors])


def tell(**what):
    print(json.dumps(what), flush=True)


def main():
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGALRM, expire)
    # What the suite was written for. Python 3.14 asks a server for its helpers, which cannot be
    # handed what tests hand theirs.
    multiprocessing.set_start_method("fork")
    only, chosen = os.environ.get("ONLY", "").split(","), beginnings()
    for number, case in enumerate(list(list_tests.cases())):
        named = any(part in case.id() for part in only)
        wanted = named and case.id().startswith(chosen)
        if number < int(os.environ["FIRST"]) or not wanted:
            continue
        tell(number=number, id=case.id(), kind=list_tests.kind(case))
        before = packets()
        result = unittest.TestResult()
        signal.alarm(LIMIT_S)
        unittest.TestSuite([case]).run(result)
        signal.alarm(0)
        tell(said=said_by(result), packets=packets() - before)
    tell(end=True)


main()
