"""Commands of the user's that are run when something has happened."""

from __future__ import annotations

from pathlib import Path

from tests.harness import wait_for
from tests.queue.daemon import Queue, a_queue


def lines(queue: Queue, name: str, count: int) -> list[str]:
    """Return the lines of a file of the story once there are so many."""
    path: Path = queue.story.folder / name
    wait_for(lambda: path.exists() and len(path.read_text().splitlines()) >= count, name)
    return sorted(path.read_text().splitlines())


def hook(name: str) -> str:
    return f'echo "$GRN_EVENT $GRN_JOB_ID $GRN_REASON" >> "$STORY/{name}"'


def test_hooks_hear_of_ends_failures_and_the_last() -> None:
    with a_queue() as queue:
        settings = [f"{name} = '''{hook(name)}'''" for name in ("on_end", "on_failure", "on_empty")]
        queue.story.write("config.toml", "\n".join(settings))
        queue.gate("last")
        bad, good = queue.sh("gate last; exit 3"), queue.sh("exit 0")
        skipped = queue.sh("true", "--after", str(bad))
        assert lines(queue, "on_end", 1) == [f"end {good} ok"]
        assert not (queue.story.folder / "on_empty").exists()
        queue.gate("last").open()
        expected = [f"end {bad} failed", f"end {skipped} skipped"]
        assert lines(queue, "on_end", 3) == sorted([f"end {good} ok", *expected])
        assert lines(queue, "on_failure", 2) == sorted(expected)
        assert lines(queue, "on_empty", 1) == ["empty  "]


def test_a_hook_that_fails_or_never_ends_is_nobodys_trouble() -> None:
    with a_queue(GRN_ON_END="exit 9", GRN_ON_FAILURE="no-such-program-anywhere") as queue:
        stays = queue.story.folder / "stays"
        job = queue.sh("exit 1", "--notify", f'echo $$ > "{stays}"; exec sleep 600')
        assert queue.ended(job)["reason"] == "failed"
        assert queue.ended(queue.sh("true"))["reason"] == "ok"
        wait_for(lambda: stays.exists() and stays.read_text(), "the hook")
        queue.story.start("kill", stays.read_text().strip()).ended_well()


def test_a_bad_setting_is_one_line() -> None:
    with a_queue() as queue:
        queue.story.write("config.toml", "on_ending = 'x'\n")
        ended = queue("submit", "--", "true")
        assert ended.code == 2
        assert ended.err.startswith("error: the queue did not start: ")
        assert "on_ending" in ended.err
