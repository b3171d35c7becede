"""The socket: hostile, broken and greedy clients, each beside one that goes on being served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
import os
import resource
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grn import wire
from grn.model.job import Policy
from grn.negotiator.events import KernelKilled, LeaseState
from grn.negotiator.handlers import MAX_ASKED_AT_ONCE
from grn.negotiator.server import MAX_WITHDRAWN_AT_ONCE
from grn.protocol import negotiator_requests
from tests.harness import Story, wait_for
from tests.negotiator.live import (
    ANSWER_S,
    OTHER_UID,
    OWN_UID,
    THIRD_UID,
    Client,
    Inside,
    a_key,
    a_wish,
    begin,
    client_of,
    frame,
    inside,
    needs_root,
    negotiator_of,
    reachable,
)

HOSTILE = "\x1b[2J\x1b]0;x\x07\u202egnp.\u2066\u200b\r\n\x7f\x9b31m\u2028end"
SOON_S = 0.3  # a deadline short enough to be waited for


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """One server for the tests that leave nothing behind in it."""
    with inside(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def bystander(shared: Inside) -> Iterator[Client]:
    """Somebody who has done nothing wrong."""
    with shared.client() as client:
        yield client
        assert client.is_served()


def texts(found: Any) -> Iterator[str]:
    """Return all texts of an answer, names of fields as well."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for name, value in found.items():
            yield from (name, *texts(value))
    elif isinstance(found, list):
        for value in found:
            yield from texts(value)


# --- frames --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[1,2,3]",
        b"\x80\x04\x95pickle",
        b'{"op":"launch","id":5,"argv":["sh"]}',
        json.dumps(a_wish(mem=-1)).encode(),
        json.dumps(a_wish(gpus=-1)).encode(),
        b" " * wire.MAX_REQUEST_BYTES,  # as large as a frame may be
    ],
    ids=lambda body: str(body[:20]),
)
def test_a_bad_frame_gets_an_error_and_the_next_good_one_its_answer(
    shared: Inside, bystander: Client, body: bytes
) -> None:
    with shared.client() as client:
        answer = client.raw(frame(body)).hear()

        assert answer is not None
        assert answer["error"]["code"] == "ProtocolError"
        assert client.is_served()
        assert bystander.is_served()


@pytest.mark.parametrize("length", [wire.MAX_REQUEST_BYTES + 1, 1 << 31, (1 << 32) - 1])
def test_a_frame_over_the_limit_ends_its_connection_before_it_is_read(
    shared: Inside, bystander: Client, length: int
) -> None:
    with shared.client() as client:
        answer = client.raw(wire.HEADER.pack(length) + b"x" * 100).hear()

        assert answer is not None
        assert str(length) in answer["error"]["message"]
        assert client.hear() is None


def test_text_in_place_of_a_length_ends_its_connection(shared: Inside, bystander: Client) -> None:
    """Every protocol in letters looks like a frame of more than a gigabyte."""
    with shared.client() as client:
        answer = client.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").hear()

        assert answer is not None
        assert answer["error"]["code"] == "ProtocolError"
        assert client.hear() is None


def test_frames_in_pieces_and_in_heaps_are_answered_in_order(shared: Inside) -> None:
    asked = [{"op": "ping", "id": number} for number in range(300)]
    stream = b"".join(frame(message) for message in asked)
    with shared.client() as client:
        for start in range(0, 2000, 3):
            client.raw(stream[start : start + 3])
        client.raw(stream[2001:])

        heard = [client.hear() for _ in asked]

    assert [answer["id"] for answer in heard if answer] == list(range(300))


def test_another_version_is_told_what_to_do(shared: Inside, bystander: Client) -> None:
    with shared.client() as client:
        error = client.ask("ping", v=2)["error"]

        assert error["code"] == "VersionMismatch"
        assert "protocol 1 and this client 2" in error["message"]
        assert client.is_served()


@pytest.mark.parametrize("half", [b"\0", b"\0\0\0\x20", frame({"op": "ping", "id": 1})[:-1]])
def test_half_a_frame_is_given_up_after_the_deadline(tmp_path: Path, half: bytes) -> None:
    with (
        inside(tmp_path, deadline_s=SOON_S) as server,
        server.client() as bystander,
        server.client() as client,
    ):
        client.raw(half)

        assert client.hear() is None
        assert bystander.is_served()


def test_a_frame_that_drips_has_no_more_time_than_one_that_stops(tmp_path: Path) -> None:
    with (
        inside(tmp_path, deadline_s=SOON_S) as server,
        server.client() as bystander,
        server.client() as client,
    ):
        client.raw(wire.HEADER.pack(wire.MAX_REQUEST_BYTES))

        def drip() -> bool:
            """Send one more byte; True when the server has had enough."""
            return client.raw(b" ").has_news() and client.hear() is None

        wait_for(drip, "the end of a frame that never ends")
        assert bystander.is_served()


def test_a_frame_that_ends_in_time_starts_no_deadline(tmp_path: Path) -> None:
    """Whoever only listens, for hours, is no half-open connection."""
    ping = frame({"op": "ping", "id": 1})
    with inside(tmp_path, deadline_s=SOON_S) as server, contextlib.ExitStack() as stack:

        def in_time() -> Client | None:
            """Send a frame in two pieces; on a busy machine the second may come too late."""
            client = stack.enter_context(server.client())
            return client if client.raw(ping[:5]).raw(ping[5:]).hear() else None

        patient = wait_for(in_time, "a frame in two pieces")
        assert patient is not None
        late = server.client()
        for _ in range(2):  # two deadlines of somebody else pass
            late.raw(b"\0")
            assert late.hear() is None
            late = server.client()
        late.sock.close()

        assert patient.is_served()


