"""gpus, ps, why, profiles: of a real negotiator with real leases, for people and for programs."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.live import Shell
from tests.harness import Negotiator, Story
from tests.negotiator.live import Client, a_wish

Start = Callable[..., Negotiator]
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202eevil\u200b\r\nnext\x9b31m"

GPU = {
    "index", "uuid", "model", "kind", "health", "total_bytes", "guard_bytes", "used_bytes",
    "reserved_bytes", "strangers_bytes", "unexplained_bytes", "free_bytes", "load_pct", "leases",
    "links", "load_cap", "temperature_c", "power_w", "clock_mhz", "idle_bytes", "idle_leases",
    "idle_strangers",
}  # fmt: skip
JOB = {
    "id", "type", "label", "user", "pid", "gpus_asked", "mem_bytes", "exclusive", "priority",
    "policy", "attempt", "state", "for_s", "reason", "why", "cpus", "ram_bytes",
}  # fmt: skip
LEASE = JOB | {
    "gpus", "reserved_bytes", "used_bytes", "peak_bytes", "first_run", "ends_in_s",
    "reserved_ram_bytes", "reserved_cpus", "used_ram_bytes", "used_cpus", "idle_for_s", "idled_s",
}  # fmt: skip
WAITING = JOB | {"place", "had_gpu_h", "users_before", "starts_in_s", "tag"}
SHARE = {"user", "weight", "had_gpu_h", "gpus_now", "waits"}
PROFILE = {
    "type", "label", "model", "owner", "runs", "known", "largest_bytes", "estimate_bytes",
    "because", "usual_duration_s", "load", "by_arguments", "history", "load_cap",
    "load_cap_because", "slower_beside", "notes", "ram_bytes", "ram_because", "cpus", "peak_cpus",
}  # fmt: skip
RUN = {
    "outcome", "peak_bytes", "reserved_bytes", "duration_s", "ended_at", "args", "counts", "load",
    "code", "outdated", "note", "ram_bytes", "cpus", "peak_cpus",
}  # fmt: skip


@pytest.fixture
def busy(negotiator: Start, story: Story) -> Iterator[Client]:
    """One job runs under a hostile name, one waits, one was measured."""
    negotiator("virtual:1x64GiB")
    (path,) = (story.folder / "run").glob("*.sock")
    with Client(path) as client, Client(path) as waiter:
        lease = client.lease(type="measured.py", label="measured.py", args={"bs": 8})["lease"]
        client.ask("done", lease=lease, outcome="ok", resident=1 << 20)
        lease = client.lease(type="evil.py", label=HOSTILE, args={HOSTILE[:60]: HOSTILE[:60]})
        client.ask("done", lease=lease["lease"], outcome="ok", resident=1 << 20)
        client.lease(type=HOSTILE, label=HOSTILE, exclusive=True)
        told = waiter.say(a_wish(type="next.py", label="next.py")).hear()
        assert told is not None
        assert told["ev"] == "waiting"
        yield client


def shown(grn: Shell, *words: str) -> Any:
    ended = grn(*words, "--json")
    assert (ended.code, ended.err) == (0, "")
    return json.loads(ended.out)


# --- for programs --------------------------------------------------------------------------


def test_json_has_the_documented_keys(grn: Shell, busy: Client) -> None:
    gpus = shown(grn, "gpus")
    assert gpus.keys() == {"schema", "version", "gpus", "host"}
    assert [gpu.keys() for gpu in gpus["gpus"]] == [GPU]

    jobs = shown(grn, "ps")
    assert jobs.keys() == {"schema", "version", "leases", "waiting"}
    assert [lease.keys() for lease in jobs["leases"]] == [LEASE]
    assert [waiting.keys() for waiting in jobs["waiting"]] == [WAITING]

    shares = shown(grn, "shares")
    assert shares.keys() == {"schema", "version", "shares"}
    assert [share.keys() for share in shares["shares"]] == [SHARE]

    idle = shown(grn, "idle")
    assert (idle.keys(), idle["idle"]) == ({"schema", "version", "idle"}, [])

    why = shown(grn, "why", jobs["waiting"][0]["id"])
    assert why.keys() == {"schema", "jobs"}
    assert [job["id"] for job in why["jobs"]] == [jobs["waiting"][0]["id"]]

    profiles = shown(grn, "profiles")
    assert profiles.keys() == {"schema", "profiles"}
    assert [profile.keys() for profile in profiles["profiles"]] == [PROFILE] * 2
    assert all(run.keys() == RUN for profile in profiles["profiles"] for run in profile["history"])
    one = shown(grn, "profiles", "show", "measured.py")
    assert one["profiles"] == profiles["profiles"][:1]
    assert {answer["schema"] for answer in (gpus, jobs, why, profiles, one)} == {1}


def test_json_is_plain_ascii_whatever_the_names(grn: Shell, busy: Client) -> None:
    for words in (["ps"], ["profiles"], ["why", str(os.getpid())]):
        out = grn(*words, "--json").out
        assert out.isascii()
        assert "\x1b" not in out


# --- for people ----------------------------------------------------------------------------


def test_hostile_names_are_inert_on_a_terminal(grn: Shell, busy: Client) -> None:
    lease = busy.ask("status")["status"]["leases"][0]["id"]
    for words in (
        ["gpus"],
        ["ps"],
        ["why", lease],
        ["profiles"],
        ["profiles", "show", "evil.py"],
        ["why", HOSTILE],
        ["profiles", "show", HOSTILE],
        ["profiles", "forget", HOSTILE],
        ["logs", HOSTILE],
        [HOSTILE],
        ["gpus", f"--{HOSTILE}"],
    ):
        _, text = grn.on_terminal(*words, columns=400, env={"NO_COLOR": "1"})
        assert all(line.isprintable() for line in text.splitlines()), (words, text)
        assert "owned" in text or words == ["gpus"]


def test_a_job_is_explained_by_id_pid_and_name(grn: Shell, busy: Client) -> None:
    waiting = busy.ask("status")["status"]["waiting"][0]

    by_id = grn("why", waiting["id"][:6])
    assert by_id.code == 0
    assert "place 1: needs" in by_id.out or "place 1: this process" in by_id.out
    assert f"[{waiting['reason']}]" in by_id.out
    assert grn("why", "next.py").out.splitlines()[0] == by_id.out.splitlines()[0]
    assert len(grn("why", str(os.getpid())).out.splitlines()) == 4  # both are this process's


def test_what_was_learned_can_be_forgotten(grn: Shell, busy: Client) -> None:
    assert "measured.py" in grn("profiles").out

    ended = grn("profiles", "forget", "measured.py")

    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "forgotten: measured.py\n"
    assert "measured.py" not in grn("profiles").out
    assert grn("profiles", "forget", "measured.py").code == 2
    assert grn("audit", "-n", "1").out.splitlines()[1].split()[-3:] == [
        "forget",
        "measured.py",
        "done",
    ]
    assert json.loads(grn("audit", "--json").out)["audit"][-1]["object"] == "measured.py"


def test_gpus_are_booked_and_the_booking_is_removed(grn: Shell, busy: Client) -> None:
    ended = grn("book", "--from", "tomorrow 9:00", "--for", "4h")
    assert (ended.code, ended.out) == (0, "1\n")
    assert ended.err == "booked 1 GPU from 09:00 to 13:00 tomorrow\n"
    assert grn("book", "ls").out.splitlines()[1].split()[-2:] == ["4h00m", "ahead"]
    (row,) = json.loads(grn("book", "ls", "--json").out)["bookings"]
    assert (row["id"], row["user"], row["until_at"] - row["from_at"]) == (1, os.getuid(), 14400.0)

    for words, said in (
        (["-n", "99", "--for", "1h"], "this machine has"),
        (["--from", "2020-01-01", "--for", "1h"], "is past"),
        (["--for", "30d"], "at most 7 days"),
        (["--for", "1h", "--on", "h100"], "no GPU here is 'h100'"),
    ):
        ended = grn("book", *words)
        assert ended.code in (2, 4)
        assert said in ended.err
        assert len(ended.err.splitlines()) == 2
    assert grn("book", "rm", "1").err == "removed: booking 1\n"
    assert grn("book", "rm", "1").code == 2
    assert grn("book", "ls").out == "nothing is booked\n"


def test_a_profile_is_shown_with_its_arguments(grn: Shell, busy: Client) -> None:
    out = grn("profiles", "show", "measured.py").out

    assert "bs=8" in out
    assert "estimate" in out


def test_an_idle_negotiator_says_so(grn: Shell, negotiator: Start) -> None:
    negotiator()

    assert grn("ps").out == "nothing runs and nothing waits\n"
    assert grn("profiles").out == "nothing was learned yet: run a job first\n"


@pytest.mark.slow
def test_a_negotiator_that_does_not_answer_is_told_of(grn: Shell, negotiator: Start) -> None:
    """Stopped, not dead: the socket takes the question and nobody answers."""
    started = negotiator()
    assert started.process is not None
    started.process.send_signal(signal.SIGSTOP)
    try:
        ended = grn("ps")
    finally:
        started.process.send_signal(signal.SIGCONT)

    assert ended.code == 3
    assert "did not answer within" in ended.err


def test_trouble_with_the_disk_is_a_warning_on_every_look(
    grn: Shell, negotiator: Start, story: Story
) -> None:
    """Files of this negotiator may not grow: a full disk without a disk to fill."""
    started = negotiator("virtual:1x64GiB")
    soft, hard = resource.prlimit(started.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(started.pid, resource.RLIMIT_FSIZE, (4096, hard))
    (path,) = (story.folder / "run").glob("*.sock")
    with Client(path) as client:
        client.lease(label="x" * 250, type="y" * 1000)
        for words in ("gpus", "ps"):
            ended = grn(words)
            assert ended.code == 0
            assert ended.err.startswith("warning: ")
            assert "cannot be written" in ended.err
        ended = grn("doctor")
        assert ended.code == 1
        assert "BAD   " in ended.out
    resource.prlimit(started.pid, resource.RLIMIT_FSIZE, (soft, hard))


def test_names_of_users_are_shown_where_there_are_some(grn: Shell, busy: Client) -> None:
    line = next(line for line in grn("ps").out.splitlines() if "next.py" in line)
    known = {int(row.split(":")[2]): row.split(":")[0] for row in _passwd()}

    assert known.get(os.getuid(), str(os.getuid())) in line


def _passwd() -> list[str]:
    return Path("/etc/passwd").read_text().splitlines()


def test_when_tells_the_expected_start_of_a_job_that_is_not_submitted(
    grn: Shell, negotiator: Start, story: Story
) -> None:
    negotiator("virtual:1x64GiB")
    (path,) = (story.folder / "run").glob("*.sock")
    with Client(path) as client:
        lease = client.lease(type="known.py", label="known.py")["lease"]
        client.ask("done", lease=lease, outcome="ok", resident=1 << 20)
        assert shown(grn, "when", "--for", "6h") == {
            "schema": 1,
            "starts_in_s": [0.0, 0.0],
            "ends_in_s": [21600.0, 21600.0],
        }
        client.lease(type="new.py", label="new.py", exclusive=True)
        assert grn("when").out.startswith("unknown: ")
        client.ask("done", lease=shown(grn, "ps")["leases"][0]["id"], outcome="ok")
        client.lease(type="known.py", label="known.py", exclusive=True)

        low_s, high_s = shown(grn, "when", "--mem", "1GiB", "--type", "known.py")["starts_in_s"]
        assert 0 <= low_s <= high_s
        (lease_row,) = shown(grn, "ps")["leases"]
        ends_in_s = lease_row["ends_in_s"]  # unknown once it has run far longer than before
        assert ends_in_s is None or ends_in_s[0] <= ends_in_s[1]

    assert "you asked for 9 GPUs" in grn("when", "--gpus", "9").err
    assert "no job type 'no.py'" in grn("when", "--type", "no.py").err
    assert not shown(grn, "ps")["waiting"]
