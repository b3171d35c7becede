"""The process of an agent on a node: one for each queue at home, until it is idle or stopped.

Run as `python -m grn.queue.sites.agent.process`; `pipe.py` starts it. `orders.py` does its work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence

from grn import __version__, paths, settings
from grn.daemon import process
from grn.daemon.lockfile import DaemonLock, state_folder
from grn.errors import GrnError, ProtocolError
from grn.model.job import Holder
from grn.proc import pidfd, terminate
from grn.proc.processes import mounts
from grn.proc.spawn import SERVICE
from grn.proc.watch import Watches
from grn.queue.local.workers import LaunchSettings
from grn.queue.sites.agent.node_environment import ALLOCATION, epoch, is_allocated
from grn.queue.sites.agent.orders import Agent
from grn.queue.sites.agent.pipe import socket_of, version_file

log = logging.getLogger("grn.agent")
IDLE_EXIT_S = 60.0
LOOK_S = 1.0
END_S = 10.0
LEFT = 10  # exit status of an agent that left because nothing is to be done here any more
QUEUE_ID = re.compile(r"[0-9a-f]{8,64}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until it is idle or a signal stops it."""
    parser = process.parser("grn.queue.sites.agent.process")
    parser.add_argument("--queue", required=True, help="the identity of the queue it works for")
    parser.add_argument("--stay", action="store_true", help="do not exit when idle")
    parser.add_argument("--idle-s", type=float, default=IDLE_EXIT_S, help="exit when so long idle")
    parser.add_argument("--draining", action="store_true", help="take nothing new")
    parser.add_argument("--bound-to", metavar="PID[:TICKS]",
                        help="kill all attempts when this process ends")  # fmt: skip
    arguments = parser.parse_args(argv)
    process.log_to_stderr(arguments.log)
    os.environ.pop(SERVICE, None)
    try:
        if not QUEUE_ID.fullmatch(arguments.queue):
            raise ProtocolError(f"{arguments.queue!r} is not an identity of a queue.")
        chosen = settings.load()
        with DaemonLock(socket_of(arguments.queue), is_private=True) as lock:
            return asyncio.run(_serve(chosen, lock, arguments))
    except GrnError as error:
        process.report(arguments.ready_fd, f"error: {error.message} {error.hint}".strip())
        print(f"error: {error.message} {error.hint}".strip(), file=sys.stderr)
        return error.exit_code


async def _serve(chosen: settings.Settings, lock: DaemonLock, arguments: argparse.Namespace) -> int:
    state, note = state_folder(mounts())
    if note:
        log.warning(note)
    agent = Agent(LaunchSettings(
        root=os.path.join(state, "agent", arguments.queue),
        queue_id=arguments.queue,
        queue_lock=lock.lock_path,
        grace_s=chosen.grace_to_end_s,
        log_bytes=chosen.log_bytes,
    ))  # fmt: skip
    stopped = process.stop_event()
    agent.open()
    _write_version(version_file(arguments.queue))  # before anybody can ask for it
    await lock.serve(agent.new_stream)
    idle_s = None if arguments.stay else arguments.idle_s
    leaving = asyncio.create_task(_until_done(agent, idle_s))
    leaving.add_done_callback(lambda _: stopped.set())
    tasks = [asyncio.create_task(lock.look_after(stopped.set)), leaving]
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, agent.drain)
    if arguments.draining:
        agent.drain()
    if arguments.bound_to:
        _bind(agent, arguments.bound_to, stopped)
    log.info("action=ready epoch=%s", epoch())
    process.report(arguments.ready_fd, "ready")
    await stopped.wait()
    has_left = leaving.done()
    if has_left and is_allocated():
        with contextlib.suppress(OSError), open(left_mark(lock.socket_path), "w"):
            pass  # before the socket is closed: else this looks like the end of a killed agent
    lock.close()
    for task in tasks:
        task.cancel()
    agent.close()
    if agent.is_orphaned:
        end_allocation()
    return LEFT if has_left else 0


async def _until_done(agent: Agent, idle_s: float | None) -> None:
    """Drop dead streams until the agent is drained, or has been idle for a while."""
    while not agent.may_leave:
        agent.drop_silent_stream()
        if idle_s is not None and agent.is_idle(idle_s):
            return
        await asyncio.sleep(LOOK_S)


def _bind(agent: Agent, holder: str, stopped: asyncio.Event) -> None:
    """End with a process, and kill all attempts then.

    Without the time of its start it is the parent of this process.
    """
    pid, _, ticks = holder.partition(":")

    def gone(_pid: int) -> None:
        log.error("action=end-all reason='the process that keeps this agent has ended'")
        agent.end_all()
        agent.is_orphaned = is_allocated()
        stopped.set()

    fd = pidfd.open_pidfd(Holder(int(pid), int(ticks))) if ticks else pidfd.of_parent(int(pid))
    if fd is None:
        gone(int(pid))
    else:
        Watches(gone).add(int(pid), fd)


def left_mark(socket_path: str) -> str:
    """Return the file that shows that the agent of a socket has left on purpose."""
    return os.path.join(os.path.dirname(socket_path), "left")


def end_allocation() -> int:
    """Kill every process of this allocation but this one, and remove the folders named after it.

    Return how many processes could not be killed.
    """
    name = os.environ[ALLOCATION]
    left = terminate.end_having(f"{ALLOCATION}={name}", END_S)
    for folder in (os.path.dirname(paths.runtime_dir()), paths.state_dir()):
        if not left and os.path.basename(folder) == name:
            shutil.rmtree(folder, ignore_errors=True)
    return left


def _write_version(path: str) -> None:
    """Let a pipe see whether this agent is of its own version; without the file it is not."""
    with contextlib.suppress(OSError), open(path, "w") as file:
        file.write(__version__)


if __name__ == "__main__":
    sys.exit(main())
