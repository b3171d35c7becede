"""Wiring: the only file where the negotiator's concrete parts meet.

Run as `python -m grn.negotiator`; people use `grn start`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import grp
import logging
import os
import pwd
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from grn import __version__, settings
from grn.daemon import process
from grn.daemon.lockfile import DaemonLock, state_folder
from grn.errors import BadSetting, GrnError
from grn.gpus.nvml import NvmlProbe
from grn.gpus.probe import GpuProbe, Inventory, restrict
from grn.gpus.virtual import VirtualProbe, parse_virtual
from grn.model.host import HostSize
from grn.model.job import IdleRule, Policy
from grn.model.text import counted
from grn.model.units import show_size
from grn.negotiator.engine import Engine
from grn.negotiator.garbage import Garbage
from grn.negotiator.handlers import VERBS
from grn.negotiator.loop import Loop
from grn.negotiator.schedule.room.ledger import Guard, Rules
from grn.negotiator.server import Server, ServerLimits
from grn.negotiator.storage.store import Store
from grn.proc import host
from grn.proc.processes import boot_id, mounts

log = logging.getLogger("grn.negotiator")
_MAX_FILES = 1 << 20
_OWN_FILES = 128

BANNER = r"""
   __ _ _ __ _ __
  / _` | '__| '_ \    GPU Resource Negotiator {version}
 | (_| | |  | | | |   socket {socket}
  \__, |_|  |_| |_|   state  {state}
  |___/
"""
_FACT = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|\S*)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the negotiator until a request or a signal stops it."""
    arguments = _parse(argv)
    _log_to_stderr(arguments.log, arguments.debug)
    try:
        chosen = settings.load({"gpus": arguments.gpus, "idle_exit_s": arguments.idle_exit_s})
        with DaemonLock() as lock:
            asyncio.run(_serve(chosen, lock, arguments))
    except GrnError as error:
        process.report(arguments.ready_fd, f"error: {error.message} {error.hint}".strip())
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


async def _serve(
    chosen: settings.Settings, lock: DaemonLock, arguments: argparse.Namespace
) -> None:
    probe = _probe(chosen)
    try:
        await _serve_gpus(probe, chosen, lock, arguments)
    finally:
        await probe.close()


async def _serve_gpus(
    probe: GpuProbe,
    chosen: settings.Settings,
    lock: DaemonLock,
    arguments: argparse.Namespace,
) -> None:
    inventory = _restricted(await probe.start())
    folder, note = state_folder(mounts())
    store = Store(folder, boot_id())
    size = host_size(chosen.host)
    loop = Loop(Engine(_rules(chosen)), store, probe, chosen.sample_s, size)
    stopped = process.stop_event()
    server = Server(loop, _limits(chosen), VERBS, __version__, stopped.set)
    loop.start(inventory)
    with contextlib.suppress(GrnError):
        await loop.sampler.look()
    garbage = Garbage(asyncio.get_running_loop().call_soon)
    garbage.begin()
    loop.after_event = garbage.after_event
    loop.sampler.after_look = lambda: garbage.tidy() if server.is_idle else None
    await lock.serve(server.connection)
    _announce(inventory, lock, folder, note, arguments)
    tasks = [asyncio.create_task(loop.sampler.observe())]
    guarded = lock.look_after(stopped.set, folder, store.keep_in_place)
    tasks.append(asyncio.create_task(guarded))
    if chosen.idle_exit_s:
        tasks.append(asyncio.create_task(_leave_when_idle(server, chosen.idle_exit_s, stopped)))
    await stopped.wait()
    said = "[GPUMaster] Cleaning up..." if arguments.old_name else _goodbye(len(loop.view.leases))
    print(said, file=sys.stderr, flush=True)
    lock.close()
    for task in tasks:
        task.cancel()
    server.close()
    await loop.finish()
    store.close()


def _goodbye(jobs: int) -> str:
    verb = "goes" if jobs == 1 else "go"
    return "negotiator stopped" + (f"; {counted(jobs, 'running job')} {verb} on" if jobs else "")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = process.parser("grn.negotiator")
    parser.add_argument("--gpus", help="nvml, or virtual:4x8GiB")
    parser.add_argument("--idle-exit-s", type=float, dest="idle_exit_s")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--old-name", action="store_true", dest="old_name")
    return parser.parse_args(argv)


def _rules(chosen: settings.Settings) -> Rules:
    """Return the limits of the engine: the settings of the same names, and three of other types."""
    guard = Guard(chosen.guard_fraction, chosen.guard_bytes)
    names = {one.name for one in fields(Rules)} & set(chosen.__struct_fields__) - {"idle_rule"}
    return Rules(
        guard=guard, weights=share_weights(chosen.shares), idle_rule=IdleRule(chosen.idle_rule),
        **{name: getattr(chosen, name) for name in names},
    )  # fmt: skip


def _limits(chosen: settings.Settings) -> ServerLimits:
    """Leave descriptors for our own work, and half of the connections to other users."""
    files = process.raise_file_limit(_MAX_FILES)
    most = max(8, (files - _OWN_FILES) // 2)  # two for each client: its socket, its pidfd
    return ServerLimits(
        min(chosen.connections_per_user, most // 2),
        chosen.waiting_per_user,
        chosen.context_bytes,
        most,
        None if chosen.policy == "asked" else Policy(chosen.policy),
        chosen.memory_cap == "on",
    )


def _probe(chosen: settings.Settings) -> GpuProbe:
    if chosen.gpus.startswith("virtual:"):
        return VirtualProbe(parse_virtual(chosen.gpus[len("virtual:") :]))
    return NvmlProbe(deadline_s=chosen.nvml_deadline_s)


def _restricted(inventory: Inventory) -> Inventory:
    gpus = restrict(inventory.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return replace(inventory, gpus=gpus)


def host_size(text: str) -> HostSize | None:
    """Return the host that jobs share: as the setting says, else as measured."""
    if text:
        said = settings.host_size(text)
        return None if said is None else HostSize(*said)
    total = host.total_bytes()
    return None if total is None else HostSize(float(host.usable_cpus()), total)


# --- the setting `shares`: names of users and groups as numbers --------------------------------


def share_weights(shares: Mapping[str, float]) -> dict[int, float]:
    """Return the fair-share weight of each user named, by itself or as a member of a @group.

    A user's own entry wins; of several groups the one with the largest weight does.
    """
    groups: dict[int, float] = {}
    for name, weight in shares.items():
        if name.startswith("@"):
            for user in _members(name[1:]):
                groups[user] = max(groups.get(user, 0.0), weight)
    own = {_user(name): weight for name, weight in shares.items() if not name.startswith("@")}
    return groups | own


def _user(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise _unknown(name, "user") from None


def _members(name: str) -> list[int]:
    """Return the members of a group, and users with it as primary group."""
    try:
        group = grp.getgrgid(int(name)) if name.isdecimal() else grp.getgrnam(name)
    except KeyError:
        raise _unknown(f"@{name}", "group") from None
    users = pwd.getpwall()
    named = set(group.gr_mem)
    return [one.pw_uid for one in users if one.pw_name in named or one.pw_gid == group.gr_gid]


def _unknown(name: str, what: str) -> BadSetting:
    hint = 'Write it like `ada = 2` or `"@lab" = 0.5` under [shares]; see docs/settings.md.'
    return BadSetting(f"shares names '{name}', which is no {what} here.", hint)


# --- the process --------------------------------------------------------------------------------


def _announce(
    inventory: Inventory,
    lock: DaemonLock,
    folder: str,
    note: str,
    arguments: argparse.Namespace,
) -> None:
    banner = BANNER.format(version=__version__, socket=lock.socket_path, state=folder)
    print(banner, file=sys.stderr, flush=True)
    for text in (*inventory.notes, *filter(None, [note])):
        log.warning(text)
    names = ", ".join(gpu.shown_name for gpu in inventory.gpus)
    log.info("Managing GPUs {%s}", names)
    process.report(arguments.ready_fd, "ready")


async def _leave_when_idle(server: Server, idle_s: float, stopped: asyncio.Event) -> None:
    idle_for_s, step_s = 0.0, min(5.0, idle_s / 4)
    while idle_for_s < idle_s:
        await asyncio.sleep(step_s)
        idle_for_s = idle_for_s + step_s if server.is_idle else 0.0
    log.info("action=leave reason=idle")
    stopped.set()


def _log_to_stderr(path: str | None, is_debug: bool) -> None:
    process.log_to_stderr(path, logging.DEBUG if is_debug else logging.INFO, "%H:%M:%S")
    if sys.stderr.isatty() and not is_debug:
        logging.getLogger().handlers[0].setFormatter(TerminalFormatter())
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    # Do not look up, for each log line, facts that the format does not show.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


# --- the log on a terminal -----------------------------------------------------------------


class TerminalFormatter(logging.Formatter):
    """Writes grants and ends as sentences."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")
        self._names: dict[str, str] = {}  # of leases that run

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = self._sentence(record.message)
        return super().formatMessage(record)

    def _sentence(self, message: str) -> str:
        facts = {name: value.strip("'\"") for name, value in _FACT.findall(message)}
        lease = facts.get("lease", "")
        if facts.get("action") == "grant":
            name = self._names[lease] = facts["type"]
            first = ", first run" if facts["first_run"] == "True" else ""
            return f"{name} gets GPU {facts['gpus']}, {show_size(int(facts['reserved']))}{first}"
        if "outcome" in facts and lease in self._names:
            return f"{self._names.pop(lease)} has ended: {facts['outcome']}"
        return message


if __name__ == "__main__":
    sys.exit(main())
