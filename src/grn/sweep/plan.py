"""The plan of a sweep, made from the options of a command line, a file or a call."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grn.client.job_options import check_nodes
from grn.client.leasing.job_request import command_type, type_and_label
from grn.client.remote_call import name_of
from grn.errors import UsageError
from grn.group.task import Needs, read_needs
from grn.model import MAX_PRIORITY, MAX_RETRIES
from grn.option_file import nearest
from grn.sweep import condition, space, template
from grn.sweep.manifest import LOG_FILE, RUN_FILE
from grn.sweep.space import Drawn, Listed, Parameter, Space
from grn.sweep.template import Template
from grn.sweep.values import fingerprint, spelled, sweep_name

HOME = "sweeps"  # the default folder of sweeps
SAMPLERS = ("optuna",)
OPTIONS: dict[str, tuple[type, ...]] = {
    "command": (str, list), "parameters": (dict,), "name": (str,), "out": (str,),
    "shuffle": (bool,), "n_samples": (int,), "seed": (int,), "seeds": (int, list),
    "zip": (list,), "if": (str, list), "shell": (bool,), "result": (str,),
    "gpus": (int,), "mem": (str, int), "cpus": (str, int, float), "ram": (str, int),
    "exclusive": (bool,), "priority": (int,), "type": (str,),
    "on": (str,), "not": (str, list), "idle_limit": (str, int, float),
    "at": (str,), "nodes": (int,), "send": (bool,), "fetch": (str, list),
    "retry": (int,), "keep_going": (bool,), "parallel": (int,), "rerun": (bool,),
    "sampler": (str,), "maximize": (str,), "minimize": (str,), "trials": (int,),
}  # fmt: skip
_AT_LEAST = {"n_samples": 1, "gpus": 0, "retry": 0, "parallel": 1, "trials": 1}


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep before it runs."""

    space: Space
    command: Template | None  # None: a function
    function: Callable[..., Any] | None
    name: str
    out: str
    needs: Needs
    seed: int = 0
    is_shuffled: bool = False
    most: int | None = None
    result_file: str | None = None
    retries: int = 0
    is_fail_fast: bool = False
    is_rerun: bool = False
    parallel: int | None = None
    metric: str = ""  # it ranks the runs
    is_maximized: bool = False
    trials: int | None = None  # a search that learns from results, instead of a walk

    @property
    def text(self) -> str:
        """The command as it was written, or the name of the function."""
        if self.command is not None:
            return self.command.text
        assert self.function is not None
        return identity(self.function)


