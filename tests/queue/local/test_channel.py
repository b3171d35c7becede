"""Orders of the queue to a shim arrive as they were given."""

from __future__ import annotations

import json

from grn.proc import services
from grn.queue.local import channel
from grn.queue.local.channel import GoOrder, StartOrder, StopOrder

FULL = StartOrder(
    folder="/jobs/0/1.1", argv=("true", "\udcff"), cwd="/", environment_id=7,
    new_environment={"A": "1"}, extra={services.TAG: "q.1.1"}, umask=0o077, lease="lease",
    visible="0,1", grace_s=5.0, log_bytes=1 << 20, queue_lock="/lock", begun="/begun",
    time_limit_s=1.5, log="/out", spare="/jobs/0/0.1",
)  # fmt: skip


Order = StartOrder | GoOrder | StopOrder


def sent(given: Order) -> Order:
    return channel.from_json(json.loads(json.dumps(given.to_json())))


def fields(given: Order) -> dict[str, object]:
    return {name: getattr(given, name) for name in given.__slots__}


def test_an_order_to_start_arrives_whole() -> None:
    got = sent(FULL)
    assert isinstance(got, StartOrder)
    assert fields(got) == fields(FULL)
    assert got.tag == "q.1.1"


def test_an_environment_that_the_shim_has_is_not_sent_again() -> None:
    got = sent(StartOrder(**{**fields(FULL), "new_environment": None}))  # type: ignore[arg-type]
    assert isinstance(got, StartOrder)
    assert (got.environment_id, got.new_environment) == (7, None)


def test_an_order_ahead_is_none_that_an_older_shim_would_start() -> None:
    ahead = FULL.but(is_ahead=True)
    assert sent(ahead) == ahead
    assert "argv" not in ahead.to_json()
    go = GoOrder("lease", "0,1", 0.5, "/jobs/0/0.1")
    assert sent(go) == go


def test_an_order_to_stop_arrives_whole() -> None:
    got = sent(StopOrder("/jobs/0/1.1", True, True))
    assert isinstance(got, StopOrder)
    assert fields(got) == {"folder": "/jobs/0/1.1", "is_now": True, "is_yield": True}


def test_a_shim_reads_orders_of_an_older_and_of_a_newer_queue() -> None:
    """The forker is started again from the code on disk, which an update may have replaced."""
    message = {**FULL.to_json(), "priority": 3, "new": {"7": {}}}
    del message["log"]
    got = channel.from_json(message)
    assert isinstance(got, StartOrder)
    assert (got.log, got.lease) == ("", "lease")
