"""Containers without Docker: namespaces and a root of their own, with the mounts one asks for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness import SOURCES, Job, Story, unshare

OWN = {"proc", "sys", "tmp", "run"}  # what a container has for itself
SPACES = ("--pid", "--fork", "--kill-child", "--mount", "--net", "--ipc", "--uts")


def contain(
    story: Story,
    command: Sequence[str],
    volumes: Mapping[str, str],
    folder: str = "/tmp",
    env: Mapping[str, str | None] | None = None,
) -> Job:
    """Start a command in a box of its own, in a folder of it, with volumes from outside."""
    root = story.folder / "roots" / str(len(story.jobs))
    root.mkdir(parents=True)
    lines = ["set -e", "mount --make-rprivate /", f"mount -t tmpfs root {root}"]
    lines += _image(root)
    for source, target in {**_needed(), **volumes}.items():
        lines += [f"mkdir -p {root}{target}", f"mount --rbind {source} {root}{target}"]
    inner = f"mount -t proc proc /proc; cd {folder}; exec {shlex.join(command)}"
    lines.append(f"exec chroot {root} /bin/sh -ec {shlex.quote(inner)}")
    bare = {name: None for name in story.env if name.startswith("GRN_")}
    return story.start(
        *unshare(*SPACES), "/bin/sh", "-c", "\n".join(lines), env={**bare, **(env or {})}
    )


def _needed() -> dict[str, str]:
    """Return what belongs to the image but is kept where a box has its own."""
    paths = {Path(sys.prefix), Path(sys.base_prefix), SOURCES}
    return {str(path): str(path) for path in paths if path.parts[1] in OWN}


def _image(root: Path) -> list[str]:
    """Return the steps that make all of this machine, but for what it shares, the box's image."""
    lines = [f"mkdir {root}/{name}" for name in OWN]
    for entry in Path("/").iterdir():
        if entry.is_symlink():
            lines.append(f"ln -s {entry.readlink()} {root}/{entry.name}")
        elif entry.is_dir() and entry.name not in OWN:
            lines += [f"mkdir {root}/{entry.name}", f"mount --rbind {entry} {root}/{entry.name}"]
    return lines