@pytest.mark.parametrize("op", ["status", "ping"])
def test_a_client_that_never_reads_is_dropped_and_harms_nobody(tmp_path: Path, op: str) -> None:
    with inside(tmp_path, deadline_s=SOON_S) as server, server.client() as bystander:
        with server.client() as deaf:
            many = frame({"op": op, "id": 1}) * 1000

            def shout() -> None:
                while bystander.is_served():
                    deaf.sock.sendall(many)

            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                shout()
        wait_for(lambda: server.server.connections.total() == 1, "the deaf one to be dropped")


def test_a_client_that_reads_late_gets_all_its_answers(tmp_path: Path) -> None:
    """Being slow is no crime: it is heard no further until it has read."""
    count = 3000
    with inside(tmp_path) as server, server.client() as client:
        asking = threading.Thread(
            target=lambda: client.say(*({"op": "status", "id": i} for i in range(count)))
        )
        asking.start()
        with server.client() as bystander:
            assert bystander.is_served()
        heard = [client.hear() for _ in range(count)]
        asking.join()

    assert [answer["id"] for answer in heard if answer] == list(range(count))


def test_a_client_that_does_not_read_is_heard_no_further(tmp_path: Path) -> None:
    """Else its answers would pile up in the negotiator's memory."""
    flood = frame({"op": "ping", "id": 1}) * 10_000
    sent = 0
    with inside(tmp_path) as server, server.client() as deaf, server.client() as bystander:
        deaf.sock.setblocking(False)
        while sent < 8 << 20 and select.select([], [deaf.sock], [], 1.0)[1]:
            with contextlib.suppress(BlockingIOError):
                sent += deaf.sock.send(flood)
        assert bystander.is_served()

    assert sent < 8 << 20


@contextlib.contextmanager
def crowded(folder: Path, **limits: Any) -> Iterator[Inside]:
    """Serve with hundreds waiting, so that each status takes its time."""
    with inside(folder, gpus="1x64GiB", **limits) as server, server.client() as holder:
        holder.lease(exclusive=True)
        for number in range(300):
            holder.say(a_wish(id=number)).hear()
        yield server


def test_a_flood_of_questions_leaves_others_their_turn(tmp_path: Path) -> None:
    """A heap that takes a minute to answer is not answered in one go."""
    heap = frame({"op": "status", "id": 1}) * 8000
    with crowded(tmp_path) as server, server.client() as greedy, server.client() as bystander:

        def read() -> None:
            while greedy.hear() is not None:
                pass

        busy = [threading.Thread(target=read), threading.Thread(target=greedy.raw, args=[heap])]
        for thread in busy:
            thread.start()
        for _ in range(20):
            assert bystander.is_served()
        greedy.sock.shutdown(socket.SHUT_RDWR)
        for thread in busy:
            thread.join()


def test_the_requests_of_lost_clients_are_withdrawn_a_few_at_a_time(tmp_path: Path) -> None:
    with inside(tmp_path, gpus="1x64GiB") as server, contextlib.ExitStack() as clients:
        waiting = server.engine.view.waitlist
        clients.enter_context(server.client()).lease(exclusive=True)
        leaving = [clients.enter_context(server.client()) for _ in range(10)]
        for client in leaving:
            client.say(*(a_wish(id=number) for number in range(100)))
            for _ in range(100):
                client.hear()
        left: list[int] = []  # after each turn of the event loop
        is_over = threading.Event()

        def watch() -> None:
            left.append(len(waiting))
            if left[-1]:
                asyncio.get_running_loop().call_soon(watch)
            else:
                is_over.set()

        def leave() -> None:
            for client in leaving:
                client.sock.close()
            watch()

        server.call(leave)
        assert is_over.wait(ANSWER_S)

    assert left[0] == 1000
    # The first are withdrawn when the loss is seen, others later in the same turn.
    assert max(map(operator.sub, left, left[1:])) <= 2 * MAX_WITHDRAWN_AT_ONCE


def test_a_frame_loses_no_time_while_the_server_does_not_listen(tmp_path: Path) -> None:
    """The heap before it takes longer to answer than a frame may take to come in."""
    status, ping = frame({"op": "status", "id": 1}), frame({"op": "ping", "id": 2})
    with crowded(tmp_path, deadline_s=SOON_S) as server, server.client() as client:
        client.raw(status * 100 + ping[:7])
        for _ in range(90):
            assert client.hear() is not None
        client.raw(ping[7:])  # long after it was begun, and before anybody listens again
        for _ in range(10):
            assert client.hear() is not None

        answer = client.hear()

        assert answer is not None
        assert answer["id"] == 2


def test_unfinished_frames_of_one_user_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    half = wire.HEADER.pack(1 << 20) + b"{" * (1 << 19)
    with (
        inside(tmp_path, kept_bytes_per_user=4 << 20) as server,
        contextlib.ExitStack() as clients,
        server.client() as bystander,
    ):
        greedy = [clients.enter_context(server.client()) for _ in range(32)]
        for client in greedy:
            client.raw(half)
        refused = wait_for(
            lambda: (found := [one for one in greedy if one.has_news()])[23:] and found,
            "those over the bound to be refused",
        )
        assert bystander.is_served()
        assert server.server.kept_bytes <= (4 << 20) + (1 << 16)
        answers = [client.hear() for client in refused]

    told = [answer["error"]["message"] for answer in answers if answer is not None]
    assert all("unfinished requests" in text for text in told)
    assert told


