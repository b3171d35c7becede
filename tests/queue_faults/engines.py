"""A real container engine: boxes that mount what one asks for, without an image or a registry.

The root of a box is a folder of the test's with the host's programs mounted read-only, so nothing
is built and nothing is loaded. Needs podman and runc; as root, or where users may run containers.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness import DEADLINE_S, SOURCES, Ended, Job, Story, wait_for

# Not crun, which wants one kind of cgroups; no higher limits than a plain root may set.
RUN = ("podman", "--runtime", "runc", "run", "--rm", "--network", "none", "--no-hosts")
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
GRN = (sys.executable, "-c", "from grn.cli.main import main; main()")
MARK = "NO CONTAINER ENGINE"


@functools.cache
def needed() -> None:
    """Skip where no engine can be had."""
    if not (shutil.which("podman") and shutil.which("runc")):
        pytest.skip(f"{MARK}: install podman and runc")
    root = Path(tempfile.mkdtemp(prefix="grn-t", dir="/tmp"))
    try:
        command = [*RUN, *LIMITS, *_image(root), "--rootfs", str(root), "/usr/bin/env", "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(root)
    if done.returncode:
        pytest.skip(f"{MARK}: podman cannot run here: {done.stderr.strip()}")


class Box:
    """One container of a story; `volumes` say which folder of the host's is where inside."""

    def __init__(
        self,
        story: Story,
        *command: str,
        volumes: Mapping[Path, str],
        env: Mapping[str, str] | None = None,
    ) -> None:
        root = story.folder / "roots" / str(len(story.jobs))
        root.mkdir(parents=True)
        self.name = f"{story.folder.name}-{root.name}"
        self._story = story
        # STORY marks the processes inside as the story's; all else is as an image has it.
        inside = {"STORY": str(story.folder), "PYTHONPATH": str(SOURCES), "HOME": "/tmp"}
        words = [f"--env={name}={value}" for name, value in {**inside, **(env or {})}.items()]
        for source, target in volumes.items():
            words += ["--volume", f"{source}:{target}"]
        options = (*LIMITS, "--name", self.name, "--workdir", "/", *_image(root), *words)
        outside = {name: None for name in story.env if name.startswith("GRN_")}
        self.job: Job = story.start(
            *RUN, *options, "--rootfs", root, *command, env={**outside, "PYTHONPATH": None}
        )

    def wait(self) -> Ended:
        """Wait for its end."""
        return self.job.wait()

    def ended_well(self) -> str:
        """Wait for its end, which must be a good one; return what it printed."""
        return self.job.ended_well().out

    def says(self, text: str) -> None:
        """Wait until it has printed something."""
        wait_for(
            lambda: text in self.job.out or not self.job.is_running,
            lambda: f"{text!r}: {self.job.out} {self.job.err}",
        )
        assert text in self.job.out, self.job.err

    def run(self, *command: str) -> Ended:
        """Run one more command inside."""
        return self._story.start("podman", "exec", self.name, *command).wait()

    def order(self, verb: str) -> None:
        """Kill, pause, unpause or stop it."""
        argv = ["podman", "--runtime", "runc", verb, self.name]
        subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=True)

    def remove(self) -> None:
        """End it, whatever it does."""
        argv = ["podman", "--runtime", "runc", "rm", "--force", "--time", "0", self.name]
        subprocess.run(argv, capture_output=True, timeout=DEADLINE_S, check=False)


def _image(root: Path) -> list[str]:
    """Make the root of a box; return the volumes that fill it with this machine's programs."""
    for name in ("proc", "sys", "dev", "tmp", "run", "etc"):
        (root / name).mkdir()
    paths = {Path("/usr"), Path(sys.prefix), Path(sys.base_prefix), SOURCES.parent}
    for name in ("bin", "sbin", "lib", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            (root / name).symlink_to(path.readlink())
        elif path.is_dir():
            paths.add(path)
    if os.path.exists("/etc/ld.so.cache"):
        paths.add(Path("/etc/ld.so.cache"))
    inner = {path for path in paths if paths & set(path.parents)}
    words: list[str] = []
    for path in sorted(paths - inner):
        words += ["--volume", f"{path}:{path}:ro"]
    return words
