"""A separate negotiator and queue, for tests of programs that use grn.

They run on virtual GPUs in a temporary folder, so no GPU is needed and the negotiator of the
machine is left alone. Standard library only; works with any test runner.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile

from grn.client import queue
from grn.client.daemons import DaemonProcess, negotiator_argv, start_aside
from grn.client.leasing.lease import IDLE
from grn.errors import GrnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

END_S = 10.0


class LocalGrn:
    """The daemons in the folder; `environment` points a process to them."""

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self._negotiator: DaemonProcess | None = None

    def start_negotiator(self, gpus: str) -> None:
        """Start the negotiator; the queue is started by the first submit, as usual."""
        argv = negotiator_argv(gpus, debug=False, idle_exit_s=None)
        self._negotiator = start_aside("negotiator", argv, is_detached=False)

    def kill_negotiator(self) -> None:
        """Kill the negotiator as a crash would; leases and waiting requests survive that."""
        assert self._negotiator is not None
        self._negotiator.process.kill()
        self._negotiator.process.wait()

    def close(self) -> None:
        """Cancel what is queued or runs, and end both daemons."""
        with contextlib.suppress(GrnError):  # no queue was ever started
            listed = queue.ask({"op": "list", "which": "alive"}, may_start=False)["jobs"]
            jobs = [job["id"] for job in listed]
            if jobs:
                queue.ask({"op": "cancel", "jobs": jobs, "now": True}, may_start=False)
                for _ in queue.ends(jobs):
                    pass
            queue.ask({"op": "stop"}, may_start=False)
        kept = IDLE.take()
        if kept is not None:
            kept.close()
        if self._negotiator is not None:
            self._negotiator.end(END_S)


@contextlib.contextmanager
def local_grn(gpus: str = "virtual:2x16GiB", **settings: str) -> Iterator[LocalGrn]:
    """Run a negotiator in a temporary folder; `settings` are variables like GRN_SAMPLE_S.

    os.environ points to it inside the block and is restored afterwards.
    """
    folder = tempfile.mkdtemp(prefix="grn-")
    variables = {
        "GRN_RUNTIME_DIR": os.path.join(folder, "run"),
        "GRN_STATE_DIR": os.path.join(folder, "state"),
        "GRN_CONFIG": os.path.join(folder, "config.toml"),
        **settings,
    }
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(("GRN_", "CUDA_VISIBLE"))]:
        del os.environ[name]
    os.environ.update(variables)
    local = LocalGrn(folder, variables)
    try:
        local.start_negotiator(gpus)
        yield local
    finally:
        try:
            local.close()
        finally:
            os.environ.clear()
            os.environ.update(before)
            shutil.rmtree(folder, ignore_errors=True)
