"""Small file systems to be filled up or cut off: made in a folder, always unmounted again."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import wait_for

_EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
_NO_LOG_FLUSH = (2).to_bytes(4, "little")


def _mount(*words: str) -> None:
    if os.getuid() != 0:
        pytest.skip("NOT ROOT: no disk was filled up or cut off")
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"MOUNT FAILED, no disk was filled up or cut off: {done.stderr.strip()}")


def _unmount(point: Path) -> None:
    """Unmount a disk; killed processes let go of their files a moment after they are killed."""
    unmount = ["umount", str(point)]
    wait_for(lambda: subprocess.run(unmount, capture_output=True).returncode == 0, str(unmount))


class CutDisk:
    """An ext4 of its own that loses, when it is cut off, all that was not synced to it."""

    def __init__(self, image: Path, point: Path) -> None:
        self._image = image
        self.point = point

    def mount(self) -> None:
        _mount("-o", "loop", str(self._image), str(self.point))

    def cut(self) -> None:
        """Stop all writing at once; nothing in memory gets to the disk any more."""
        fd = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(fd)

    def come_back(self) -> None:
        """Mount it again, as after a power cut.

        A test beside us may hold a copy of the mount for a moment (it has a mount namespace of its
        own): until that is gone we would get the dead file system back.
        """
        wait_for(self._is_back, "the disk to come back")

    def _is_back(self) -> bool:
        _unmount(self.point)
        self.mount()
        try:
            (self.point / "alive").touch()
        except OSError:
            return False
        return True


@contextmanager
def cut_disk(folder: Path) -> Iterator[CutDisk]:
    """Make a disk that can be cut off."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("MKFS.EXT4 IS MISSING: no power cut was tried")
    image, point = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate(96 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    point.mkdir()
    disk = CutDisk(image, point)
    disk.mount()
    try:
        yield disk
    finally:
        _unmount(point)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Make a disk in memory that is soon full."""
    point = folder / "disk"
    point.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "grn-test", str(point))
    try:
        yield point
    finally:
        _unmount(point)
