"""The helper process around NVML: requests and answers are JSON lines.

It may hang or crash with the driver, so it decides nothing: deadlines, retries and the meaning of
errors belong to the parent process.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from msgspec.structs import replace

from grn.gpus import nvml_calls
from grn.gpus.nvml_calls import DriverError, Nvml
from grn.gpus.nvml_facts import (
    AnswerEnd,
    CannotOpen,
    Entered,
    Failed,
    Figures,
    FoundGpu,
    LeftOut,
    Line,
    Peak,
    Said,
    encode,
)

MIN_LOAD_PCT = 5  # below it, no process of a GPU is busy


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """One open GPU or MIG slice."""

    facts: FoundGpu
    handle: object


class Answers:
    """The output to the parent. Every line carries the number of its request."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.request = 0

    def say(self, said: Said) -> None:
        """Write one line; it may stay in the buffer until the next flush."""
        self._out.write(encode(Line(self.request, said)) + b"\n")

    def enter(self, index: int) -> None:
        """Report the next GPU to the parent, so that it knows where a hang is."""
        self.say(Entered(index))
        self._out.flush()

    def finish(self, said: AnswerEnd | Failed) -> None:
        """Write the last line of an answer."""
        self.say(said)
        self._out.flush()


class Session:
    """The open GPUs, and the requests about them."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._nvml: Nvml | None = None
        self._slots: dict[str, DeviceSlot] = {}
        self._loads_at: dict[str, int] = {}  # by uuid: the time of the last loads of processes

    def serve(self, request: Mapping[str, object]) -> None:
        """Carry out one request."""
        asked = request.get("do")
        if asked == "open":
            self._open(_numbers(request.get("skip")))
        elif asked == "sample":
            self._sample(_names(request.get("uuids")))
        elif asked == "peaks":
            self._peaks(_numbers(request.get("pids")))
        elif asked == "links":
            self._links()
        else:
            raise ValueError(f"no such request: {asked!r}")
        self._answers.finish(AnswerEnd())

    def _open(self, skip: list[int]) -> None:
        self._nvml = nvml = load()
        try:
            nvml.open()
            count = int(nvml.call("nvmlDeviceGetCount"))
        except DriverError as error:
            raise CannotOpen("nvml", nvml.error_text(error.code), error.code) from None
        for index in range(count):
            if index not in skip:
                self._answers.enter(index)
                self._open_card(nvml, index)

    def _open_card(self, nvml: Nvml, index: int) -> None:
        try:
            card = nvml.handle("nvmlDeviceGetHandleByIndex", index)
            slices = nvml_calls.slices(nvml, card)
        except DriverError as error:
            self._leave_out(nvml, index, error)
            return
        if slices == []:
            self._answers.say(LeftOut(index, 0, "MIG is on but has no slices"))
        for handle in [card] if slices is None else slices:
            try:
                self._add(open_slot(nvml, handle, index, is_slice=slices is not None))
            except DriverError as error:
                self._leave_out(nvml, index, error)

    def _leave_out(self, nvml: Nvml, index: int, error: DriverError) -> None:
        text = "nonsense from the driver" if error.code < 0 else nvml.error_text(error.code)
        self._answers.say(LeftOut(index, error.code, text))

    def _add(self, slot: DeviceSlot) -> None:
        self._slots[slot.facts.uuid] = slot
        self._answers.say(slot.facts)

    def _sample(self, uuids: list[str]) -> None:
        for uuid in uuids:
            slot = self._slots.get(uuid)
            if slot is not None and self._nvml is not None:
                self._answers.enter(slot.facts.index)
                said = read(self._nvml, slot)
                if is_shared_and_busy(said):
                    said = replace(said, loads=self._loads(self._nvml, slot))
                self._answers.say(said)

    def _loads(self, nvml: Nvml, slot: DeviceSlot) -> tuple[tuple[int, int], ...]:
        """Return the loads of processes; none where the driver does not tell them."""
        uuid = slot.facts.uuid
        try:
            before = self._loads_at.get(uuid, 0)
            found, self._loads_at[uuid] = nvml_calls.process_loads(nvml, slot.handle, before)
        except DriverError:
            return ()  # the GPU is gone: its next reading says so
        return tuple(sorted(found.items()))

    def _peaks(self, pids: list[int]) -> None:
        for slot in self._slots.values():
            if slot.facts.has_accounting and self._nvml is not None:
                self._answers.enter(slot.facts.index)
                for pid, peak_bytes in nvml_calls.peaks(self._nvml, slot.handle, pids):
                    self._answers.say(Peak(slot.facts.uuid, pid, peak_bytes))

    def _links(self) -> None:
        slots = self._slots.items()
        cards = {uuid: slot.handle for uuid, slot in slots if not slot.facts.is_slice}
        if self._nvml is not None:
            for pair in nvml_calls.joined(self._nvml, cards):
                self._answers.say(pair)


def load() -> Nvml:
    """Import pynvml, and refuse old forks of the same name."""
    try:
        module = importlib.import_module("pynvml")
    except ImportError as error:
        raise CannotOpen("no-module", nvml_calls.printable(str(error))) from None
    except SyntaxError:
        raise CannotOpen("wrong-module", "a pynvml of Python 2") from None
    if not hasattr(module, "nvmlDeviceGetComputeRunningProcesses_v2"):
        raise CannotOpen("wrong-module", str(getattr(module, "__file__", "unknown place")))
    return Nvml(module)


def open_slot(nvml: Nvml, handle: object, index: int, *, is_slice: bool) -> DeviceSlot:
    """Read the fixed facts of one GPU or slice."""
    facts = FoundGpu(
        uuid=nvml_calls.uuid(nvml, handle),
        index=index,
        model=nvml_calls.model(nvml, handle),
        total_bytes=nvml_calls.memory(nvml, handle).total_bytes,
        is_slice=is_slice,
        mode=None if is_slice else nvml_calls.compute_mode(nvml, handle),
        has_accounting=not is_slice and nvml_calls.switch_accounting_on(nvml, handle),
    )
    return DeviceSlot(facts, handle)


def read(nvml: Nvml, slot: DeviceSlot) -> Figures:
    """Read one GPU once: its figures, or the code of the error."""
    try:
        memory = nvml_calls.memory(nvml, slot.handle)
        most_bytes = max(memory.total_bytes, slot.facts.total_bytes)
        uses = nvml_calls.processes(nvml, slot.handle, most_bytes)
        load = None if slot.facts.is_slice else nvml_calls.load_pct(nvml, slot.handle)
        mode = None if slot.facts.is_slice else nvml_calls.compute_mode(nvml, slot.handle)
        heat = None if slot.facts.is_slice else nvml_calls.temperature_c(nvml, slot.handle)
        power = None if slot.facts.is_slice else nvml_calls.power_w(nvml, slot.handle)
        clock = None if slot.facts.is_slice else nvml_calls.clock_mhz(nvml, slot.handle)
    except DriverError as error:
        return Figures(slot.facts.uuid, error.code)
    return Figures(
        slot.facts.uuid, 0, memory.free_bytes, load, mode, tuple(sorted((uses or {}).items())),
        uses is not None, heat, power, clock,
    )  # fmt: skip


def is_shared_and_busy(said: Figures) -> bool:
    """True when the load of a GPU does not tell how busy each of its processes is."""
    return (said.load_pct or 0) >= MIN_LOAD_PCT and len(said.uses) > 1


def _numbers(value: object) -> list[int]:
    return [int(item) for item in value] if isinstance(value, list) else []


def _names(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _listen(requests: queue.SimpleQueue[str]) -> None:
    """Pass requests on; when the parent is gone, end at once, even from inside a call."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # no shutdown of NVML: it crashes while another thread is inside a call


def _private_output() -> BinaryIO:
    """Keep the pipe to the parent private: output of libraries is dropped."""
    out = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return out


def main() -> None:
    """Serve requests until the parent closes the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    answers = Answers(_private_output())
    session = Session(answers)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        answers.request = request["id"]
        try:
            session.serve(request)
        except CannotOpen as error:
            answers.finish(Failed(error.why, error.text, error.code))
        except BrokenPipeError:
            os._exit(0)
        except Exception:
            # One request failed; the parent gets the error and starts a new helper.
            answers.finish(Failed("bug", traceback.format_exc()))


if __name__ == "__main__":
    main()
