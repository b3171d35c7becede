"""What the NVML helper tells its parent: lines of JSON, each a fact with the number of its request.

Both ends use these values; nothing here calls the driver or knows of processes.
"""

from __future__ import annotations

import msgspec


class CannotOpen(Exception):
    """NVML as a whole cannot be used."""

    def __init__(self, why: str, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.why = why
        self.text = text
        self.code = code


class FoundGpu(msgspec.Struct, frozen=True, tag="found"):
    """The fixed facts of one GPU or MIG slice; `index` is that of the card it is on."""

    uuid: str
    index: int
    model: str
    total_bytes: int
    is_slice: bool
    mode: int | None
    has_accounting: bool


class LeftOut(msgspec.Struct, frozen=True, tag="left-out"):
    """A GPU that the driver counts but does not open."""

    index: int
    code: int
    text: str


class Figures(msgspec.Struct, frozen=True, tag="reading"):
    """The driver's figures of one GPU; `code` is not 0 where it returned an error."""

    uuid: str
    code: int
    free_bytes: int | None = None
    load_pct: float | None = None
    mode: int | None = None
    uses: tuple[tuple[int, int | None], ...] = ()
    lists_processes: bool = True
    temperature_c: int | None = None
    power_w: int | None = None
    clock_mhz: int | None = None
    loads: tuple[tuple[int, int], ...] = ()  # of processes: pid, percent


class Peak(msgspec.Struct, frozen=True, tag="peak"):
    """The exact peak of one process on one GPU."""

    uuid: str
    pid: int
    peak_bytes: int


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """Two GPUs near each other and their link: `nvlink`, `switch` or `socket`."""

    one: str
    other: str
    by: str
    lanes: int = 0


class Entered(msgspec.Struct, frozen=True, tag="at"):
    """The helper begins to ask about this GPU."""

    index: int


class AnswerEnd(msgspec.Struct, frozen=True, tag="done"):
    """The answer is complete."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """NVML as a whole cannot be used, or the helper has a bug."""

    why: str
    text: str
    code: int = 0


Fact = FoundGpu | LeftOut | Figures | Peak | Joined
Said = Fact | Entered | AnswerEnd | Failed


class Line(msgspec.Struct, frozen=True):
    """One line; `id` is the number of the request that it answers."""

    id: int
    said: Said


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Line).decode
