"""One command of a runner is ended to make room, with all it has started; the others go on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from grn.sweep.runner import Runner
from grn.sweep.slots import FixedSlots
from grn.sweep.task import EvictionAsk, Slot, SlotGrant
from tests.harness import is_running
from tests.sweep.crew_parts import Ear, Listed, sh


class Wanting(FixedSlots):
    """Slots that want the first of them back, twice, as soon as a file is there."""

    def __init__(self, path: Path) -> None:
        super().__init__(["1", "0"])
        self._path = path
        self._left = 2

    @property
    def wake_at(self) -> float | None:
        return time.monotonic() + 0.01 if self._left else None

    def grants(self) -> list[SlotGrant]:
        return [SlotGrant(one.task, _leased(one.slot), one.refusal) for one in super().grants()]

    def wanted(self) -> tuple[EvictionAsk, ...]:
        if not self._left or not self._path.exists():
            return ()
        self._left -= 1
        return (EvictionAsk("lease-0", "made room for b"), EvictionAsk("lease-9", "unknown"))


def _leased(slot: Slot | None) -> Slot:
    assert slot is not None
    lease = f"lease-{slot.name}"
    return Slot(slot.name, {**slot.environment, "GRN_LEASE": lease}, lease)


def ends(tmp_path: Path, line: str, grace_s: float) -> Ear:
    """Run a line that is wanted back once it has made `up`, beside one that sees it gone."""
    ear = Ear()
    stays = f"until [ -e {tmp_path}/up ]; do sleep 0.01; done; sleep 0.1"
    tasks = Listed([sh(line, 1, folder=str(tmp_path)), sh(stays, 2)])
    Runner(Wanting(tmp_path / "up"), tasks, ear, grace_s=grace_s).run()
    assert ear.statuses[stays] == 0, "a neighbour is never harmed"
    return ear


def pids(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "pids").read_text().split()]


def test_what_makes_room_is_ended_with_all_that_left_its_tree(tmp_path: Path) -> None:
    daemon = "setsid sh -c 'echo $$ >>pids; exec sleep 1005' & "
    line = f"echo $$ >>pids; ({daemon}); until [ $(wc -l <pids) = 2 ]; do :; done; >up; sleep 1005"
    ear = ends(tmp_path, line, grace_s=30.0)

    ended = next(one for one in ear.ends if one.task.number == 1)
    assert (ended.status, ended.is_requeued) == (-signal.SIGTERM, True)
    assert ended.because == "made room for b"
    assert not any(is_running(pid) for pid in pids(tmp_path))


def test_who_does_not_hear_is_killed_after_its_grace(tmp_path: Path) -> None:
    line = "trap '' TERM; (trap '' TERM; echo $$ >>pids; exec sleep 1006) & >up; wait"
    ear = ends(tmp_path, line, grace_s=0.1)

    ended = next(one for one in ear.ends if one.task.number == 1)
    assert (ended.status, ended.is_requeued) == (-signal.SIGKILL, True)
    assert not any(is_running(pid) for pid in pids(tmp_path))


def test_what_its_shell_has_started_has_its_grace_though_the_shell_is_gone(tmp_path: Path) -> None:
    saves = "trap 'sleep 0.2; echo saved >saved; exit 1' TERM; >up; while :; do sleep 0.01; done"
    ear = ends(tmp_path, f"sh -c '{saves.replace(chr(39), chr(34))}'; true", grace_s=30.0)

    assert (tmp_path / "saved").exists()
    assert [one.is_requeued for one in ear.ends if one.task.number == 1] == [True]


def test_who_has_ended_well_meanwhile_has_done_its_work(tmp_path: Path) -> None:
    line = "trap 'exit 0' TERM; >up; while :; do sleep 0.01; done"
    ear = ends(tmp_path, line, grace_s=30.0)

    ended = next(one for one in ear.ends if one.task.number == 1)
    assert (ended.status, ended.is_requeued, ended.because) == (0, False, "")


def test_a_crew_that_is_stopped_meanwhile_ends_it_too(tmp_path: Path) -> None:
    ear = Ear(lambda runner, ended: runner.stop())
    line = f"trap '' TERM; echo $$ >>{tmp_path}/pids; >{tmp_path}/up; while :; do sleep 0.01; done"
    other = f"until [ -e {tmp_path}/up ]; do sleep 0.01; done; exit 3"
    runner = Runner(Wanting(tmp_path / "up"), Listed([sh(line), sh(other, 2)]), ear, grace_s=0.1)
    runner.run()

    assert ear.statuses == {line: -signal.SIGKILL, other: 3}
    assert not any(is_running(pid) for pid in pids(tmp_path))
