"""The streams of a pilot's actor: the order of pieces, and how much is on its way."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from itertools import permutations

import pytest

from grn.queue.sites.pilots.ray_actor import CHUNK, WINDOW, PilotStream
from tests.harness import DEADLINE_S


class Line:
    """A stream, the agent's end of its connection, and threads for its calls."""

    def __init__(self) -> None:
        ours, self.agent = socket.socketpair()
        self.agent.settimeout(DEADLINE_S)
        self.stream = PilotStream(ours)
        self.calls = ThreadPoolExecutor(4)

    def fill(self) -> Future[None]:
        """Write more than the connection holds; the call waits for the agent."""
        writing = self.calls.submit(self.stream.write, 0, bytes(8 << 20))
        self.agent.recv(1, socket.MSG_PEEK)
        return writing

    def drain(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.agent.recv(size - len(data))
        return data


@pytest.fixture
def line() -> Iterator[Line]:
    one = Line()
    yield one
    one.stream.close()
    one.calls.shutdown()
    one.agent.close()


def test_pieces_arrive_in_the_order_of_their_numbers_however_their_calls_come(line: Line) -> None:
    pieces = (b"one ", b"two ", b"three ", b"four ")
    count = 0
    for order in permutations(range(4)):
        for number in order:
            line.stream.write(count + number, pieces[number])
        count += 4
        assert line.drain(19) == b"one two three four ", order


def test_a_missing_piece_holds_back_those_behind_it(line: Line) -> None:
    line.stream.write(1, b"two")
    line.agent.setblocking(False)
    with pytest.raises(BlockingIOError):
        line.agent.recv(CHUNK)
    line.agent.settimeout(DEADLINE_S)
    line.stream.write(0, b"one ")
    assert line.drain(7) == b"one two"


def test_one_call_waits_for_a_slow_agent_and_the_others_return(line: Line) -> None:
    writing = line.fill()
    line.stream.write(1, b"behind")
    passed = line.calls.submit(line.stream.until_passed, 2)
    assert not writing.done()
    assert not passed.done()
    assert line.drain((8 << 20) + 6).endswith(b"\0behind")
    writing.result(DEADLINE_S)
    passed.result(DEADLINE_S)


def test_the_end_of_a_stream_wakes_all_that_wait(line: Line) -> None:
    writing = line.fill()
    passed = line.calls.submit(line.stream.until_passed, 2)
    line.stream.close()
    writing.result(DEADLINE_S)
    passed.result(DEADLINE_S)


def test_no_more_is_read_than_the_queue_has_room_for(line: Line) -> None:
    read = line.stream.read()
    sending = line.calls.submit(line.agent.sendall, bytes(4 * WINDOW))
    taken = 0
    while taken <= WINDOW:
        taken += len(next(read))
    beyond = line.calls.submit(next, read)
    line.stream.took(0)  # told again: nothing has changed
    with pytest.raises(NotDone):
        beyond.result(0.2)
    line.stream.took(taken - WINDOW)
    taken += len(beyond.result(DEADLINE_S))
    line.stream.took(4 * WINDOW)
    line.stream.took(taken - WINDOW)  # a call that was overtaken
    while taken < 4 * WINDOW:
        taken += len(next(read))
    sending.result(DEADLINE_S)


def test_the_end_of_a_stream_ends_a_reader_that_waits_for_room(line: Line) -> None:
    read = line.stream.read()
    sending = line.calls.submit(line.agent.sendall, bytes(8 * WINDOW))
    assert next(read)
    waiting = line.calls.submit(lambda: list(read))
    line.stream.close()
    assert waiting.result(DEADLINE_S)
    with pytest.raises(BrokenPipeError):
        sending.result(DEADLINE_S)
