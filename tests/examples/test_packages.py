"""Which build of torch the examples are installed with, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT

pytestmark = pytest.mark.skipif(find_spec("pip") is None, reason="pip is not in this environment")


def ask(folder: Path, *names: str, code: str) -> str:
    """Let tools/packages.py look for packages in a folder that has wheels of these names."""
    for name in names:
        (folder / f"{name}-py3-none-any.whl").touch()
    environment = {
        "PATH": "/usr/bin:/bin",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
    }
    command = [sys.executable, "-c", f"import packages, sys; print({code})"]
    return subprocess.run(
        command, cwd=ROOT / "tools", env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


CHOICE = "packages.cpu_torch(sys.executable)"
INSTALL = "packages.fill(sys.executable, 'mnist/requirements-torch.txt', may_be_large=False)"


def test_the_newest_build_for_cpus_is_taken_even_if_there_is_a_newer_one_for_gpus(
    tmp_path: Path,
) -> None:
    found = ask(tmp_path, "torch-2.9.0+cpu", "torch-2.10.0+cpu", "torch-2.11.0", code=CHOICE)

    assert found == "torch==2.10.0+cpu"


def test_the_tests_never_install_a_build_for_gpus(tmp_path: Path) -> None:
    said = ask(tmp_path, "torch-2.11.0", code=INSTALL)

    assert said == "pip finds no build of torch for CPUs"


def test_what_pip_cannot_install_is_told(tmp_path: Path) -> None:
    install = INSTALL.replace("mnist/requirements-torch.txt", "snakemake/requirements.txt")

    assert ask(tmp_path, code=install) == "pip could not install it"
