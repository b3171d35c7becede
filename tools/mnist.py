"""Make an environment with the frameworks of examples/mnist, and train there on virtual GPUs.

Behind `make mnist`. Fails unless nine trainings ran and grn learned three different profiles.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import bootstrap
import packages

EXAMPLE = packages.ROOT / "examples" / "mnist"
GPUS = "virtual:2x2GiB"
COMMAND = "doit -d . -f example_doit.py -n 9"
TYPES = ("tf_mnist_train.py", "torch_mnist_train.py", "jax_mnist_train.py")


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
        return f"three runs of each type were expected, not {runs}"
    if len({row["largest_bytes"] for row in learned.values()}) != len(TYPES):
        return "the profiles of the three types do not differ"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--install-only", action="store_true", help="make the environment only")
    options = parser.parse_args()
    python, complaints = packages.environment("mnist", ["mnist/requirements.txt"], True)
    if complaints:
        sys.exit("mnist: " + complaints[0] + "; the lines above may say more")
    if options.install_only:
        return
    with tempfile.TemporaryDirectory(prefix="grn-mnist-", dir="/tmp") as folder:
        wrong = complaint(train(python, Path(folder)))
    sys.exit(wrong and f"mnist: {wrong}")


if __name__ == "__main__":
    main()
