"""A watch of folders returns after each change in them, also in a folder that is made again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from grn.daemon.folder_watch import FolderWatch

DEADLINE_S = 60.0


def remove_file(folder: Path) -> None:
    (folder / "kept").unlink()


def replace_file(folder: Path) -> None:
    (folder / "other").rename(folder / "kept")


def make_file(folder: Path) -> None:
    (folder / "new").touch()


def rename_folder(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with two files."""
    made = tmp_path / "watched"
    made.mkdir()
    for name in ("kept", "other"):
        (made / name).touch()
    return made


async def told_of(watch: FolderWatch, change: Callable[[], object]) -> bool:
    """True when the watch returns after a change, and not before."""
    waiting = asyncio.ensure_future(watch.changed())
    for _ in range(5):
        await asyncio.sleep(0)
    was_done = waiting.done()
    change()
    await asyncio.wait_for(waiting, DEADLINE_S)
    return not was_done


@pytest.mark.parametrize(
    "change", [remove_file, replace_file, make_file, rename_folder, remove_folder]
)
def test_each_change_is_told(tmp_path: Path, folder: Path, change: Callable[[Path], None]) -> None:
    async def story() -> None:
        watch = FolderWatch([str(tmp_path), str(folder)])
        watch.renew()
        assert await told_of(watch, lambda: change(folder))
        watch.close()

    asyncio.run(story())


def test_a_folder_that_was_made_again_is_watched_once_it_is_renewed(folder: Path) -> None:
    async def story() -> None:
        watch = FolderWatch([str(folder)])
        watch.renew()
        shutil.rmtree(folder)
        folder.mkdir()
        await asyncio.wait_for(watch.changed(), DEADLINE_S)
        watch.renew()
        assert await told_of(watch, (folder / "new").touch)
        watch.close()

    asyncio.run(story())


def test_a_change_between_two_waits_is_told(folder: Path) -> None:
    async def story() -> None:
        watch = FolderWatch([str(folder)])
        watch.renew()
        remove_file(folder)
        await asyncio.wait_for(watch.changed(), DEADLINE_S)
        watch.close()

    asyncio.run(story())


def test_without_the_folder_it_returns_after_a_moment(tmp_path: Path) -> None:
    async def story() -> None:
        watch = FolderWatch([str(tmp_path / "absent")])
        watch.renew()
        await asyncio.wait_for(watch.changed(), DEADLINE_S)
        watch.close()

    asyncio.run(story())
