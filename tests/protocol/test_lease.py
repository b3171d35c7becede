"""The lease conversation, spoken in bytes: grants, cancels that cross them, restarts, garbage."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn import wire
from grn.errors import NeverFits, UnknownJob
from grn.model.record import names_of
from grn.protocol import negotiator_requests
from grn.protocol.lease import LeaseConversation, bind_message
from grn.protocol.lease_messages import (
    Answered,
    Bound,
    Garbled,
    Granted,
    GrantedGpus,
    LeaseRequest,
    Reasons,
    Refused,
    Settled,
    Waiting,
)

KEY, OTHER = "a" * 24, "b" * 24
REQUEST = LeaseRequest("train.py", "train.py")
GPUS = [{"index": 3, "uuid": "GPU-3"}]
GRANT = {"ev": "granted", "lease": "L1", "visible": "GPU-3", "gpus": GPUS, "nested": False}


class Client:
    """A conversation, and the messages that reach the other side."""

    def __init__(self) -> None:
        self.conversation = LeaseConversation()
        self.frames = wire.Frames(wire.MAX_REQUEST_BYTES)
        self.connect()

    def connect(self) -> list[dict[str, Any]]:
        """Begin a connection; what was on its way over the last one is lost."""
        self.conversation.data_to_send()
        self.conversation.connection_made()
        return self.sent()

    def sent(self) -> list[dict[str, Any]]:
        return [wire.decode(body) for body in self.frames.feed(self.conversation.data_to_send())]

    def sends(self, op: str) -> dict[str, Any]:
        """Return the one message that was sent since the last look."""
        (message,) = self.sent()
        assert message["op"] == op
        return message

    def hears(self, number: int | None, **reply: Any) -> list[Any]:
        return self.conversation.receive_data(wire.encode({"id": number, **reply}))


def shown(events: list[Any]) -> list[tuple[Any, ...]]:
    """Return the events as values that can be compared."""
    return [(type(one), *(_value(getattr(one, name)) for name in one.__slots__)) for one in events]


def _value(field: Any) -> Any:
    if isinstance(field, GrantedGpus):
        return tuple(getattr(field, name) for name in field.__slots__)
    return str(field) if isinstance(field, Exception) else field


def error(code: str) -> dict[str, str]:
    return {"code": code, "message": "No.", "hint": "Ask for less."}


# --- the way of one lease -------------------------------------------------------------------


def test_a_request_waits_is_granted_and_settled() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    asked = client.sends("lease")
    assert asked["key"] == KEY
    (waiting,) = client.hears(asked["id"], ev="waiting", reason="no-room", text="no room")
    assert isinstance(waiting, Waiting)
    assert (waiting.key, waiting.text) == (KEY, "no room")
    (granted,) = client.hears(asked["id"], **GRANT, reserved=5, probe=True)
    assert isinstance(granted, Granted)
    grant = granted.grant
    assert (grant.lease, grant.visible, grant.gpus, grant.uuids) == (
        "L1",
        "GPU-3",
        (3,),
        ("GPU-3",),
    )
    assert (grant.reserved_bytes, grant.is_first_run, grant.indices) == (5, True, None)
    client.conversation.done("L1", "ok", resident=7)
    done = client.sends("done")
    assert (done["lease"], done["outcome"], done["resident"]) == ("L1", "ok", 7)
    assert not client.conversation.is_acknowledged
    (settled,) = client.hears(done["id"], ok=True, ended="oom", alone=False, peak=9, victim=True,
                              because="b.py grew", larger=True)  # fmt: skip
    assert isinstance(settled, Settled)
    assert (settled.lease, settled.outcome, settled.was_alone) == ("L1", "oom", False)
    assert (settled.peak_bytes, settled.is_victim, settled.has_larger) == (9, True, True)
    assert settled.because == "b.py grew"
    assert client.conversation.is_acknowledged


def test_several_requests_share_a_connection() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    client.conversation.request(OTHER, REQUEST)
    first, second = client.sent()
    (granted,) = client.hears(second["id"], **GRANT)
    (refused,) = client.hears(first["id"], error=error("NeverFits"))
    assert granted.key == OTHER
    assert refused.name == KEY
    assert isinstance(refused.error, NeverFits)
    assert not client.conversation.has_open(KEY)


def test_a_lease_is_bound_or_that_is_refused() -> None:
    client = Client()
    client.conversation.bind("L1", pid=42)
    bind = client.sends("hold")
    assert (bind["lease"], bind["pid"]) == ("L1", 42)
    (bound,) = client.hears(bind["id"], ok=True)
    assert isinstance(bound, Bound)
    client.conversation.bind("L2")
    (refused,) = client.hears(client.sends("hold")["id"], error=error("UnknownJob"))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnknownJob)
    assert refused.name == "L2"


def test_an_error_without_an_id_refuses_the_connection() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    (refused,) = client.hears(None, error=error("UsageError"))
    assert refused.name == ""
    assert client.conversation.has_open(KEY)


def test_reasons_are_asked_for_once_and_a_negotiator_may_not_know_them() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    client.sends("lease")
    client.conversation.ask_reasons()
    client.conversation.ask_reasons()
    asked = client.sends("reasons")
    assert asked["keys"] == [KEY]
    (reasons,) = client.hears(asked["id"], reasons={KEY: {"reason": "no-room", "why": "no room"}})
    assert isinstance(reasons, Reasons)
    assert reasons.texts == {KEY: "no room"}
    client.conversation.ask_reasons()
    (none,) = client.hears(client.sends("reasons")["id"], error=error("ProtocolError"))
    assert none.texts == {}


def test_another_question_is_answered_once() -> None:
    client = Client()
    number = client.conversation.ask({"op": "status"})
    (answered,) = client.hears(number, status={})
    assert isinstance(answered, Answered)
    assert (answered.number, answered.message["status"]) == (number, {})
    assert client.hears(number, status={}) == []


# --- a restart in each state ----------------------------------------------------------------


def test_an_open_request_is_repeated_under_its_key() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    first = client.sends("lease")
    client.hears(first["id"], ev="waiting", text="no room")
    (again,) = client.connect()
    assert (again["op"], again["key"]) == ("lease", KEY)
    assert again["id"] != first["id"]
    assert client.hears(again["id"], **GRANT)[0].key == KEY


def test_a_request_made_without_a_connection_is_sent_over_the_next() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    assert [message["key"] for message in client.connect()] == [KEY]


def test_what_is_repeated_of_an_open_request_can_be_changed() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    client.sends("lease")
    client.conversation.request(KEY, REQUEST.but(priority=5))
    assert client.sent() == [], "the negotiator refuses a second request under the same key"
    assert client.connect()[0]["priority"] == 5


def test_a_grant_that_was_lost_is_granted_again() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    client.sends("lease")  # and the grant is lost with the connection
    (again,) = client.connect()
    assert client.hears(again["id"], **GRANT)[0].grant.lease == "L1"


def test_a_held_lease_is_watched_over_the_next_connection_until_its_end() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    client.hears(client.sends("lease")["id"], **GRANT)
    client.conversation.watch("L2")
    client.sends("watch")
    assert {(one["op"], one["lease"]) for one in client.connect()} == {
        ("watch", "L1"),
        ("watch", "L2"),
    }
    client.conversation.done("L1", "ok")
    client.hears(client.sends("done")["id"], ok=True)
    assert [one["lease"] for one in client.connect()] == ["L2"]


@pytest.mark.parametrize("restarts", [1, 3])
def test_an_end_a_cancel_and_a_binding_are_repeated_until_they_are_acknowledged(
    restarts: int,
) -> None:
    client = Client()
    client.conversation.done("L1", "ok")
    client.conversation.cancel(KEY)
    client.conversation.bind("L2")
    for _ in range(restarts):
        said = client.connect()
    assert [message["op"] for message in said] == ["done", "cancel", "hold"]
    for message in said:
        assert not client.conversation.is_acknowledged
        client.hears(message["id"], ok=True)
    assert client.conversation.is_acknowledged
    assert client.connect() == []


def test_a_quiet_end_is_acknowledged_by_the_next_grant() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    (granted,) = client.hears(client.sends("lease")["id"], **GRANT, quiet=True)
    assert granted.grant.may_end_quietly
    client.conversation.done("L1", "ok", is_quiet=True)
    assert client.sends("done")["quiet"] is True

    client.conversation.request(OTHER, REQUEST)
    asked = client.sends("lease")
    client.hears(asked["id"], ev="waiting", text="no room")
    assert not client.conversation.is_acknowledged
    client.hears(asked["id"], **{**GRANT, "lease": "L2"}, heard=["L0", "L1"])
    assert client.conversation.is_acknowledged


def test_a_quiet_end_that_was_not_acknowledged_is_repeated_with_an_answer() -> None:
    """The next negotiator may be an older one, which does not know the word."""
    client = Client()
    client.conversation.done("L1", "ok", is_quiet=True)
    (again,) = client.connect()
    assert (again["op"], again["lease"]) == ("done", "L1")
    assert "quiet" not in again
    (settled,) = client.hears(again["id"], ok=True, ended="ok")
    assert settled.outcome == "ok"
    assert client.conversation.is_acknowledged


def test_a_process_that_ends_asks_for_the_answers_it_did_not_want() -> None:
    client = Client()
    client.conversation.done("L1", "ok", is_quiet=True)
    client.sends("done")
    client.conversation.ask_for_answers()
    again = client.sends("done")
    assert "quiet" not in again
    client.hears(again["id"], ok=True, ended=None)
    assert client.conversation.is_acknowledged
    client.conversation.ask_for_answers()
    assert client.sent() == []


def test_an_older_negotiator_is_told_no_quiet_end() -> None:
    assert not GrantedGpus.from_json(GRANT).may_end_quietly


def test_a_quiet_end_is_refused_like_any_other() -> None:
    client = Client()
    client.conversation.done("L1", "ok", is_quiet=True)
    client.hears(client.sends("done")["id"], error=error("NotAllowed"))
    assert client.conversation.is_acknowledged


@pytest.mark.parametrize("heard", ["L1", 3, None, {"L1": 1}])
def test_what_was_heard_is_a_list(heard: Any) -> None:
    client = Client()
    client.conversation.done("L0", "ok", is_quiet=True)
    client.conversation.request(KEY, REQUEST)
    _, asked = client.sent()
    (garbled,) = client.hears(asked["id"], **GRANT, heard=heard)
    assert isinstance(garbled, Garbled)


def test_what_one_conversation_could_not_say_another_says() -> None:
    client, silent = Client(), LeaseConversation()
    silent.done("L9", "ok")
    client.conversation.adopt(silent)
    assert client.sends("done")["lease"] == "L9"


def test_an_older_negotiator_hears_of_a_cancelled_lease_as_failed() -> None:
    client = Client()
    client.conversation.done("L1", "cancelled")
    first = client.sends("done")
    assert client.hears(first["id"], error=error("ProtocolError")) == []
    again = client.sends("done")
    assert again["outcome"] == "failed"
    assert client.hears(again["id"], ok=True, ended="failed")[0].outcome == "failed"


def test_an_older_negotiator_that_refuses_a_time_limit_is_asked_without() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST.but(time_limit=60.0))
    first = client.sends("lease")
    assert first["time_limit"] == 60.0
    assert client.hears(first["id"], error=error("ProtocolError")) == []
    again = client.sends("lease")
    assert "time_limit" not in again
    assert again["key"] == KEY


def test_a_lease_that_the_negotiator_does_not_know_is_settled() -> None:
    client = Client()
    client.conversation.done("L1", "ok")
    (settled,) = client.hears(client.sends("done")["id"], error=error("NotAllowed"))
    assert (settled.lease, settled.outcome) == ("L1", None)
    assert client.conversation.is_acknowledged


# --- crossing messages ----------------------------------------------------------------------


def test_a_grant_that_crosses_a_cancel_is_returned() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    asked = client.sends("lease")
    client.conversation.cancel(KEY)
    client.conversation.request(KEY, REQUEST.but(priority=5))
    assert client.hears(asked["id"], **GRANT) == []
    cancel, again, done = client.sent()
    assert (cancel["op"], again["op"]) == ("cancel", "lease")
    assert (done["op"], done["lease"], done["outcome"]) == ("done", "L1", "failed")
    assert client.hears(again["id"], **{**GRANT, "lease": "L2"})[0].grant.lease == "L2"


def test_a_nested_grant_that_crosses_a_cancel_ends_no_lease() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    asked = client.sends("lease")
    client.conversation.cancel(KEY)
    client.hears(asked["id"], **{**GRANT, "nested": True})
    assert [message["op"] for message in client.sent()] == ["cancel"]


def test_a_reply_that_comes_twice_counts_once() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    asked = client.sends("lease")
    assert len(client.hears(asked["id"], **GRANT)) == 1
    assert client.hears(asked["id"], **GRANT) == []
    assert client.sent() == [], "a held lease is not returned"
    client.conversation.done("L1", "ok")
    done = client.sends("done")
    assert len(client.hears(done["id"], ok=True)) == 1
    assert client.hears(done["id"], ok=True) == []


def test_a_reply_to_an_id_of_an_earlier_connection_means_nothing() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    first = client.sends("lease")
    client.connect()
    assert client.hears(first["id"], ev="waiting", text="no room") == []
    assert client.conversation.has_open(KEY)


# --- bytes ----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 700), max_size=6))
def test_events_do_not_depend_on_how_the_bytes_are_split(cuts: list[int]) -> None:
    def events(pieces: list[int]) -> list[tuple[Any, ...]]:
        client = Client()
        client.conversation.request(KEY, REQUEST)
        client.conversation.done("L0", "ok")
        asked, done = client.sent()
        stream = b"".join(
            wire.encode(message)
            for message in (
                {"id": asked["id"], "ev": "waiting", "text": "no room"},
                {"id": done["id"], "ok": True, "ended": "ok"},
                {"id": asked["id"], **GRANT},
                {"id": None, "error": error("UsageError")},
            )
        )
        bounds = [0, *sorted(min(cut, len(stream)) for cut in pieces), len(stream)]
        heard: list[Any] = []
        for start, end in pairwise(bounds):
            heard += client.conversation.receive_data(stream[start:end])
        return shown(heard)

    assert events(cuts) == events([])


@given(st.binary(max_size=60))
def test_random_bytes_are_garbled_at_worst(data: bytes) -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    framed = wire.HEADER.pack(len(data)) + data
    for received in (data, framed):
        client.connect()
        assert all(isinstance(one, Garbled) for one in client.conversation.receive_data(received))
    assert client.conversation.has_open(KEY)


BAD = [None, 7, True, "x", [], {}, [{}], [{"index": "0", "uuid": "GPU-0"}], [{"index": 0}]]


@pytest.mark.parametrize("name", ["lease", "visible", "gpus", "nested", "reserved", "probe"])
def test_a_malformed_grant_is_garbled_and_the_request_stays_open(name: str) -> None:
    for value in BAD:
        client = Client()
        client.conversation.request(KEY, REQUEST)
        asked = client.sends("lease")
        (event,) = client.hears(asked["id"], **{**GRANT, name: value})
        if isinstance(event, Granted):  # the value is of the right type
            assert type(getattr(event.grant, name, value)) in (str, tuple, type(value))
            continue
        assert isinstance(event, Garbled), (name, value)
        assert client.conversation.has_open(KEY)
        assert [one["key"] for one in client.connect()] == [KEY]


def test_events_before_garbage_are_kept() -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    asked = client.sends("lease")
    grant = wire.encode({"id": asked["id"], **GRANT})
    client.conversation.done("L0", "ok")
    bad = wire.encode({"id": client.sends("done")["id"], "ended": 5})
    granted, garbled = client.conversation.receive_data(grant + bad)
    assert isinstance(granted, Granted)
    assert isinstance(garbled, Garbled)


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["id", "ev", "lease", "error", "text", "why"]), inner),
))  # fmt: skip
def test_no_json_breaks_the_conversation(value: Any) -> None:
    client = Client()
    client.conversation.request(KEY, REQUEST)
    client.conversation.done("L0", "ok")
    client.conversation.ask_reasons()
    for message in (value, {"id": 1, **value} if isinstance(value, dict) else value):
        body = wire.encode({"wrapped": message})[wire.HEADER.size :]
        body = body[len('{"wrapped":') : -1]
        client.conversation.receive_data(wire.HEADER.pack(len(body)) + body)
    for number in (1, 2, 3):
        for name in ("ev", "ended", "reasons", "error", "gpus"):
            client.hears(number, **{name: value})


# --- both definitions of a request ----------------------------------------------------------

FULL: dict[str, Any] = {
    "gpus": 2, "mem": 5, "exclusive": True, "priority": 3, "policy": "pack", "attempt": 1,
    "args": {"bs": 8.0}, "code": "0abc1234", "slots": ["0"], "stay": ["GPU-0"],
    "within": "0123abcd", "command": True, "spared": True,
}  # fmt: skip


def asked_for(request: LeaseRequest) -> dict[str, Any]:
    client = Client()
    client.conversation.request(KEY, request)
    return client.sends("lease")


def test_a_request_has_the_fields_that_the_negotiator_reads_with_the_same_defaults() -> None:
    ours = names_of(LeaseRequest)
    theirs = negotiator_requests.LeaseRequest.__struct_fields__
    assert {*ours, "id", "v", "key"} == set(theirs)
    sent = asked_for(LeaseRequest("t", "l"))
    assert set(sent) == {"op", "id", "v", "key", "type", "label"}
    read = negotiator_requests.read(wire.encode(sent)[wire.HEADER.size :])
    for name, usual in LeaseRequest.defaults.items():
        assert (usual or None) == (getattr(read, name) or None), name


@pytest.mark.parametrize("name", FULL)
def test_the_negotiator_reads_each_field_as_it_was_set(name: str) -> None:
    for request in (
        LeaseRequest("t", "l", **{name: FULL[name]}),
        REQUEST.but(**{name: FULL[name]}),
    ):
        sent = asked_for(request)
        read = negotiator_requests.read(wire.encode(sent)[wire.HEADER.size :])
        assert getattr(read, name) == FULL[name]


def test_a_field_can_be_set_back_to_its_default() -> None:
    assert "priority" not in REQUEST.but(priority=5).but(priority=0).fields


def test_the_negotiator_reads_every_message_of_the_conversation() -> None:
    client = Client()
    conversation = client.conversation
    conversation.request("a" * 24, REQUEST)
    conversation.cancel("b" * 24)
    conversation.bind("0123abcd", 42)
    conversation.watch("0123abcd")
    conversation.done("0123abcd", "oom", peak=1, resident=2, asked=3)
    conversation.ask_reasons()
    for message in [*client.sent(), {**bind_message("0123abcd"), "id": 9, "v": 1}]:
        negotiator_requests.read(wire.encode(message)[wire.HEADER.size :])