def test_one_frame_comes_through_however_large_it_may_be(tmp_path: Path) -> None:
    wish = {"op": "ping", "id": 1}
    with inside(tmp_path, kept_bytes_per_user=1 << 10) as server, server.client() as client:
        body = json.dumps(wish) + " " * (1 << 19)
        answer = client.raw(frame(body)).hear()

    assert answer is not None
    assert answer["id"] == 1


def test_answers_that_nobody_reads_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    many = frame({"op": "profiles", "id": 1}) * 20_000
    with (
        inside(tmp_path, kept_bytes_per_user=256 << 10) as server,
        contextlib.ExitStack() as clients,
        server.client() as bystander,
    ):
        for _ in range(16):
            deaf = clients.enter_context(server.client())
            deaf.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while deaf.sock.send(many):
                    pass
        assert bystander.is_served()
        wait_for(lambda: server.server.connections.total() < 16, "some to be dropped")
        assert server.server.kept_bytes <= 512 << 10


def test_connections_that_come_and_go_leave_nothing(shared: Inside, bystander: Client) -> None:
    halves = [b"", b"\0\0", frame({"op": "status", "id": 1})[:9], frame(a_wish(mem=1 << 49))]
    for number in range(200):
        shared.client().raw(halves[number % len(halves)]).sock.close()

    wait_for(lambda: shared.server.connections.total() == 1, "all to be forgotten")
    assert shared.server.waiting.total() == 0
    assert bystander.ask("status")["status"]["leases"] == []


# --- what a machine cannot do, and limits --------------------------------------------------


def test_a_request_gets_only_gpus_that_it_chose(shared: Inside) -> None:
    with shared.client() as client:
        granted = client.lease(without=["0"])
        assert [gpu["index"] for gpu in granted["gpus"]] == [1]
        assert client.lease(on="b200")["error"]["code"] == "NeverFits"
        client.ask("done", lease=granted["lease"], outcome="ok")
        assert client.is_served()


@pytest.mark.parametrize(
    ("wish", "number"),
    [({"gpus": 10_000}, "10000"), ({"gpus": 3}, "3 GPUs"), ({"mem": 1 << 50}, "1024.0 TiB")],
)
def test_what_can_never_be_given_is_refused_with_the_number(
    shared: Inside, wish: dict[str, int], number: str
) -> None:
    with shared.client() as client:
        error = client.lease(**wish)["error"]

        assert error["code"] == "NeverFits"
        assert number in error["message"]
        assert error["hint"]
        assert client.is_served()


def test_a_user_has_so_many_connections_and_no_more(tmp_path: Path) -> None:
    with inside(tmp_path, connections_per_user=3) as server:
        first, *others = [server.client() for _ in range(3)]
        assert all(client.is_served() for client in (first, *others))
        with server.client() as fourth:
            answer = fourth.hear()
            assert answer is not None
            assert "3 connections" in answer["error"]["message"]
            assert fourth.hear() is None
        first.sock.close()
        wait_for(lambda: server.server.connections.total() == 2, "a free place")

        with server.client() as fifth:
            assert all(client.is_served() for client in (fifth, *others))
        for client in others:
            client.sock.close()


def test_all_users_together_have_so_many_connections(tmp_path: Path) -> None:
    with (
        inside(tmp_path, connections=2) as server,
        server.client() as one,
        server.client() as two,
        server.client() as three,
    ):
        answer = three.hear()

        assert answer is not None
        assert "2 connections" in answer["error"]["message"]
        assert one.is_served()
        assert two.is_served()


@needs_root
def test_the_connections_of_one_user_do_not_count_for_another(tmp_path: Path) -> None:
    with inside(tmp_path, connections_per_user=1) as server:
        path = reachable(server.path)
        with server.client() as mine, client_of(OTHER_UID, path) as theirs:
            assert mine.is_served()
            assert theirs.is_served()


def test_a_user_has_so_many_requests_waiting_and_no_more(tmp_path: Path) -> None:
    with (
        inside(tmp_path, gpus="1x64GiB", waiting_per_user=2) as server,
        server.client() as holder,
        server.client() as client,
    ):
        holder.lease(exclusive=True)
        keys = [a_key(), a_key()]
        for number, key in enumerate(keys):
            answer = client.say(a_wish(id=number, key=key)).hear()
            assert answer is not None
            assert answer["ev"] == "waiting"

        refused = client.say(a_wish(id=9)).hear()
        assert refused is not None
        assert refused["id"] == 9
        assert "2 requests" in refused["error"]["message"]

        told, done = (
            client.say({"op": "cancel", "id": 10, "key": keys[0]}).hear(),
            client.hear(),
        )
        assert told is not None
        assert told["id"] == 0  # whoever asked learns that it is off
        assert done == {"id": 10, "ok": True}
        answer = client.say(a_wish(id=11)).hear()
        assert answer is not None
        assert answer["ev"] == "waiting"


def test_one_connection_has_so_many_requests_waiting(tmp_path: Path) -> None:
    with (
        inside(tmp_path, gpus="1x64GiB") as server,
        server.client() as holder,
        server.client() as client,
    ):
        holder.lease(exclusive=True)
        asking = threading.Thread(
            target=lambda: client.say(*(a_wish(id=i) for i in range(MAX_ASKED_AT_ONCE + 1)))
        )
        asking.start()
        heard = [client.hear() for _ in range(MAX_ASKED_AT_ONCE + 1)]
        asking.join()

        assert [answer["id"] for answer in heard if answer and "error" in answer] == [
            MAX_ASKED_AT_ONCE
        ]
        assert holder.is_served()


