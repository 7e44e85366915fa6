"""Lists the tests of rdma-core's own suite: one line each, the id and whether the test moves
data (`moves`), does not (`asks`), or posts only work that is refused (`refused`).

Run in the folder that holds the suite's `tests` package. A test moves data when its own source, or
that of a method of its class that it calls, posts work or runs one of the suite's traffic helpers.
"""

import inspect
import re
import sys
import unittest

MOVES = re.compile(
    r"\btraffic\b|\w*_traffic\w*\(|post_send|post_recv|post_srq_recv|\.wr_start\(|send\("
)

# Its "traffic" is a connection that is refused.
ASKS = ("tests.test_rdmacm.CMTestCase.test_rdmacm_async_reject_traffic",)

# These copy memory within the device.
COPIES = "tests.test_mlx5_dma_memcpy."

# These post work that the device must refuse before a packet leaves, and nothing else: no counter
# may move.
REFUSED = (
    # The first SEND WQE has a wrong lkey, which the sender itself notices.
    "tests.test_atomic.AtomicTest.test_atomic_invalid_lkey",
    # The SEND names more than its memory key has, which the sender itself notices.
    "tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_list_bad_flow",
    # Posts to the send queue of a queue pair that cannot send yet.
    "tests.test_qpex.QpExTestCase.test_post_send_qp_state_bad_flow",
)


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def moves_data(case):
    method = getattr(type(case), case._testMethodName, None)
    if method is None:
        return False
    source = inspect.getsource(method)
    for name in re.findall(r"self\.(\w+)\(", source):
        helper = getattr(type(case), name, None)
        if callable(helper) and name not in ("create_players", "setUp"):
            try:
                source += inspect.getsource(helper)
            except (OSError, TypeError):
                pass
    return bool(MOVES.search(source))


def kind(case):
    if case.id() in REFUSED:
        return "refused"
    if case.id() in ASKS or case.id().startswith(COPIES):
        return "asks"
    return "moves" if moves_data(case) else "asks"


def cases():
    sys.path[:0] = [".", "tests"]
    from args_parser import parser
    import tests

    # Test cases read the parsed arguments when they are made.
    parser.parse_args()
    for module in tests.__test_modules__:
        yield from flatten(unittest.defaultTestLoader.loadTestsFromModule(module))


if __name__ == "__main__":
    for case in cases():
        print(case.id(), kind(case), flush=True)
