"""The other end of `grn.Executor`: run one call in this fresh interpreter and leave its answer.

Run as `python -m grn.client.call FOLDER`. Exits 0 when the call returned, 1 when it raised.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def main(folder: str) -> int:
    """Run the call of a folder."""
    with open(os.path.join(folder, "call"), "rb") as file:
        sys.path[:] = pickle.load(file)
        function, args, kwargs = pickle.load(file)
    try:
        answer = (True, function(*args, **kwargs))
    except Exception as error:  # the caller gets it back, whatever it is
        traceback.print_exc()
        answer = (False, error)
    _leave(folder, answer)
    return 0 if answer[0] else 1


def _leave(folder: str, answer: tuple[bool, object]) -> None:
    import cloudpickle

    temporary = os.path.join(folder, "answer.tmp")
    try:
        data = cloudpickle.dumps(answer)
    except Exception as error:  # an answer that cannot travel is told as such
        data = pickle.dumps((False, TypeError(f"the answer cannot be sent back: {error}")))
    with open(temporary, "wb") as file:
        file.write(data)
    os.rename(temporary, os.path.join(folder, "answer"))


def name_of(fn: Callable[..., Any]) -> str:
    """Name the job type of a call: its function, also of one that is wrapped or an object."""
    function = getattr(fn, "func", fn)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}::{name}"


def pack(folder: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Put a call into a folder, for `main` to run in another process."""
    import cloudpickle

    from grn.errors import UsageError

    try:
        with open(os.path.join(folder, "call"), "wb") as file:
            path = [entry or os.getcwd() for entry in sys.path]
            pickle.dump(path, file)  # read first: the call may need these modules
            cloudpickle.dump((fn, args, kwargs), file)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(f"this call cannot be sent to another process: {error}.") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