def test_thousands_of_connections_and_one_more(negotiator: Callable[..., Any]) -> None:
    started = negotiator()
    path = _socket_of(started)
    before = _open_files(started.pid)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3000 if hard == resource.RLIM_INFINITY else min(3000, hard // 2)
    with contextlib.ExitStack() as stack:
        old = resource.getrlimit(resource.RLIMIT_NOFILE)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, old)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        idle = [stack.enter_context(Client(path)) for _ in range(wanted)]
        assert all(client.is_served() for client in idle[:: wanted // 10])
        for client in idle[::2]:
            client.raw(b"\0\0")
        assert started.is_answering()
        assert started.leases() == []
    wait_for(lambda: _open_files(started.pid) <= before, "all descriptors to be closed")


def _socket_of(started: Any) -> str:
    (path,) = Path(started.story.env["GRN_RUNTIME_DIR"]).glob("*.sock")
    return str(path)


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


# --- keys: the right answer to the right client --------------------------------------------


def test_a_key_twice_on_one_connection_is_refused(tmp_path: Path) -> None:
    with (
        inside(tmp_path, gpus="1x64GiB") as server,
        server.client() as holder,
        server.client() as client,
    ):
        holder.lease(exclusive=True)
        wish = a_wish()
        client.say(wish).hear()

        answer = client.say(wish | {"id": 2}).hear()

        assert answer is not None
        assert "key" in answer["error"]["message"]


def test_a_client_that_comes_back_gets_the_answer_and_keeps_its_place(tmp_path: Path) -> None:
    """Whether the negotiator sees the new connection first or the end of the old one."""
    with (
        inside(tmp_path, gpus="1x64GiB") as server,
        server.client() as holder,
        server.client() as old,
        server.client() as new,
    ):
        held = holder.lease(exclusive=True)
        wish = a_wish(exclusive=True)
        old.say(wish).hear()
        new.say(wish | {"id": 5}).hear()
        old.sock.close()
        wait_for(lambda: server.server.connections.total() == 2, "the old one to be gone")
        waiting = holder.ask("status")["status"]["waiting"]
        assert len(waiting) == 1

        holder.ask("done", lease=held["lease"], outcome="ok")

        answer = new.hear()
        assert answer is not None
        assert (answer["id"], answer["ev"]) == (5, "granted")
        assert server.server.waiting.total() == 0


def test_a_lost_grant_is_told_again_to_the_same_user(shared: Inside) -> None:
    wish = a_wish()
    with shared.client() as first, shared.client() as second:
        granted = first.lease(**wish)

        again = second.lease(**wish)

        assert again["lease"] == granted["lease"]
        second.ask("done", lease=granted["lease"], outcome="ok")


def test_a_lease_that_is_cancelled_is_free(shared: Inside) -> None:
    wish = a_wish()
    with shared.client() as client:
        client.lease(**wish)
        assert client.ask("cancel", key=wish["key"])["ok"]

        assert client.ask("status")["status"]["leases"] == []
        assert client.ask("cancel", key=wish["key"])["ok"]  # once more does no harm


def test_a_call_inside_a_job_uses_the_lease_of_that_job(shared: Inside) -> None:
    with shared.client() as outer, shared.client() as inner:
        held = outer.lease()

        nested = inner.lease(within=held["lease"])

        assert nested["nested"]
        assert nested["lease"] == held["lease"]
        assert len(outer.ask("status")["status"]["leases"]) == 1
        outer.ask("done", lease=held["lease"], outcome="ok")


def test_an_end_that_is_said_twice_ends_nothing_more(shared: Inside) -> None:
    with shared.client() as client:
        lease = client.lease()["lease"]

        assert client.ask("done", lease=lease, outcome="ok")["ended"] == "ok"
        assert client.ask("done", lease=lease, outcome="ok")["ended"] is None


def test_a_quiet_end_has_no_answer_and_is_acknowledged_with_the_next_grant(
    shared: Inside,
) -> None:
    with shared.client() as client:
        first = client.lease()
        assert first["quiet"]
        assert "heard" not in first
        client.say({"op": "done", "id": 7, "v": 1, "lease": first["lease"], "outcome": "ok",
                    "quiet": True})  # fmt: skip
        client.say({"op": "done", "id": 8, "v": 1, "lease": "0123abcd", "outcome": "ok",
                    "quiet": True})  # fmt: skip

        second = client.lease()  # the next answer of all

        assert second["heard"] == [first["lease"], "0123abcd"]
        assert [one["id"] for one in client.ask("status")["status"]["leases"]] == [second["lease"]]
        client.ask("done", lease=second["lease"], outcome="ok")
        third = client.lease()
        assert "heard" not in third
        client.ask("done", lease=third["lease"], outcome="ok")


def test_an_end_that_a_shim_says_first_is_answered_to_the_queue(shared: Inside) -> None:
    with shared.client() as queue, shared.client() as shim:
        queue.ask("queue")
        lease = queue.lease(command=True)["lease"]
        shim.say({"op": "done", "id": 1, "v": 1, "lease": lease, "outcome": "ok",
                  "resident": 5 << 20, "quiet": True})  # fmt: skip
        wait_for(lambda: not shared.call(lambda: list(shared.server.loop.view.leases)), "its end")

        told = queue.ask("done", lease=lease, outcome="ok", resident=5 << 20)

        assert (told["ended"], told["peak"]) == ("ok", 5 << 20)
        assert not shared.call(lambda: shared.server.reporters)


def test_what_a_quiet_end_has_taught_is_stored_a_moment_later(shared: Inside) -> None:
    with shared.client() as client:
        lease = client.lease()["lease"]
        client.say({"op": "done", "id": 7, "v": 1, "lease": lease, "outcome": "ok",
                    "quiet": True})  # fmt: skip
        wait_for(lambda: not shared.call(lambda: list(shared.server.loop.view.leases)), "its end")
        wait_for(lambda: not shared.call(lambda: shared.server.loop.store.unwritten), "the disk")


def test_whoever_asks_what_was_learned_hears_of_all_runs(shared: Inside) -> None:
    with shared.client() as client:
        for number in range(1, 9):
            lease = client.lease(type="often", label="often")["lease"]
            client.say({"op": "done", "id": 7, "v": 1, "lease": lease, "outcome": "ok",
                        "resident": 5 << 20, "quiet": True})  # fmt: skip
            (profile,) = client.ask("profiles", type="often")["profiles"]
            assert profile["runs"] == number


def test_an_end_said_by_a_process_in_its_last_moment_counts(shared: Inside) -> None:
    """Whether its death or its last message is seen first."""
    before = shared.call(lambda: shared.server.loop.history.outcomes())
    for _ in range(20):
        child = os.fork()
        if not child:
            with shared.client() as client:
                lease = client.lease()["lease"]
                client.say({"op": "done", "id": 7, "v": 1, "lease": lease, "outcome": "ok",
                            "quiet": True})  # fmt: skip
                os._exit(0)
        os.waitpid(child, 0)
    wait_for(lambda: not shared.call(lambda: list(shared.server.loop.view.leases)), "all to end")
    after = shared.call(lambda: shared.server.loop.history.outcomes())
    assert after["ok"] - before["ok"] == 20
    assert after["killed"] == before["killed"]


def test_a_late_report_over_the_line_of_a_dead_holder_does_not_keep_its_lease(
    shared: Inside,
) -> None:
    leases = lambda: [*shared.server.loop.view.leases.values()]  # noqa: E731
    ours, theirs = socket.socketpair()
    holder = os.fork()
    if not holder:
        client = shared.client()
        client.lease()
        socket.send_fds(theirs, [b"x"], [client.sock.fileno()])
        os._exit(0)
    os.waitpid(holder, 0)
    _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    ours.close(), theirs.close()

    with Client(socket.socket(fileno=fd)) as client:  # as a fork of the holder has it
        wait_for(lambda: [lease.state for lease in shared.call(leases)] == [LeaseState.DRAINING])
        (lease,) = shared.call(leases)
        client.say({"op": "done", "id": 7, "v": 1, "lease": lease.id, "outcome": "ok",
                    "quiet": True})  # fmt: skip
        assert client.is_served()
        assert shared.call(leases), "its memory may be in use while the line is open"

    wait_for(lambda: not shared.call(leases), "the lease to end with the line")


@pytest.mark.parametrize(
    ("said", "ended"), [("failed", "failed"), ("ok", "ok"), ("killed", "out-of-ram")]
)
def test_a_kill_by_the_kernel_explains_no_end_that_its_reporter_saw(
    shared: Inside, said: str, ended: str
) -> None:
    loop = shared.server.loop
    child = os.fork()
    if not child:
        shared.client().lease()
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    own = lambda one: one.request.holder and one.request.holder.pid == child  # noqa: E731
    (lease,) = shared.call(lambda: [one.id for one in loop.view.leases.values() if own(one)])
    shared.call(lambda: loop.tell(KernelKilled(loop.now(), 1)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    wait_for(lambda: shared.call(lambda: loop.history.end_of(lease)), "the end to be concluded")

    with shared.client() as queue:
        assert queue.ask("done", lease=lease, outcome=said)["ended"] == ended


def test_what_nobody_knows_is_an_error_with_a_hint(shared: Inside) -> None:
    with shared.client() as client:
        for question in (
            {"op": "hold", "lease": "0123456789abcdef"},
            {"op": "why", "name": "nobody"},
            {"op": "forget", "type": "nothing"},
        ):
            error = client.ask(**question)["error"]
            assert error["code"] == "UnknownJob"
            assert "See `grn" in error["hint"]


def test_runs_of_one_negotiator_are_learned_by_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with inside(tmp_path / "a") as first, first.client() as client:
        lease = client.lease(type="t.py", label="t")["lease"]
        client.ask("done", lease=lease, outcome="ok", resident=1 << 20, peak=300 << 20)
        (told,) = client.ask("runs", types=["t.py"])["runs"]
        assert client.ask("runs", types=["other.py"])["runs"] == []

    with inside(tmp_path / "b") as second, second.client() as client:
        assert client.ask("learn", **told)["learned"] == 1
        client.ask("learn", **told)  # a second time it says nothing new
        (profile,) = client.ask("profiles")["profiles"]
        assert (profile["label"], profile["runs"]) == ("t", 1)
        assert client.lease(type="t.py", label="t")["probe"] is False


@pytest.mark.parametrize(
    "wrong",
    [
        {"peak_bytes": -1},
        {"duration_s": -1.0},
        {"peak_bytes": 1 << 60},
        {"load": 1e9},
        {"grown": 2.0},
        {"code": "x" * 1000},
        {"arguments": [["x" * 1000, 1.0]]},
        {"outcome": "nonsense"},
        {"ended_at": "today"},
    ],
)
def test_runs_that_cannot_be_are_refused(shared: Inside, wrong: dict[str, Any]) -> None:
    run = {"outcome": "ok", "peak_bytes": 1 << 20, "duration_s": 1.0, "ended_at": 1.0}
    with shared.client() as client:
        answer = client.ask("learn", type="w.py", label="w", model="M", runs=[run | wrong])

        assert answer["error"]["code"] in ("UsageError", "ProtocolError")
        assert client.is_served()


def test_stop_is_passed_on_with_the_number_of_leases(tmp_path: Path) -> None:
    with inside(tmp_path) as server, server.client() as client:
        client.lease()

        assert client.ask("stop") | {"id": 0} == {"id": 0, "ok": True, "leases": 1}
        wait_for(lambda: server.stops == 1, "the word to reach the owner of the server")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_answered_before_the_end_is_true_after_it(
    negotiator: Callable[..., Any], signum: int
) -> None:
    """Leases come and go at full speed while the negotiator ends."""
    started = negotiator("virtual:2x64GiB")
    granted: list[str] = []
    ended: list[str] = []

    def come_and_go(client: Client) -> None:
        while (answer := client.say(a_wish()).hear()) is not None:
            granted.append(answer["lease"])
            if client.say({"op": "done", "id": 2, "lease": granted[-1], "outcome": "ok"}).hear():
                ended.append(granted[-1])

    with Client(_socket_of(started)) as client:
        busy = threading.Thread(target=come_and_go, args=[client])
        busy.start()
        wait_for(lambda: len(ended) > 50, "some to come and go")
        started.stop(signum)
        busy.join()
    started.start()

    kept = {row["id"] for row in started.leases()}
    assert kept & set(ended) == set()
    assert kept >= set(granted) - set(ended) - {granted[-1]}


# --- texts of users ------------------------------------------------------------------------


def test_hostile_names_never_come_out_raw(shared: Inside) -> None:
    with shared.client() as client:
        held = client.lease(
            type=f"type {HOSTILE}", label=f"label {HOSTILE}", args={HOSTILE[:60]: HOSTILE[:60]}
        )
        waiting = client.lease(type=HOSTILE, label=HOSTILE, slots=[HOSTILE])
        answers = [waiting, client.ask("status"), client.ask("why", name=held["lease"])]
        client.ask("done", lease=held["lease"], outcome="ok", resident=1 << 20)
        answers += [
            client.ask("profiles"),
            client.ask("why", name=HOSTILE),
            client.ask("forget", type=HOSTILE),
            client.ask(HOSTILE),
        ]

        found = [text for answer in answers for text in texts(answer)]
        assert [text for text in found if not text.isprintable()] == []
        assert sum("\\x1b[2J" in text for text in found) >= 10  # spelled out, not left out
        client.ask("forget", type=f"type {HOSTILE}")


def test_a_hostile_name_in_a_reason_to_wait_is_harmless_too(tmp_path: Path) -> None:
    with (
        inside(tmp_path, gpus="1x64GiB") as server,
        server.client() as first,
        client_of(os.getuid(), server.path) as second,
    ):
        first.lease(type="same", label=HOSTILE, mem=None)
        answer = second.say(a_wish(type="same", label="x", mem=None)).hear()

        assert answer is not None
        assert answer["reason"] == "first-run-elsewhere"
        assert "\\x1b[2J" in answer["text"]
        status = second.ask("status")
        assert all(text.isprintable() for text in (*texts(answer), *texts(status)))


@pytest.mark.parametrize(("policy", "placed"), [(None, "spread"), (Policy.PACK, "pack")])
def test_the_machine_may_have_a_policy_for_all_jobs(
    tmp_path: Path, policy: Policy | None, placed: str
) -> None:
    with inside(tmp_path, policy=policy) as server, server.client() as client:
        client.lease(policy="spread")

        (lease,) = client.ask("status")["status"]["leases"]
        assert lease["policy"] == placed


# --- who may do what -----------------------------------------------------------------------

# The negotiator is run by a user of its own, so that all four can be told apart.
WHO = {"owner": OTHER_UID, "other": THIRD_UID, "root": 0, "negotiator": OWN_UID}
EVERYBODY = set(WHO)
MAY = {
    "ping": EVERYBODY,
    "status": EVERYBODY,
    "samples": EVERYBODY,
    "why": EVERYBODY,
    "when": EVERYBODY,
    "book": EVERYBODY,
    "bookings": EVERYBODY,
    "unbook": {"owner", "root"},
    "reasons": EVERYBODY,  # of its own requests
    "profiles": EVERYBODY,
    "runs": EVERYBODY,  # of its own types
    "learn": {"owner"},  # else somebody could change what another's jobs get
    "queue": EVERYBODY,  # of its own connection
    "lease": EVERYBODY,
    "hold": {"owner", "root"},
    "watch": {"owner", "root"},
    "done": {"owner", "root"},
    "cancel": {"owner", "root"},
    "forget": {"owner", "root", "negotiator"},
    "audit": {"root", "negotiator"},
    "stop": {"root", "negotiator"},
}


@needs_root
def test_every_verb_is_allowed_to_exactly_those_of_the_table(story: Story) -> None:
    # Everybody may follow, on a connection of its own: see test_followers.py.
    assert MAY.keys() | {"follow"} == {
        kind.__struct_config__.tag for kind in negotiator_requests.KINDS
    }
    _let_all_in(story)
    begun = begin(story, negotiator_of(OWN_UID, "--gpus", "virtual:4x1GiB"))
    assert begun.is_ready, begun
    path = str(story.folder / "run" / f"{OWN_UID}.sock")
    try:
        with contextlib.ExitStack() as stack:
            clients = {who: stack.enter_context(client_of(uid, path)) for who, uid in WHO.items()}
            owner = clients["owner"]
            for verb in MAY.keys() - {"stop"}:
                for who, client in clients.items():
                    answer = _try(verb, client, owner)
                    found = answer.get("error", {}).get("code")
                    assert found == (None if who in MAY[verb] else "NotAllowed"), (verb, who)
            for who in ("owner", "other"):
                assert clients[who].ask("stop")["error"]["code"] == "NotAllowed"
                assert clients[who].is_served()
            assert clients["negotiator"].ask("stop")["ok"]
            assert begun.process.wait(60) == 0
    finally:
        begun.end()


def _try(verb: str, client: Client, owner: Client) -> dict[str, Any]:
    """Do one thing to a lease, a request or a profile that the owner has just made."""
    wish = a_wish(type="owned", label="owned", mem=1 << 20)
    lease = owner.lease(**wish)["lease"]
    more: dict[str, Any] = {}
    if verb == "lease":  # the key of another user's request opens nothing
        assert client is owner or client.lease(**wish)["error"]["code"] == "NotAllowed"
        answer = client.lease(type="mine")
        client.ask("done", lease=answer["lease"], outcome="failed")
    else:
        if verb in ("hold", "watch", "done"):
            more["lease"] = lease
        if verb == "done":
            more["outcome"] = "ok"
        if verb == "cancel":
            more["key"] = wish["key"]
        if verb == "why":
            more["name"] = lease
        if verb in ("book", "unbook"):
            begin = time.time() + 10 * 86400.0  # far: it keeps off no job
            wished = {"from_at": begin, "until_at": begin + 60.0}
            more = wished if verb == "book" else {"booking": _booked(owner, wished)}
        if verb == "reasons":
            more["keys"] = [wish["key"]]
        if verb in ("forget", "learn"):
            owner.ask("done", lease=lease, outcome="ok", resident=1 << 20)
            more["type"] = "owned"
        if verb == "learn":
            more |= {"label": "owned", "model": "Virtual GPU", "runs": []}
        answer = client.ask(verb, **more)
    for row in owner.ask("status")["status"]["leases"]:
        owner.ask("done", lease=row["id"], outcome="failed")
    for row in owner.ask("bookings")["bookings"]:
        assert any(one.ask("unbook", booking=row["id"]).get("ok") for one in (owner, client))
    return answer


def _booked(owner: Client, wished: dict[str, Any]) -> int:
    """Book a GPU, and return the number of the booking."""
    return int(owner.ask("book", **wished)["booking"]["id"])


@needs_root
def test_a_request_that_waits_is_taken_back_by_its_owner_and_root_only(story: Story) -> None:
    _let_all_in(story)
    begun = begin(story, negotiator_of(OWN_UID, "--gpus", "virtual:1x1GiB"))
    assert begun.is_ready, begun
    path = str(story.folder / "run" / f"{OWN_UID}.sock")
    try:
        with contextlib.ExitStack() as stack:
            clients = {who: stack.enter_context(client_of(uid, path)) for who, uid in WHO.items()}
            holder, waiter = (stack.enter_context(client_of(OTHER_UID, path)) for _ in range(2))
            holder.lease(exclusive=True)
            for who, client in clients.items():
                wish = a_wish(id=77)
                told = waiter.say(wish).hear()
                assert told is not None
                assert told["ev"] == "waiting"
                answer = client.ask("cancel", key=wish["key"])
                assert ("error" in answer) == (who not in MAY["cancel"])
                if who in MAY["cancel"]:
                    told = waiter.hear()
                    assert told is not None
                    assert "taken back" in told["error"]["message"]
            assert clients["root"].ask("stop")["ok"]
    finally:
        begun.end()


@needs_root
def test_a_lease_of_another_user_does_not_serve_a_call_inside(story: Story) -> None:
    _let_all_in(story)
    begun = begin(story, negotiator_of(None, "--gpus", "virtual:2x1GiB"))
    assert begun.is_ready, begun
    path = str(story.folder / "run" / "0.sock")
    try:
        with client_of(OTHER_UID, path) as owner, client_of(THIRD_UID, path) as other:
            held = owner.lease()
            answer = other.lease(within=held["lease"])
            assert not answer["nested"]
            assert answer["lease"] != held["lease"]
    finally:
        begun.end()


def _let_all_in(story: Story) -> None:
    """Give the folder to the user who runs the negotiator; all may pass."""
    os.chown(story.folder, OWN_UID, OWN_UID)
    story.folder.chmod(0o755)


def test_a_negotiator_with_few_descriptors_keeps_enough_for_its_own_work(story: Story) -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("util-linux, with its prlimit, is not installed")
    command = negotiator_of(None, "--gpus", "virtual:1x64GiB")
    begun = begin(story, ["prlimit", "--nofile=256:256", *command])
    assert begun.is_ready, begun
    (path,) = (story.folder / "run").glob("*.sock")
    try:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(path)) for _ in range(200)]
            first = clients[0]
            lease = first.lease()["lease"]
            answer = clients[-1].hear()
            assert answer is not None
            assert "connections already" in answer["error"]["message"]
            (row,) = first.ask("status")["status"]["leases"]
            assert (row["id"], row["state"]) == (lease, "running")
    finally:
        code, said = begun.end()
    assert code == 0
    assert "Too many open files" not in said


# --- anything at all -----------------------------------------------------------------------

KEYS = ["aaaaaaaa", "bbbbbbbb", "cccccccc"]
words = st.sampled_from([*KEYS, "", "x", "t.py", HOSTILE, "\x00", "a" * 2000, "0"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([0, 1, -1, 1 << 50, (1 << 50) + 1, 10**40]),
    st.floats(allow_nan=True),
    words,
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)
OPS = ["lease", "hold", "done", "cancel", "status", "why", "profiles", "forget", "ping", "stop",
       "book", "unbook", "bookings"]  # fmt: skip
OPTIONS = {
    "gpus": st.integers(-1, 4),
    "mem": st.one_of(st.none(), st.integers(-1, 1 << 51)),
    "exclusive": st.booleans(),
    "priority": st.integers(-1001, 1001),
    "policy": st.sampled_from(["spread", "pack", "x"]),
    "attempt": st.integers(-1, 101),
    "args": st.dictionaries(words, st.one_of(st.floats(), words, st.none()), max_size=3),
    "slots": st.lists(st.sampled_from(["0", "1", "9", "VIRTUAL-1"]), max_size=2),
    "stay": st.lists(st.sampled_from(["VIRTUAL-0", "9"]), max_size=2),
    "within": st.sampled_from(KEYS),
    "v": st.sampled_from([1, 2]),
}
NEEDED = {
    "lease": {"key": st.sampled_from(KEYS), "type": words, "label": words},
    "hold": {"lease": st.sampled_from([*KEYS, "LEASE"])},
    "done": {
        "lease": st.sampled_from([*KEYS, "LEASE"]),
        "outcome": st.sampled_from(["ok", "failed", "oom", "profiled", "killed"]),
    },
    "cancel": {"key": st.sampled_from(KEYS)},
    "why": {"name": words},
    "forget": {"type": words},
    "book": {"from_at": st.floats(), "until_at": st.floats(), "gpus": st.integers(-1, 4)},
    "unbook": {"booking": st.integers(-1, 4)},
}


@st.composite
def near_messages(draw: st.DrawFn) -> dict[str, Any]:
    """Make a message as ours are, then perhaps spoil it."""
    op = draw(st.sampled_from(OPS))
    message = {"op": op, **{name: draw(value) for name, value in NEEDED.get(op, {}).items()}}
    if op == "lease":
        for name in draw(st.sets(st.sampled_from(sorted(OPTIONS)), max_size=3)):
            message[name] = draw(OPTIONS[name])
    if draw(st.integers(0, 3)) == 0:
        message[draw(st.sampled_from([*message, "extra", "id"]))] = draw(anything)
    return message


things_to_say = st.one_of(
    st.binary(max_size=64),
    st.binary(max_size=64).map(frame),
    anything.map(lambda value: frame(json.dumps(value))),
    near_messages(),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.booleans(), things_to_say), max_size=12))
def test_whatever_is_said_the_right_client_gets_its_answers_and_all_goes_on(
    shared: Inside, said: list[tuple[bool, bytes | dict[str, Any]]]
) -> None:
    first_ids, second_ids = iter(range(1000, 2000)), iter(range(2000, 3000))
    with shared.client() as first, shared.client() as second:
        for is_first, thing in said:
            client, ids = (first, first_ids) if is_first else (second, second_ids)
            if isinstance(thing, dict):
                thing = frame(json.dumps({"id": next(ids), **_with_a_lease(shared, thing)}))
            client.raw(thing)
        for client, lowest in ((first, 1000), (second, 2000)):
            client.raw(frame({"op": "ping", "id": lowest + 999}))
            _all_answers_are_its_own(shared, client, lowest)
    with shared.client() as bystander:
        assert bystander.is_served()
    wait_for(lambda: shared.server.connections.total() == 0, "the connections to end")
    shared.call(shared.engine.check)
    assert shared.server.waiting.total() == 0
    _forget_everything(shared)


def _with_a_lease(server: Inside, message: dict[str, Any]) -> dict[str, Any]:
    if message.get("lease") != "LEASE":
        return message
    leases = server.call(lambda: list(server.server.loop.view.leases))
    return message | {"lease": leases[0] if leases else "abababab"}


def _all_answers_are_its_own(server: Inside, client: Client, lowest: int) -> None:
    """Read until the last answer, or the end where something was too broken to go on."""
    while True:
        for _ in range(3):  # turns of the server, in which it reads all that was sent
            server.call(lambda: None)
        if not client.has_news():
            return  # it is in the middle of a frame that was begun
        answer = client.hear()
        if answer is None or answer["id"] == lowest + 999:
            return
        assert "the negotiator failed" not in str(answer), "see the log for its traceback"
        number = answer["id"]
        is_drawn = not isinstance(number, int) or not 1000 <= number < 3000
        assert is_drawn or lowest <= number < lowest + 1000, answer


def _forget_everything(server: Inside) -> None:
    with server.client() as client:
        for lease in client.ask("status")["status"]["leases"]:
            client.ask("done", lease=lease["id"], outcome="failed")
        assert client.ask("status")["status"]["waiting"] == []