def make(options: Mapping[str, Any], function: Callable[..., Any] | None = None) -> Plan:
    """Check the options and put the plan together."""
    _check_options(options)
    for name, least in _AT_LEAST.items():
        if options.get(name, least) < least:
            raise UsageError(f"the option '{name}' of a sweep must be {least} or more.")
    command = None if function is not None else _command(options)
    made = _space(options, is_text=command is not None)
    _check_search(options, made)
    if command is not None:
        command.check(made.names)
    if function is not None:
        _check_call(function, made.names)
    text = command.text if command is not None else identity(function) if function else ""
    name = options.get("name") or sweep_name(text, _program(command, text))
    if "/" in name or name in (".", ".."):
        raise UsageError(
            f"'{name}' is not a name for a sweep.", "Say where it should be with --out."
        )
    return Plan(
        space=made,
        command=command,
        function=function,
        name=name,
        out=options.get("out") or os.path.join(HOME, name),
        needs=_needs(options, function),
        seed=options.get("seed", 0),
        is_shuffled=options.get("shuffle", False),
        most=options.get("n_samples"),
        result_file=_result_file(options.get("result")),
        retries=min(options.get("retry", 0), MAX_RETRIES),
        is_fail_fast=not options.get("keep_going", True),
        is_rerun=options.get("rerun", False),
        parallel=options.get("parallel"),
        metric=options.get("maximize") or options.get("minimize") or "",
        is_maximized=bool(options.get("maximize")),
        trials=options.get("trials"),
    )


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that do not exist, and values of the wrong kind."""
    for name, value in options.items():
        if name not in OPTIONS:
            near = nearest(str(name), OPTIONS)
            hint = f"Did you mean '{near}'?" if near else f"There are: {', '.join(OPTIONS)}."
            raise UsageError(f"a sweep has no option '{name}'.", hint)
        kinds = OPTIONS[name]
        is_wrong_bool = isinstance(value, bool) and bool not in kinds
        if is_wrong_bool or not isinstance(value, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(f"the option '{name}' of a sweep must be {names}, not {value!r}.")


def identity(function: Callable[..., Any]) -> str:
    """Return a unique name of a function: by its file, and the values bound to it.

    The code itself counts only without a name: a function may be corrected between runs.
    """
    inner = getattr(function, "func", function)
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    text = type_and_label(code.co_filename, name)[1] if code is not None else name_of(function)
    told: dict[str, object] = {}
    if "<lambda>" in name and code is not None:
        told["code"] = [code.co_code.hex(), code.co_names, repr(code.co_consts).split(" at 0x")[0]]
    if inner is not function:
        told["bound"] = [getattr(function, "args", ()), getattr(function, "keywords", {})]
    return f"{text} {fingerprint(told)[:6]}" if told else text


def _check_call(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Refuse parameters that the function does not take, before a thousand runs find out."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C: its parameters are unknown
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        given = ", ".join(names)
        message = f"{name_of(function)} cannot be called with {given}: {error}."
        raise UsageError(message) from error


def _result_file(name: str | None) -> str | None:
    """Check the name of a file that is removed before each attempt."""
    if name is None:
        return None
    clean = os.path.normpath(name)
    if os.path.isabs(clean) or clean.startswith("..") or clean == ".":
        raise UsageError(
            f"the result '{name}' does not lie in the folder of a run.",
            "Let the command write to {run_dir}/FILE, and say --result FILE.",
        )
    if clean in (RUN_FILE, LOG_FILE, "call", "answer"):
        raise UsageError(f"a result cannot be called '{name}'; grn keeps that file itself.")
    return clean


def _command(options: Mapping[str, Any]) -> Template:
    command = options.get("command", "")
    if not isinstance(command, str) and not all(isinstance(word, str) for word in command):
        raise UsageError("the command of a sweep must be a text, or a list of words.")
    return template.parse(command, is_shell=options.get("shell", False))


def _program(command: Template | None, text: str) -> str:
    """Name the program for people: its script, or its function."""
    if command is None:
        return text.rpartition("::")[2].partition(" ")[0]
    if command.is_shell:
        words = text.split()
    else:
        words = ["".join(str(piece) for piece in word) for word in command.words]
    return os.path.splitext(os.path.basename(command_type(words)[1]))[0]


def _needs(options: Mapping[str, Any], function: Callable[..., Any] | None) -> Needs:
    priority = options.get("priority", 0)
    if abs(priority) > MAX_PRIORITY:
        limits = f"-{MAX_PRIORITY} to {MAX_PRIORITY}"
        raise UsageError(f"the option 'priority' of a sweep must be {limits}.")
    check_nodes(options.get("nodes"))
    if options.get("type") or function is None:
        return read_needs(options)
    return read_needs({**options, "type": identity(function)})


def _space(options: Mapping[str, Any], *, is_text: bool) -> Space:
    given = options.get("parameters", {})
    parameters = tuple(_parameter(name, value, is_text) for name, value in given.items())
    conditions = options.get("if", [])
    texts = [conditions] if isinstance(conditions, str) else conditions
    if not all(isinstance(text, str) for text in texts):
        raise UsageError("the option 'if' of a sweep must be a text, or a list of texts.")
    zipped = options.get("zip", [])
    if not all(isinstance(group, (list, tuple)) for group in zipped):
        raise UsageError("the option 'zip' of a sweep must be a list of lists of names.")
    return Space(
        parameters,
        tuple(tuple(map(str, group)) for group in zipped),
        tuple(condition.parse(text) for text in texts),
        _seeds(options.get("seeds", []), is_text),
    )


def _parameter(name: object, value: object, is_text: bool) -> Parameter:
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is not a name for a parameter.")
    if isinstance(value, (Listed, Drawn)):  # of a command line, made already
        return value
    if isinstance(value, str):
        if space.looks_like_range(value):
            return space.drawn(name, value, is_text=is_text)
        values: list[object] = [value]
    elif isinstance(value, Iterable) and not isinstance(value, (Mapping, bytes)):
        values = list(value)
    else:
        values = [value]
    return space.listed(name, [spelled(one) for one in values] if is_text else values)


def _seeds(seeds: int | list[Any], is_text: bool) -> tuple[object, ...]:
    if isinstance(seeds, int) and seeds < 1:
        raise UsageError("the option 'seeds' of a sweep must be 1 or more, or a list.")
    values = range(seeds) if isinstance(seeds, int) else seeds
    if not values:
        return ()
    chosen = [spelled(seed) for seed in values] if is_text else list(values)
    return space.listed("seed", chosen).values


def _check_search(options: Mapping[str, Any], made: Space) -> None:
    sampler = options.get("sampler")
    metrics = [options[word] for word in ("maximize", "minimize") if options.get(word)]
    if len(metrics) > 1:
        raise UsageError("a sweep has one metric.", "Give --maximize or --minimize, not both.")
    if sampler is None:
        if "trials" in options:
            raise UsageError("--trials goes with a sampler.", "Add --sampler optuna.")
        return
    if sampler not in SAMPLERS:
        raise UsageError(f"there is no sampler '{sampler}'.", f"There is: {', '.join(SAMPLERS)}.")
    if not metrics:
        raise UsageError(
            "a sampler needs a metric.", "Give --maximize METRIC or --minimize METRIC."
        )
    if "trials" not in options:
        raise UsageError("a sampler needs to know when to end.", "Say how many: --trials 50.")
    for word, is_given in (
        ("zip", made.zipped), ("seeds", made.seeds), ("n_samples", options.get("n_samples")),
        ("shuffle", options.get("shuffle")),
    ):  # fmt: skip
        if is_given:
            raise UsageError(f"'{word}' does not go with a sampler; it chooses each value itself.")
