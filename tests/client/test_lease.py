"""Acquire, hold, release: the primitive, used by hand."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import grn
from grn.client.leasing.job_request import lease_request
from grn.client.leasing.lease import IDLE, ClientLease, LeaseConnection
from tests.conftest import Negotiators
from tests.harness import Negotiator, Story, wait_for

MiB = 1 << 20


def test_a_lease_lasts_as_long_as_its_block(here: Negotiator) -> None:
    with grn.lease(mem="64MiB", gpus=2, type="by hand") as lease:
        assert lease.is_held
        assert lease.gpus == (0, 1)
        assert lease.visible_devices == os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert lease.reserved_bytes == 64 * MiB
        (shown,) = here.leases()
        assert (shown["id"], shown["type"], shown["gpus"]) == (lease.id, "by hand", [0, 1])
        assert repr(lease) == f"<grn lease {lease.id} on GPU 0,1>"
    assert not lease.is_held
    assert here.leases() == []
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_lease_without_a_name_is_called_by_where_it_is_taken(here: Negotiator) -> None:
    with grn.lease():
        (shown,) = here.leases()
    here_and_now = "test_a_lease_without_a_name_is_called_by_where_it_is_taken"
    assert shown["type"] == f"{os.path.realpath(__file__)}::{here_and_now}"


def test_a_second_release_is_no_harm(here: Negotiator) -> None:
    lease = grn.lease(mem="64MiB").acquire()

    assert lease.release() == "ok"
    assert lease.release() is None


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (None, "ok"),
        (SystemExit(0), "ok"),
        (SystemExit(1), "failed"),
        (KeyboardInterrupt(), "failed"),
        (ValueError("mine"), "failed"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), "oom"),
    ],
)
def test_how_a_block_ends_is_how_the_lease_ends(
    here: Negotiator, raised: BaseException | None, outcome: str
) -> None:
    lease = grn.lease(mem="64MiB").acquire()
    assert lease.release(raised) == outcome


def test_a_lease_inside_a_lease_is_the_same_one(here: Negotiator) -> None:
    with grn.lease(mem="64MiB") as outer:
        with grn.lease(gpus=2) as inner:
            assert (inner.id, inner.gpus, inner.is_nested) == (outer.id, outer.gpus, True)
        assert [lease["id"] for lease in here.leases()] == [outer.id]
        assert outer.is_held


def test_an_async_block_holds_a_lease(here: Negotiator) -> None:
    async def hold() -> None:
        async with grn.lease(mem="64MiB") as lease:
            assert [shown["id"] for shown in here.leases()] == [lease.id]

    asyncio.run(hold())
    assert here.leases() == []


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"gpus": -1}, "gpus is -1"),
        ({"gpus": True}, "gpus is True"),
        ({"gpus": 1.5}, "gpus is 1.5"),
        ({"policy": "best"}, "policy is 'best'"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_at_once(asked: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        grn.lease(**asked)


def test_a_size_that_makes_no_sense_is_refused_at_once() -> None:
    with pytest.raises(grn.GrnError, match="6 bananas"):
        grn.lease(mem="6 bananas")


def test_whoever_waits_hears_why(here: Negotiator) -> None:
    heard: list[str] = []
    second = ClientLease(lease_request("second", "second", mem="64MiB"), heard.append)
    with ThreadPoolExecutor(1) as pool:
        with grn.lease(exclusive=True, type="first"):
            asked = pool.submit(second.acquire)
            wait_for(lambda: heard, "the reason")
            (shown,) = here.waiting()
            assert shown["why"] == heard[0]
            assert shown["reason"] == "stays-on-its-gpu"
        assert asked.result(60).is_held
        assert pool.submit(second.release).result(60) == "ok"


def test_a_lease_may_be_given_back_in_another_thread(here: Negotiator) -> None:
    lease = grn.lease(mem="64MiB").acquire()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lease.release).result(60) == "ok"
    with grn.lease(mem="64MiB") as following:
        assert not following.is_nested


def test_a_block_that_ends_well_does_not_wait_for_the_negotiator(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    with grn.lease(mem="64MiB") as lease:
        os.kill(here.pid, signal.SIGSTOP)
    assert lease.settled is None
    os.kill(here.pid, signal.SIGCONT)
    assert here.leases() == []


def test_an_end_that_was_lost_with_the_negotiator_is_told_with_the_next_request(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    with grn.lease(mem="64MiB") as unheard:
        lost = unheard.id
        os.kill(here.pid, signal.SIGSTOP)
    here.kill()
    here.start()
    assert [shown["id"] for shown in here.leases()] == [lost]
    with grn.lease(mem="64MiB") as lease:
        assert [shown["id"] for shown in here.leases()] == [lease.id]


def test_a_process_that_ends_waits_until_its_last_lease_has_ended(
    story: Story, negotiator: Negotiators
) -> None:
    """Its memory is measured then, which is lost with the process."""
    here = negotiator()
    story.run_script(
        """
        import grn, os
        with grn.lease(type="short"):
            pages = os.urandom(1 << 20) * 32
        """
    )
    assert here.leases() == []
    (profile,) = here.profiles()
    assert (profile["type"], profile["runs"]) == ("short", 1)


def test_an_end_during_a_restart_is_heard_after_it(story: Story, negotiator: Negotiators) -> None:
    here = negotiator()
    lease = grn.lease(mem="64MiB").acquire()
    here.kill()
    here.start()
    assert [shown["id"] for shown in here.leases()] == [lease.id]

    assert lease.release() == "ok"
    assert here.leases() == []


def test_an_end_that_nobody_heard_is_told_with_the_next_request(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    unheard = grn.lease(mem="64MiB").acquire()
    here.kill()
    assert unheard.release() is None
    assert "CUDA_VISIBLE_DEVICES" not in os.environ

    here.start()
    assert len(here.leases()) == 1  # its process lives, so it may still be at work
    with grn.lease(mem="64MiB") as lease:
        assert [shown["id"] for shown in here.leases()] == [lease.id]


def test_a_forked_child_lets_go_of_the_kept_connection(story: Story) -> None:
    story.run_script(
        """
        import os, socket
        from grn.client.leasing.lease import IDLE, LeaseConnection

        ours, theirs = socket.socketpair()
        IDLE.give(LeaseConnection(ours))
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)  # live until the parent has looked
            os._exit(0 if IDLE.take() is None else 1)
        IDLE.take().close()
        assert theirs.recv(1) == b""  # the child does not keep the other end open
        os.close(writer)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )


def test_at_most_one_connection_is_kept() -> None:
    first, second = socket.socketpair()
    IDLE.give(LeaseConnection(first))
    IDLE.give(LeaseConnection(second))

    kept = IDLE.take()
    assert kept is not None
    assert kept.sock is first
    assert second.fileno() == -1
    kept.close()
