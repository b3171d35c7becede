"""Wiring: the only file where the queue's concrete parts meet.

Run as `python -m grn.queue`; `grn submit` starts it, `grn queue` shows and stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence

from grn import __version__, paths, settings
from grn.client.queue import end_former
from grn.daemon import process
from grn.daemon.lockfile import DaemonLock, lock, state_folder
from grn.errors import GrnError
from grn.proc.processes import boot_id, mounts
from grn.proc.spawn import SERVICE
from grn.queue.engine import QueueEngine
from grn.queue.fork_server import ForkServer
from grn.queue.jobs.lease_window import WindowLimits
from grn.queue.journal.journal import Journal
from grn.queue.journal.journal_file import NotWritten
from grn.queue.local.launcher import Launcher
from grn.queue.local.workers import LaunchSettings
from grn.queue.loop import QueueLoop
from grn.queue.notifications import Hooks
from grn.queue.requests.handlers import VERBS
from grn.queue.server import QueueServer

log = logging.getLogger("grn.queue")
_COPY_S = 3600.0
_MAX_FILES = 1 << 16  # one for each running job
_COLLECT = (5_000, 10, 1_000)  # a hundred thousand jobs are walked rarely: they hold no cycles


def main(argv: Sequence[str] | None = None) -> int:
    """Run the queue until a request or a signal stops it."""
    arguments = process.parser("grn.queue").parse_args(argv)
    process.log_to_stderr(arguments.log)
    os.environ.pop(SERVICE, None)  # processes that hooks start are no services
    try:
        chosen = settings.load()
        with DaemonLock(paths.queue_socket(), is_private=True) as daemon_lock:
            end_former()
            asyncio.run(_serve(chosen, daemon_lock, arguments.ready_fd))
    except GrnError as error:
        process.report(arguments.ready_fd, f"error: {error.message} {error.hint}".strip())
        print(f"error: {error.message} {error.hint}".strip(), file=sys.stderr)
        return error.exit_code
    return 0


async def _serve(chosen: settings.Settings, daemon_lock: DaemonLock, ready_fd: int | None) -> None:
    gc.disable()  # what is made until the freeze stays
    state, note = state_folder(mounts())
    folder = os.path.join(state, "queue")
    if note:
        log.warning(note)
    _check_locks(folder)
    journal = Journal(folder, boot_id(), time.time)
    launch = LaunchSettings(
        root=os.path.join(folder, "jobs", journal.identity),
        queue_id=journal.identity,
        queue_lock=daemon_lock.lock_path,
        grace_s=chosen.grace_to_end_s,
        log_bytes=chosen.log_bytes,
    )
    loop = QueueLoop(
        QueueEngine(WindowLimits(running=chosen.queue_running)),
        journal,
        functools.partial(Launcher, launch),
        boot_id(),
        Hooks(chosen.on_end, chosen.on_failure, chosen.on_empty, chosen.on_idle),
    )
    load_sites = functools.partial(_load_sites, loop, launch, os.path.join(folder, "nodes.json"))
    if chosen.sites:
        load_sites(is_recovered=False)
    stopped = process.stop_event()
    server = QueueServer(loop, VERBS, __version__, stopped.set, daemon_lock.hold, load_sites)
    process.raise_file_limit(_MAX_FILES)
    await loop.start()
    if chosen.sites or loop.site.lost_nodes():  # attempts on nodes that no setting names any more
        load_sites()
    gc.freeze()  # permanent objects need not be walked at every collection
    gc.set_threshold(*_COLLECT)
    gc.enable()
    await daemon_lock.serve(server.connection)
    fork_server = ForkServer(paths.commands_socket())
    fork_server.open()
    tasks = [
        asyncio.create_task(loop.leases.keep_connected()),
        asyncio.create_task(
            daemon_lock.look_after(stopped.set, folder, functools.partial(_is_displaced, journal))
        ),
        asyncio.create_task(_keep_copies(journal)),
    ]
    log.info("action=ready jobs=%d folder=%s", len(loop.engine.jobs), folder)
    process.report(ready_fd, "ready")
    await stopped.wait()
    daemon_lock.close()
    fork_server.close()
    for task in tasks:
        task.cancel()
    if loop.fleet is not None:
        loop.fleet.close()
    loop.site.close()
    loop.submitters.close()
    journal.close()


def _load_sites(
    loop: QueueLoop, launch: LaunchSettings, memory: str, *, is_recovered: bool = True
) -> None:
    """Read the sites of the settings file; without any, nothing of them is imported."""
    if loop.fleet is None:
        from grn.queue.sites.fleet import Fleet, FleetSettings

        chosen = FleetSettings(
            launch.queue_id, launch.folder, launch.log_bytes, memory, loop.journal.usual_s
        )
        loop.fleet = Fleet(chosen, loop.site)
    loop.fleet.load(is_recovered=is_recovered)


def _check_locks(folder: str) -> None:
    """Refuse a folder without locks: the record of an attempt is locked while its shim lives."""
    with contextlib.suppress(OSError):  # a full disk is reported elsewhere
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            lock(file.fileno(), folder, "GRN_STATE_DIR")


async def _keep_copies(journal: Journal) -> None:
    """Copy the journal once an hour; a copy of 100,000 jobs takes a twentieth of a second."""
    while True:
        await asyncio.sleep(_COPY_S / 12)
        journal.keep_copy(_COPY_S)


def _is_displaced(journal: Journal) -> bool:
    """Write a removed journal again, also while no client submits; True when that fails."""
    try:
        journal.keep_in_place()
    except NotWritten:  # logged; the next submit is refused
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
