"""The parts of tools/bootstrap.py that need no network: choices, stamps, refusals."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "tools" / "bootstrap.py"
VERSION = tuple(sys.version_info[:3])


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bootstrap: Any = load()


def an_interpreter(folder: Path, name: str, says: str, exit_code: int = 0) -> str:
    """Write a program that answers like an interpreter and does nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho {says}\nexit {exit_code}\n")
    program.chmod(0o755)
    return str(program)


def run_script(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    environ = {**os.environ, "PATH": path}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


# Which interpreter


def test_the_running_interpreter_is_taken_when_it_is_new_enough(tmp_path: Path) -> None:
    an_interpreter(tmp_path, "python3.13", "3 13 0")

    assert bootstrap.choose(None, "own", (3, 10, 0), [str(tmp_path)]) == ("own", (3, 10, 0))


def test_an_old_interpreter_looks_for_a_newer_one_on_path(tmp_path: Path) -> None:
    an_interpreter(tmp_path, "python3.10", "3 10 13")
    newest = an_interpreter(tmp_path, "python3.12", "3 12 1")

    found = bootstrap.choose(None, "own", (3, 8, 18), ["/nowhere", str(tmp_path)])

    assert found == (newest, (3, 12, 1))


def test_a_shim_that_leads_nowhere_is_passed_over(tmp_path: Path) -> None:
    an_interpreter(tmp_path / "shims", "python3.13", "not found", exit_code=127)
    real = an_interpreter(tmp_path / "bin", "python3.11", "3 11 7")
    path = [str(tmp_path / "shims"), str(tmp_path / "bin")]

    assert bootstrap.choose(None, "own", (3, 9, 0), path) == (real, (3, 11, 7))


def test_no_new_enough_interpreter_is_refused_in_one_sentence() -> None:
    with pytest.raises(SystemExit) as refused:
        bootstrap.choose(None, "old-python", (3, 9, 2), [])

    assert str(refused.value) == ("bootstrap: grn needs Python 3.10 or newer; old-python is not")


@pytest.mark.parametrize(("says", "exit_code"), [("3 9 18", 0), ("pyenv: no such command", 127)])
def test_an_unfit_interpreter_that_was_asked_for_is_refused(
    tmp_path: Path, says: str, exit_code: int
) -> None:
    asked = an_interpreter(tmp_path, "python", says, exit_code)

    done = run_script("--python", asked, "--venv", str(tmp_path / "venv"))

    assert done.returncode == 1
    assert done.stderr == f"bootstrap: grn needs Python 3.10 or newer; {asked} is not\n"
    assert not (tmp_path / "venv").exists()


# The environment of its children


def test_what_leads_out_of_the_environment_is_dropped_and_the_rest_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*bootstrap.DROPPED, "PIP_USER", "PIP_FIND_LINKS", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "1")

    cleaned = bootstrap.clean_environment()

    assert not set(bootstrap.DROPPED) & set(cleaned)
    assert (cleaned["PIP_USER"], cleaned["PIP_FIND_LINKS"], cleaned["HTTPS_PROXY"]) == tuple("011")


# The stamp


def test_the_stamp_changes_with_all_that_makes_an_environment() -> None:
    same = bootstrap.wanted_stamp("a", (3, 11, 7), "[test]", "/here")

    assert same == bootstrap.wanted_stamp("a", (3, 11, 7), "[test]", "/here")
    others = {
        bootstrap.wanted_stamp("b", (3, 11, 7), "[test]", "/here"),
        bootstrap.wanted_stamp("a", (3, 12, 1), "[test]", "/here"),
        bootstrap.wanted_stamp("a", (3, 11, 7), "", "/here"),
        bootstrap.wanted_stamp("a", (3, 11, 7), "[test]", "/there"),
    }
    assert len(others - {same}) == 4


def a_finished_venv(folder: Path, stamp: str) -> str:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "bin" / "activate").write_text(f"VIRTUAL_ENV={folder}")
    (folder / "pyvenv.cfg").write_text("")
    (folder / bootstrap.STAMP).write_text(stamp)
    return str(folder)


def test_a_finished_environment_is_ready_only_with_the_right_stamp(tmp_path: Path) -> None:
    venv = a_finished_venv(tmp_path / "venv", "abc")

    assert bootstrap.is_ready(venv, "abc")
    assert not bootstrap.is_ready(venv, "abd")


def test_an_environment_whose_interpreter_is_gone_is_not_ready(tmp_path: Path) -> None:
    venv = a_finished_venv(tmp_path / "venv", "abc")
    (tmp_path / "venv" / "bin" / "python").unlink()
    (tmp_path / "venv" / "bin" / "python").symlink_to(tmp_path / "uninstalled")

    assert not bootstrap.is_ready(venv, "abc")


# Making and making anew


def test_a_working_environment_is_kept(tmp_path: Path) -> None:
    venv = a_finished_venv(tmp_path / "venv", "of an older pyproject.toml")
    (tmp_path / "venv" / "precious").touch()

    bootstrap.create(venv, sys.executable, VERSION, uv=None)

    assert (tmp_path / "venv" / "precious").exists()


@pytest.mark.parametrize("trouble", ["half made", "interpreter gone", "other version", "moved"])
def test_a_broken_environment_is_made_anew(tmp_path: Path, trouble: str) -> None:
    venv = tmp_path / "venv"
    a_finished_venv(venv, bootstrap.MAKING if trouble == "half made" else "abc")
    (venv / "lib" / "old").mkdir(parents=True)
    if trouble == "interpreter gone":
        (venv / "bin" / "python").unlink()
    if trouble == "moved":
        (venv / "bin" / "activate").write_text("VIRTUAL_ENV=elsewhere")
    version = (3, 99, 0) if trouble == "other version" else VERSION

    # A name for uv leaves out pip, which takes seconds to unpack; with ensurepip uv is not called.
    bootstrap.create(str(venv), sys.executable, version, uv="uv")

    assert not (venv / "lib" / "old").exists()
    assert bootstrap.version_of(str(venv / "bin" / "python")) == VERSION
    assert (venv / bootstrap.STAMP).read_text() == bootstrap.MAKING


def test_a_folder_that_is_no_environment_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(SystemExit, match="holds other things"):
        bootstrap.empty(str(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_links_inside_an_environment_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data").touch()
    venv = tmp_path / "venv"
    a_finished_venv(venv, "abc")
    (venv / "lib64").symlink_to(outside)

    bootstrap.empty(str(venv))

    assert [path.name for path in venv.iterdir()] == [bootstrap.STAMP]
    assert (outside / "data").exists()


def test_without_ensurepip_and_uv_the_line_to_type_is_printed(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text('#!/bin/sh\ncase "$3" in *ensurepip*) exit 1;; esac\necho 3 11 2\n')
    bare.chmod(0o755)

    done = run_script("--python", str(bare), "--venv", str(tmp_path / "venv"), path="")

    assert done.returncode == 1
    assert "sudo apt install python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_the_script_says_what_it_does() -> None:
    done = run_script("--help")

    assert done.returncode == 0
    assert "--no-test" in done.stdout
