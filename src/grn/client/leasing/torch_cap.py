"""Cap the GPU memory of a command that runs PyTorch at its reservation.

PyTorch reads `per_process_memory_fraction` from its allocator's variable since 2.10; older versions
refuse the key and end. So the version is read from the metadata of the environment that the command
runs in, without Python; where that is not certain, nothing is capped.
"""

from __future__ import annotations

import functools
import os
import re
import stat

from grn.model.shell_line import line_of, plain_programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEY = "per_process_memory_fraction"
FIRST = (2, 10)  # the first version that knows the key
_VARIABLE, _GENERIC = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"  # the first takes precedence
_FINAL = re.compile(r"torch-(\d+)\.(\d+)(?:\.\d+)*(?:\.post\d+)?(?:\+[^-]*)?\.(?:dist|egg)-info")
_ANY = re.compile(r"torch-[^-]*\.(?:dist|egg)-info")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*$")
_LIB = re.compile(r"python\d+(?:\.\d+)?t?$")
_PLAIN_SHELLS = frozenset(("sh", "/bin/sh", "bash", "/bin/bash", "dash", "/bin/dash"))


def variables(
    argv: Sequence[str], environment: Mapping[str, str], cap: float | None, folder: str = ""
) -> dict[str, str]:
    """Return the variable that caps a command, none where it must not be or is already capped.

    `folder` is the one that the command starts in. Other keys of the user stay.
    """
    if cap is None:
        return {}
    name = _GENERIC if environment.get(_GENERIC) and _VARIABLE not in environment else _VARIABLE
    given = environment.get(name, "").strip(", ")
    if KEY in given or "cudaMallocAsync" in given:  # capped already; that backend knows no cap
        return {}
    if not knows_cap(argv, environment, folder):
        return {}
    key = f"{KEY}:{cap:g}"
    return {name: f"{given},{key}" if given else key}


def knows_cap(argv: Sequence[str], environment: Mapping[str, str], folder: str = "") -> bool:
    """True when every PyTorch that the interpreters of a command could import knows the key."""
    programs: list[tuple[str, str]] | None = [(argv[0], folder)] if argv else []
    line = line_of(argv)
    if line is not None:  # of a plain shell, which reads no file first
        is_plain = argv[0] in _PLAIN_SHELLS and argv[1] == "-c" and "BASH_ENV" not in environment
        programs = plain_programs(line, folder) if is_plain else None
    return bool(programs) and all(_is_new(*one, environment) for one in programs or ())


def _is_new(program: str, folder: str, environment: Mapping[str, str]) -> bool:
    interpreter = _interpreter(program, environment, folder)
    if interpreter is None:
        return False
    found = [
        version for place in _places(interpreter, environment, folder) for version in _torch(place)
    ]
    return bool(found) and all(version >= FIRST for version in found)


def _interpreter(program: str, environment: Mapping[str, str], folder: str) -> str | None:
    """Return the Python that a program is, or that its first line names; None for others."""
    path = _find(program, environment, folder)
    if path is None or _PYTHON.match(os.path.basename(path)):
        return path
    words = _first_line(path)
    if len(words) == 2 and os.path.basename(words[0]) == "env":
        path = _find(words[1], environment, folder)
    elif len(words) >= 1:
        path = words[0]
    else:
        return None
    return path if path and _PYTHON.match(os.path.basename(path)) else None


def _find(program: str, environment: Mapping[str, str], folder: str) -> str | None:
    if "/" in program:
        return os.path.join(folder, program)
    for place in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, place, program)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _first_line(path: str) -> list[str]:
    """Return the words of the line of a script that names its interpreter."""
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
    except OSError:
        return []
    return os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []


def _places(interpreter: str, environment: Mapping[str, str], folder: str) -> list[str]:
    """Return the folders from which an interpreter may import PyTorch."""
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    places = [os.path.join(folder, one) for one in given if one]
    prefix = os.path.dirname(os.path.dirname(interpreter))
    config = _venv(prefix)
    if config is not None:
        places += _site_folders(prefix)
        if not re.search(r"(?m)^include-system-site-packages\s*=\s*true", config):
            return places
    base = os.path.dirname(os.path.dirname(os.path.realpath(interpreter)))
    for root in dict.fromkeys((base, "/usr", "/usr/local")):
        if root == base or base in ("/usr", "/usr/local", "/"):
            places += _site_folders(root)
    if "PYTHONNOUSERSITE" not in environment and "HOME" in environment:
        places += _site_folders(environment.get("PYTHONUSERBASE", f"{environment['HOME']}/.local"))
    return places


def _venv(prefix: str) -> str | None:
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return None


def _site_folders(prefix: str) -> list[str]:
    """Return the folders of packages below a prefix, of all versions of Python there."""
    found = []
    for lib in ("lib", "lib64"):
        try:
            versions = os.listdir(os.path.join(prefix, lib))
        except OSError:
            continue
        for version in versions:
            if _LIB.match(version):
                for name in ("site-packages", "dist-packages"):
                    found.append(os.path.join(prefix, lib, version, name))
    return found


def _torch(place: str) -> list[tuple[int, int]]:
    """Return the versions of PyTorch whose metadata is in a folder; (0, 0) for an unclear one."""
    try:
        state = os.stat(place)
    except OSError:
        return []
    return _torch_at(place, state.st_mtime_ns) if stat.S_ISDIR(state.st_mode) else []


@functools.lru_cache(maxsize=64)
def _torch_at(place: str, _changed_ns: int) -> list[tuple[int, int]]:
    try:
        names = [name for name in os.listdir(place) if _ANY.fullmatch(name)]
    except OSError:
        return []
    matches = [_FINAL.fullmatch(name) for name in names]
    return [(int(one[1]), int(one[2])) if one else (0, 0) for one in matches]
