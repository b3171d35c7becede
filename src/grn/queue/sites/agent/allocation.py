"""One allocation on a node, for engines that kill what their worker processes have started.

`start` runs the agent of an allocation apart from the process that asks for it and bound to that
process; `renew` ends one of before an update, to be started again; `drain` lets it leave; `end`
ends every process of the allocation and removes its folders.
Run as `python -m grn.queue.sites.agent.allocation`, by `ray_actor.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Sequence

from grn import paths
from grn.client import daemons
from grn.daemon.lockfile import make_own
from grn.errors import AlreadyRunning, GrnError, MachineError, UsageError
from grn.proc import pidfd, processes, spawn, terminate
from grn.proc.spawn import own_module
from grn.queue.sites.agent.node_environment import ALLOCATION
from grn.queue.sites.agent.pipe import connect, end_older, socket_of
from grn.queue.sites.agent.process import QUEUE_ID, end_allocation

WORKERS = ("ray::IDLE", "ray::GrnPilot")  # before the actor's code runs, and then
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


def main(argv: Sequence[str] | None = None) -> int:
    """Do one thing to an allocation; the last line has the agent's socket, or why not."""
    parser = argparse.ArgumentParser(prog="python -m grn.queue.sites.agent.allocation")
    parser.add_argument("verb", choices=("start", "renew", "drain", "end"))
    parser.add_argument("--queue", required=True, help="the identity of the queue at home")
    parser.add_argument("--allocation", required=True, help="the engine's name of it")
    parser.add_argument("--idle-s", default="60", help="leave when so long without a queue")
    parser.add_argument("--bound-to", type=int, default=0, help="the process that it ends with")
    parser.add_argument("--worker", type=int, default=0, help="a process of Ray to end as well")
    arguments = parser.parse_args(argv)
    try:
        if not NAME.fullmatch(arguments.allocation) or not QUEUE_ID.fullmatch(arguments.queue):
            raise UsageError("these are not names of an allocation and of a queue.")
        enter(arguments.allocation)
        if arguments.verb == "start":
            start(arguments.queue, arguments.bound_to, arguments.idle_s)
        elif arguments.verb == "renew":
            end_older(arguments.queue)
        elif arguments.verb == "drain":
            drain(arguments.queue)
        else:
            end(arguments.allocation, arguments.worker)
    except GrnError as error:
        print(f"{error.message} {error.hint}".strip())
        return error.exit_code
    print(json.dumps({"socket": socket_of(arguments.queue)}))
    return 0


def enter(allocation: str) -> None:
    """Let this process, and the agent that it starts, see the allocation as a machine."""
    base = f"{os.path.dirname(paths.queue_socket())}-pilots"
    make_own(base, "runtime", "GRN_RUNTIME_DIR")
    folder = os.path.join(base, allocation)
    given = os.environ.get("GRN_STATE_DIR")
    state = os.path.join(given, "pilots", allocation) if given else os.path.join(folder, "state")
    os.environ.update({
        "GRN_RUNTIME_DIR": os.path.join(folder, "run"), "GRN_STATE_DIR": state,
        ALLOCATION: allocation,
    })  # fmt: skip


def start(queue_id: str, bound_to: int, idle_s: str) -> None:
    """Start the agent unless it runs; it ends with the process that this one is a child of."""
    parent = processes.look(bound_to)
    if parent is None or os.getppid() != bound_to:
        raise UsageError(f"process {bound_to} is not the one that started this.")
    spawn.become_ordinary()
    argv = [
        *own_module("grn.queue.sites.agent.process"), "--queue", queue_id, "--idle-s", idle_s,
        "--bound-to", f"{parent.pid}:{parent.started_ticks}",
    ]  # fmt: skip
    try:
        daemons.start_aside("agent", argv, is_detached=True)
    except AlreadyRunning:
        pass  # a killed pilot command has started it


def drain(queue_id: str) -> None:
    """Let the agent take nothing new, and leave when it is empty."""
    with connect(queue_id) as sock:
        pid, _ = pidfd.credentials(sock)
        fd = pidfd.of_peer(sock, pid)
        try:
            pidfd.send_to(fd, signal.SIGUSR1)
        finally:
            os.close(fd)


def end(allocation: str, worker: int) -> None:
    """End every process of the allocation, and the one that Ray gave a pilot which never answered.

    If the head of Ray hears at once that a process is there and that its actor is killed, it
    forgets the process, whose GPUs are then never free again.
    """
    found = processes.living(worker) if worker else None
    if found is not None and " ".join(processes.words(worker)).startswith(WORKERS):
        terminate.kill([found])
    if left := end_allocation():
        raise MachineError(f"{left} processes of {allocation} cannot be ended.")


if __name__ == "__main__":
    sys.exit(main())
