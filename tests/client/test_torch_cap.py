"""Which commands get a cap of GPU memory for PyTorch, on made-up environments of Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grn.client.leasing.torch_cap import knows_cap, variables

KEY = "per_process_memory_fraction:0.31"
NAME, GENERIC = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


class Venv:
    """A folder that looks like a virtual environment, with a version of PyTorch or none."""

    def __init__(self, folder: Path, *packages: str, config: str = "") -> None:
        self.folder = folder
        self.python = folder / "bin/python"
        self.python.parent.mkdir(parents=True)
        self.python.symlink_to(sys.executable)
        (folder / "pyvenv.cfg").write_text(config or "home = /nowhere\n")
        self.site = folder / "lib/python3.11/site-packages"
        self.site.mkdir(parents=True)
        self.has(*packages)

    def has(self, *packages: str) -> None:
        for name in packages:
            (self.site / f"{name}.dist-info").mkdir()

    def variables(self, *argv: str, cap: float | None = 0.31, **given: str) -> dict[str, str]:
        environment = {"PATH": str(self.python.parent), **given}
        return variables(argv or ("python", "train.py"), environment, cap)


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path / "venv", "torch-2.13.0", "numpy-2.0")


@pytest.mark.parametrize(
    ("package", "is_capped"),
    [
        ("torch-2.10.0", True),
        ("torch-2.13.0+cu126", True),
        ("torch-2.10.1.post2", True),
        ("torch-3.0", True),
        ("torch-2.9.1", False),
        ("torch-1.13.1+cu117", False),
        ("torch-2.10.0a0+nv25.9", False),  # not the release: it may lack the key
        ("torch-2.10.0rc1", False),
        ("torchvision-2.10.0", False),
        ("torch_geometric-2.10.0", False),
    ],
)
def test_the_version_decides(tmp_path: Path, package: str, is_capped: bool) -> None:
    assert bool(Venv(tmp_path / "venv", package).variables()) is is_capped


def test_the_interpreter_is_that_of_the_command(tmp_path: Path, venv: Venv) -> None:
    other = Venv(tmp_path / "other", "torch-2.6.0")
    script = venv.python.parent / "torchrun"
    script.write_text(f"#!{venv.python}\n")
    script.chmod(0o755)
    by_env = venv.python.parent / "tool"
    by_env.write_text("#!/usr/bin/env python\n")
    by_env.chmod(0o755)
    capped = {NAME: KEY}

    assert venv.variables() == capped
    assert venv.variables("torchrun", "train.py") == capped
    assert venv.variables("tool") == capped
    assert venv.variables(str(other.python), "train.py") == {}
    assert other.variables(str(venv.python), "train.py") == capped
    assert variables(["bin/python"], {}, 0.31, str(venv.folder)) == capped


@pytest.mark.parametrize(
    ("line", "is_capped"),
    [
        ("python train.py", True),
        ("cd sub && ../bin/python train.py --lr 1e-3 > out.txt 2>&1", True),
        ("WANDB_MODE=offline python train.py --seed $GRN_ARRAY_INDEX | tee log", True),
        ("python prepare.py && exec python train.py", True),
        ("python prepare.py; other train.py", False),
        ("cd $WHERE && python train.py", False),
        ("$PYTHON train.py", False),
        ("PATH=/other python train.py", False),
        ("export X=1; python train.py", False),
        ("python train.py $(other -V)", False),
        ("python() { other; }; python train.py", False),
        ("echo", False),
    ],
)
def test_a_line_of_the_shell_is_capped_where_all_its_programs_are_certain(
    venv: Venv, line: str, is_capped: bool
) -> None:
    (venv.folder / "sub").mkdir()
    environment = {"PATH": str(venv.python.parent)}
    assert knows_cap(["/bin/sh", "-c", line], environment, str(venv.folder)) is is_capped


@pytest.mark.parametrize("argv", [("bash", "-lc", "python a.py"), ("zsh", "-c", "python a.py")])
def test_a_shell_that_reads_files_first_may_choose_another_python(
    venv: Venv, argv: tuple[str, ...]
) -> None:
    assert venv.variables(*argv) == {}
    assert venv.variables("bash", "-c", "python a.py", BASH_ENV="~/.env") == {}


@pytest.mark.parametrize("argv", [("true",), ("no-such-program",)])
def test_where_the_interpreter_is_not_certain_nothing_is_capped(
    venv: Venv, argv: tuple[str, ...]
) -> None:
    assert venv.variables(*argv, PATH=f"{venv.python.parent}:/bin:/usr/bin") == {}


def test_every_version_that_could_be_imported_counts(tmp_path: Path, venv: Venv) -> None:
    older = tmp_path / "older"
    (older / "torch-2.6.0.dist-info").mkdir(parents=True)

    assert venv.variables(PYTHONPATH=str(older)) == {}
    assert venv.variables(PYTHONPATH=str(tmp_path / "missing")) == {NAME: KEY}


def test_an_upgrade_is_noticed(tmp_path: Path) -> None:
    venv = Venv(tmp_path / "venv")
    assert venv.variables() == {}
    venv.has("torch-2.13.0")
    assert venv.variables() == {NAME: KEY}


def test_a_user_site_counts_outside_of_virtual_environments_only(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".local/lib/python3.11/site-packages/torch-2.13.0.dist-info").mkdir(parents=True)
    plain = tmp_path / "opt/bin/python"
    plain.parent.mkdir(parents=True)
    plain.write_text("")
    venv = Venv(tmp_path / "venv")

    assert knows_cap([str(plain)], {"HOME": str(home)})
    assert not knows_cap([str(plain)], {"HOME": str(home), "PYTHONNOUSERSITE": "1"})
    assert not knows_cap([str(venv.python)], {"HOME": str(home)})


def test_keys_of_the_user_stay(venv: Venv) -> None:
    assert venv.variables(**{NAME: "expandable_segments:True"}) == {
        NAME: f"expandable_segments:True,{KEY}"
    }
    # PyTorch reads the generic variable only where the other is not set.
    assert venv.variables(**{GENERIC: "max_split_size_mb:64"}) == {
        GENERIC: f"max_split_size_mb:64,{KEY}"
    }
    both = {NAME: "expandable_segments:True", GENERIC: "max_split_size_mb:64"}
    assert venv.variables(**both) == {NAME: f"expandable_segments:True,{KEY}"}


@pytest.mark.parametrize("given", ["per_process_memory_fraction:0.9", "backend:cudaMallocAsync"])
def test_a_cap_of_the_user_wins(venv: Venv, given: str) -> None:
    assert venv.variables(**{NAME: given}) == {}


def test_without_a_cap_nothing_changes(venv: Venv) -> None:
    assert venv.variables(cap=None) == {}
