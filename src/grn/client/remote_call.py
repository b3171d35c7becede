"""Functions that run in another process: the format in which calls and replies travel.

A call is a pickled `sys.path`, then function and arguments by cloudpickle; a reply is a pickled
header, then the value by cloudpickle. Also the process that runs calls:

    python -m grn.client.remote_call                  the call in its variables, as a job of a queue
    python -m grn.client.remote_call FOLDER           the call in a folder, whose reply stays there
    python -m grn.client.remote_call ADDRESS NUMBER   call after call from a submitter's socket
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
import sys
import time
from types import CoroutineType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, Final

CALL_FILE, REPLY_FILE = "call", "answer"
CALL = "GRN_PACKED_CALL_0"  # the first of the variables that hold a call
REPLY_PATH = "GRN_REPLY_FILE"  # names the file for the reply of such a call
MAX_CALL_BYTES = 512 << 10  # arguments and variables of a process are limited by the system
MAX_REPLY_BYTES = 64 << 20
_PART = 96 << 10  # one variable holds less than 128 KiB
HELLO = struct.Struct("!Q")  # the number of the worker's task
_LENGTH = struct.Struct("!Q")
_LAST, _MORE = b"1", b"0"
_CANCEL_S = 30.0
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class RemoteTraceback(Exception):
    """The traceback of a call in the process that ran it; the cause of the exception it raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class Reply:
    """How a call went; `value` is its result or its exception."""

    def __init__(self, is_good: bool, is_out_of_memory: bool, text: str, body: bytes) -> None:
        self.is_good: Final = is_good
        self.is_out_of_memory: Final = is_out_of_memory
        self.text: Final = text  # the traceback
        self._body = body

    @classmethod
    def read(cls, data: bytes) -> Reply:
        """Read the header; the value stays packed, since unpacking it may fail in any way."""
        stream = io.BytesIO(data)
        is_good, is_out_of_memory, text = pickle.load(stream)
        return cls(is_good, is_out_of_memory, text, stream.read())

    def value(self) -> Any:
        """Unpack the result, or the exception with the remote traceback as its cause."""
        value = pickle.loads(self._body)
        if not self.is_good and self.text:
            value.__cause__ = RemoteTraceback(self.text)
        return value


def import_path() -> list[str]:
    """Return `sys.path` for another process, whose current folder may differ."""
    return [str(entry or os.getcwd()) for entry in sys.path]


def dumps(value: object, by_value: ModuleType | None = None) -> bytes:
    """Pickle any value; functions and classes of the module `by_value` travel whole."""
    import cloudpickle

    if by_value is None:
        return bytes(cloudpickle.dumps(value))
    cloudpickle.register_pickle_by_value(by_value)
    try:
        return bytes(cloudpickle.dumps(value))
    finally:
        cloudpickle.unregister_pickle_by_value(by_value)


def pack(fn: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Return a call as bytes; raise UsageError when it cannot be pickled."""
    from grn.errors import UsageError

    try:
        # The path is read first: unpickling the function may import modules along it.
        return pickle.dumps(import_path()) + dumps((fn, args, kwargs))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(f"this call cannot be sent to another process: {error}.") from error


def run(call: bytes) -> bytes:
    """Run a packed call in this process; return its packed reply and print its traceback."""
    try:
        stream = io.BytesIO(call)
        sys.path[:] = pickle.load(stream)
        function, args, kwargs = pickle.load(stream)
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            import asyncio

            value = asyncio.run(value)
    except Exception as error:  # any exception of the call belongs to its caller
        return _failure(error)
    try:
        return _packed((True, False, ""), value)
    except Exception as error:  # a result may refuse to be pickled in any way
        return _failure(TypeError(f"the answer cannot be sent back: {error}"))


def _failure(error: Exception) -> bytes:
    import traceback

    from grn.client.leasing.frameworks import is_out_of_memory

    _cut(error)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    sys.stderr.write(text)
    header = (False, is_out_of_memory(error), text)
    error.__cause__ = error.__context__ = error.__traceback__ = None  # the text shows them
    try:
        return _packed(header, error)
    except Exception:  # the exception holds an object that cannot be pickled
        return _packed(header, RuntimeError(repr(error)))


def _cut(error: BaseException) -> None:
    """Take the frames of grn out of the tracebacks of an exception and of what it came from."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        todo += [one.__cause__, one.__context__]
        frames, trace = [], one.__traceback__
        while trace is not None:
            frames.append(trace)
            trace = trace.tb_next
        own = [frame for frame in frames if not _is_of_grn(frame.tb_frame.f_code.co_filename)]
        for place, frame in enumerate(own):
            frame.tb_next = own[place + 1] if place + 1 < len(own) else None
        one.__traceback__ = own[0] if own else None


def _is_of_grn(path: str) -> bool:
    return path.startswith(_PACKAGE)


def _packed(header: tuple[bool, bool, str], value: object) -> bytes:
    return pickle.dumps(header) + dumps(value)


def name_of(fn: Callable[..., Any]) -> str:
    """Name the job type of a call: module and function, also of a partial or a callable object."""
    function = getattr(fn, "func", fn)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}::{name}"


# --- over a socket -------------------------------------------------------------------------


def send(sock: socket.socket, data: bytes) -> None:
    """Send one message of any length."""
    sock.sendall(_LENGTH.pack(len(data)))
    sock.sendall(data)


