"""How the programs of NIXL beside this one talk: two processes, in lines of text, each with an
agent over UCX; and what moves between them.
"""

import sys
import time

SECONDS = 150
MARK = "> "


def new_agent(nixl, name):
    """An agent by one of NIXL's modules, `nixl_cu12._api` or `nixl_cu13._api`."""
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


def moved(agent, what, request):
    """Waits until what `request` asked for has moved."""
    agent.transfer(request)

    def is_done():
        state = agent.check_xfer_state(request)
        if state == "ERR":
            sys.exit(f"{what} failed")
        return state == "DONE"

    until(what, is_done)
    agent.release_xfer_handle(request)
