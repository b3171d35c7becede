"""Make tests/data/queue-COMMIT: what a queue of an older commit leaves on the disk.

    python tools/make_state_data.py COMMIT...

Runs the queue of that commit with this interpreter, on virtual GPUs. Job 1 ends well and job 2
with status 3 while the queue lives; job 3 ends with status 5 and job 4 loses its shim after the
queue has stopped; job 5 is held. The journal is kept as SQL, so that changes can be read.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (  # the folder had another name before
    "import sys, importlib.util as u; name = 'cli' if u.find_spec('grn.cli') else 'front'; "
    "main = __import__(f'grn.{name}.main', fromlist=['main']).main; "
    "sys.argv[0] = 'grn'; sys.exit(main())"
)
PATIENCE_S = 60.0


class Older:
    """An older grn in separate folders."""

    def __init__(self, commit: str, home: Path) -> None:
        self.home = home
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", commit, "src"], check=True, stdout=subprocess.PIPE
        ).stdout
        subprocess.run(["tar", "-x", "-C", home], input=archive, check=True)
        self._env = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(home / "src"),
            "GRN_RUNTIME_DIR": str(home / "run"),
            "GRN_STATE_DIR": str(home / "state"),
            "GRN_GPUS": "virtual:2x512MiB",
        }

    def grn(self, *words: str) -> str:
        argv = [sys.executable, "-c", COMMAND, *words]
        done = subprocess.run(argv, env=self._env, cwd="/", stdout=subprocess.PIPE, check=False)
        return done.stdout.decode()

    def submit(self, line: str, *options: str) -> None:
        self.grn("submit", "--mem", "8MiB", *options, "--", "/bin/sh", "-c", line)


def make(commit: str) -> None:
    """Make the data of one commit."""
    with tempfile.TemporaryDirectory(prefix="grn-d") as folder:
        home = Path(folder)
        older = Older(commit, home)
        for line in ("exit 0", "exit 3"):
            older.submit(line)
        older.grn("wait", "1")
        older.grn("wait", "2")
        older.submit(f"until [ -e {home}/go ]; do sleep 0.05; done; echo over; exit 5")
        older.submit(f"echo $PPID > {home}/shim; exec sleep 60")
        older.submit("exit 0", "--hold")
        wait_for((home / "shim").exists)
        wait_for(lambda: "running" in older.grn("show", "3"))
        older.grn("queue", "stop")
        os.kill(int((home / "shim").read_text()), signal.SIGKILL)
        (home / "go").touch()
        time.sleep(2.0)  # until the shim of job 3 has written its end, in whichever form
        older.grn("stop")
        keep(home / "state" / "queue", ROOT / "tests" / "data" / f"queue-{commit[:7]}", folder)


def keep(state: Path, target: Path, folder: str) -> None:
    """Copy the attempts as they are, and the journal as SQL."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(state / "jobs", target / "jobs")
    db = sqlite3.connect(state / "queue.sqlite3")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    text = "\n".join([*db.iterdump(), f"PRAGMA user_version={version};", ""])
    (target / "queue.sql").write_text(text.replace(folder, "/tmp/made"))


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise SystemExit("the older grn did not get so far")
        time.sleep(0.05)


if __name__ == "__main__":
    for one in sys.argv[1:]:
        make(one)