def send_call(sock: socket.socket, call: bytes, *, is_last: bool) -> None:
    """Send a call to a worker; after the last one the worker ends with the call's status."""
    send(sock, (_LAST if is_last else _MORE) + call)


def send_end(sock: socket.socket) -> None:
    """Tell a worker that there are no more calls for it."""
    send(sock, b"")


def receive(sock: socket.socket) -> bytes | None:
    """Return the next message, None when the other process has closed the connection."""
    try:
        head = _exactly(sock, _LENGTH.size)
        return None if head is None else _exactly(sock, _LENGTH.unpack(head)[0])
    except ConnectionError:
        return None


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        read = sock.recv_into(view)
        if not read:
            return None
        view = view[read:]
    return bytes(data)


def _serve(address: str, number: int) -> int:
    """Run calls until the submitter has none; return the exit status."""
    from grn.client.leasing import frameworks
    from grn.proc import pidfd

    peak_bytes = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(f"\0{address}")
        except ConnectionError as error:
            sys.exit(f"grn: the program that submitted this call cannot be reached: {error}.")
        if (
            pidfd.credentials(sock)[1] != os.getuid()
        ):  # a pickle of another user is that user's code
            sys.exit("grn: the socket of this worker belongs to another user.")
        send(sock, HELLO.pack(number))
        while message := receive(sock):
            reply = run(message[1:])
            peak_bytes = frameworks.report_peak(peak_bytes)
            sys.stdout.flush()
            sys.stderr.flush()
            try:
                send(sock, reply)
            except ConnectionError:
                message = None
                break
            header = Reply.read(reply)
            # What ran out of memory gets a fresh process, and the queue sees a failed attempt.
            if message[:1] == _LAST or header.is_out_of_memory:
                return 0 if header.is_good else 1
    if message is None:  # the submitter was killed: its queue cancels this job
        time.sleep(_CANCEL_S)
        return 1
    return 0


# --- in a folder ---------------------------------------------------------------------------


def leave_call(folder: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Put a call into a folder."""
    with open(os.path.join(folder, CALL_FILE), "wb") as file:
        file.write(pack(fn, args, kwargs))


def take_reply(folder: str) -> Any:
    """Return the value that the call of a folder gave, and remove both files."""
    with open(os.path.join(folder, REPLY_FILE), "rb") as file:
        value = Reply.read(file.read()).value()
    for name in (REPLY_FILE, CALL_FILE):
        os.unlink(os.path.join(folder, name))
    return value


def _run_folder(folder: str) -> int:
    from grn.client.leasing import frameworks

    with open(os.path.join(folder, CALL_FILE), "rb") as file:
        reply = run(file.read())
    frameworks.report_peak(0)
    return _leave_reply(os.path.join(folder, REPLY_FILE), reply)


def _leave_reply(path: str, reply: bytes) -> int:
    """Put a reply into a file, which appears whole; return the exit status."""
    with open(f"{path}.tmp", "wb") as file:
        file.write(reply)
    os.rename(f"{path}.tmp", path)
    return 0 if Reply.read(reply).is_good else 1


# --- in a job of the queue, on any machine -------------------------------------------------


def to_variables(call: bytes) -> dict[str, str]:
    """Return a call as variables of a job; raise UsageError when it is too large for that."""
    from base64 import b64encode

    from grn.errors import UsageError

    if len(call) > MAX_CALL_BYTES:
        raise UsageError(
            f"this call has {len(call) >> 10} KiB of arguments, and at most"
            f" {MAX_CALL_BYTES >> 10} KiB can be submitted.",
            "Write large data to a file and submit its path.",
        )
    text = b64encode(call).decode()
    parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
    return {f"{CALL[:-1]}{number}": part for number, part in enumerate(parts)}


def _take_call() -> bytes:
    """Return the call in the variables of this process, and remove them."""
    from base64 import b64decode

    names = [f"{CALL[:-1]}{number}" for number in range(MAX_CALL_BYTES // _PART * 2 + 1)]
    return b64decode("".join(os.environ.pop(name, "") for name in names))


def _run_variables() -> int:
    from grn.client.leasing import frameworks

    if CALL not in os.environ or REPLY_PATH not in os.environ:
        sys.exit("grn: there is no call to run: this command is for jobs of the queue.")
    path, call = os.environ.pop(REPLY_PATH), _take_call()
    reply = run(call)
    if len(reply) > MAX_REPLY_BYTES:
        size, most = len(reply) >> 20, MAX_REPLY_BYTES >> 20
        text = f"the answer has {size} MiB, more than {most} MiB: return the path of a file."
        reply = _failure(ValueError(text))
    frameworks.report_peak(0)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.umask(0o077)
    return _leave_reply(path, reply)


def read_reply(folder: str | None) -> Reply | None:
    """Return the reply in the folder of a job; None when there is none, or a part of one."""
    if folder is None:
        return None
    try:
        with open(os.path.join(folder, REPLY_FILE), "rb") as file:
            return Reply.read(file.read())
    except (FileNotFoundError, EOFError, ValueError, pickle.UnpicklingError):
        return None


def main(words: list[str]) -> int:
    """Run what the command line names."""
    if not words:
        return _run_variables()
    return _run_folder(words[0]) if len(words) == 1 else _serve(words[0], int(words[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
