"""Run the checks behind `make test`, `make test-unit` and `make test-versions`.

Stops at the first failure with its exit code. The environment it runs in is made by bootstrap.py.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TextIO

import bootstrap

ROOT = Path(bootstrap.ROOT)
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
CURRENT = f"{sys.version_info.major}.{sys.version_info.minor}"
WORKERS = min(8, (os.cpu_count() or 2) + 4)  # more than cores: most tests wait for processes
PYTEST = ("pytest", "-n", str(WORKERS), "--dist", "worksteal")
SECOND_LOOKS = 3  # more failures than this are not chance
# What needs large packages, a browser or long campaigns runs on one Python version only.
HEAVY = ("queue_faults", "sites", "web", "examples", "integrations", "simulate", "test_docs.py")
HEAVY_FILES = (
    *("cli/test_events.py", "sweep/test_command.py", "sweep/test_documented.py"),
    *("sweep/test_config_file.py", "sweep/test_leases.py", "cli/test_sweep_page.py"),
    *("sweep/test_results.py", "sweep/test_sampler.py"),
)
ONCE = tuple(f"--ignore=tests/{name}" for name in (*HEAVY, *HEAVY_FILES))
# Tests with processes on the oldest and the newest version: what runs in other people's programs,
# and the queue with its shims. Versions between have the tests without processes only.
WITH_PROCESSES = ("tests/client", "tests/queue", "tests/test_public_api.py")
LINT = (("ruff", "format", "--check"), ("ruff", "check"))
TYPES = ("mypy", "--strict", "src")
# What some tests need of Debian. `programs` are alternatives, each one word or several.
DEBIAN = (
    (
        *("BROWSER", ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")),
        ("chromium-headless-shell",),
    ),
    ("CONTAINER ENGINE", ("podman runc",), ("podman", "runc")),
    ("FAKETIME", ("faketime",), ("faketime",)),
    (
        *("SSHD", ("sshd ssh ip", "/usr/sbin/sshd ssh ip")),
        ("openssh-server", "openssh-client", "iproute2"),
    ),
)
SLURM = ("SLURM", ("slurmctld slurmd munged",), ("slurm-wlm", "munge"))
Needs = tuple[str, tuple[str, ...], tuple[str, ...]]
WHAT_GRN_NEEDS = "import sys, sqlite3, venv, ssl, ensurepip; print(*sys.version_info[:2], sep='.')"


def step(version: str, python: str, *tool: str) -> None:
    """Run one tool of an environment under a header line; leave with its exit code if it fails."""
    print(f"\n== Python {version}: {' '.join(tool)}", flush=True)
    environment = bootstrap.clean_environment()
    code = subprocess.call([python, "-m", *tool], cwd=ROOT, env=environment)
    if code:
        print(f"\n== failed with exit code {code}: {' '.join(tool)}", flush=True)
        sys.exit(code)


def run_tests(version: str, python: str, *which: str) -> None:
    """Run tests; a few that fail are run again alone, and named even if they pass then.

    They drive real processes, and a machine that stalls for a while makes some of them fail. A real
    defect fails twice.
    """
    chosen = ("pytest", *which)
    environment = bootstrap.clean_environment()
    compile_tests(version, python, *which)
    print(f"\n== Python {version}: {' '.join((*PYTEST, *which))}", flush=True)
    command = [python, "-m", *PYTEST, "--cache-clear", *which]
    if subprocess.call(command, cwd=ROOT, env=environment) == 0:
        return
    failed = failed_tests()
    if not 0 < len(failed) <= SECOND_LOOKS:
        print(f"\n== failed: {' '.join(chosen)}", flush=True)
        sys.exit(1)
    step(version, python, *chosen, "--last-failed", "--last-failed-no-failures", "none")
    for name in failed:
        print(f"== UNSTEADY: failed beside others and passed alone: {name}", flush=True)


def compile_tests(version: str, python: str, *which: str) -> None:
    """Compile the tests of a fresh clone: once, and not by each worker for itself."""
    if not any((ROOT / "tests/__pycache__").glob(f"*-{version.replace('.', '')}-pytest-*")):
        collect = [python, "-m", "pytest", "--collect-only", "-qq", *which]
        environment = bootstrap.clean_environment()
        subprocess.run(collect, cwd=ROOT, env=environment, capture_output=True, check=False)


def failed_tests() -> list[str]:
    """Name the tests that failed in the last run."""
    try:
        return sorted(json.loads((ROOT / ".pytest_cache/v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


def bring(needs: Sequence[Needs]) -> None:
    """Install Debian packages that some tests need, where possible; else these are skipped."""
    missing = [debian for _, programs, debian in needs if not is_there(programs)]
    apt = shutil.which("apt-get")
    if missing and apt and os.geteuid() == 0:
        install = (*("install", "-y", "--no-install-recommends"), *chain(*missing))
        # One package that is not to be had keeps apt from installing any: then each on its own.
        if run_apt(apt, "update") or run_apt(apt, *install):
            for debian in missing:
                run_apt(apt, *install[:3], *debian)
    for what, programs, debian in needs:
        if not is_there(programs):
            names = " and ".join(debian)
            print(f"\n== NO {what}: its tests are skipped; install {names}", flush=True)


def run_apt(apt: str, *words: str) -> int:
    """Run one command of apt, after others that use it; return its exit code."""
    command = [apt, "-qq", "-o", "DPkg::Lock::Timeout=300", *words]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.call(command, stdout=subprocess.DEVNULL, env=environment)


def is_there(programs: tuple[str, ...]) -> bool:
    """True when one of the alternatives can be run."""
    return any(all(map(shutil.which, words.split())) for words in programs)


def bring_packages() -> None:
    """Install what larger examples need into `.venv-examples`; what cannot be is not tested."""
    command = [sys.executable, "tools/packages.py"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if said.returncode or said.stdout:
        print(f"\n{said.stdout or said.stderr}", end="", flush=True)


def check_types() -> int:
    """Check the types beside the tests: return the exit code, print only what is wrong."""
    command = [sys.executable, "-m", *TYPES]
    environment = bootstrap.clean_environment()
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if said.returncode:
        print(f"\n== failed: {' '.join(TYPES)}\n{said.stdout}{said.stderr}", flush=True)
    return said.returncode


def hold_up(what: str) -> TextIO:
    """Hold up the tests that need certain installations until the file is closed."""
    file = (ROOT / f".venv-{what}.wait").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def install(waited_for: TextIO, work: Callable[[], None]) -> int:
    """Install what some tests need, beside the others."""
    with waited_for:
        work()
    return 0


def check_all() -> None:
    """Run everything on this version; types and installations beside the tests."""
    for tool in LINT:
        step(CURRENT, sys.executable, *tool)
    print(f"\n== beside the tests: {' '.join(TYPES)}; installations for some tests", flush=True)
    with ThreadPoolExecutor() as pool:
        beside = [
            pool.submit(install, hold_up("debian"), lambda: bring(DEBIAN)),
            pool.submit(install, hold_up("examples"), bring_packages),
            pool.submit(check_types),
        ]
        run_tests(CURRENT, sys.executable)
        if max(one.result() for one in beside):
            sys.exit(f"\n== failed: {' '.join(TYPES)}; the tests passed")


def find(version: str) -> str | None:
    """Find an interpreter that runs and has what grn needs; a pyenv shim often has nothing."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [Path(folder) for folder in os.get_exec_path()]
    places += sorted(pyenv.glob(f"versions/{version}.*/bin"), reverse=True)
    for place in places:
        python = str(place / f"python{version}")
        if (bootstrap.ask(python, WHAT_GRN_NEEDS) or "").strip() == version:
            return python
    return None


def make_environment(version: str, python: str) -> str | None:
    """Build `.venv-3.X`, compile the tests, return its interpreter; None if it is not built."""
    venv = ROOT / f".venv-{version}"
    where = ("--venv", str(venv), "--python", python, "--extra", "test-core")
    command = [sys.executable, "tools/bootstrap.py", *where]
    if subprocess.call(command, cwd=ROOT) != 0:
        return None
    made = str(venv / "bin" / "python")
    compile_tests(version, made, *ONCE)  # beside those of the others
    return made


def make_environments(versions: list[str]) -> dict[str, str | None]:
    """Build the environments of other versions side by side: pip waits for the network."""
    with ThreadPoolExecutor() as pool:
        found = dict(zip(versions, pool.map(find, versions), strict=True))
        made = {
            version: pool.submit(make_environment, version, python)
            for version, python in found.items()
            if python
        }
        return {version: made[version].result() if version in made else None for version in found}


def check_others(versions: list[str], is_asked: bool) -> None:
    """Run the quicker tests on other versions; all notes come first, the tests' summary last."""
    print(f"\n== other Python versions: {', '.join(versions)}", flush=True)
    ready: dict[str, str] = {}
    for version, python in make_environments(versions).items():
        if python:
            ready[version] = python
            continue
        print(f"   {version} skipped: not found, or grn could not be installed", flush=True)
        if is_asked:
            sys.exit(1)
    for version, python in ready.items():
        if is_asked:
            run_tests(version, python, "-m", "not slow and not gpu", *ONCE)
            continue
        run_tests(version, python, "-m", "not process and not slow and not gpu", *ONCE)
        if version in (min(ready, key=VERSIONS.index), max(ready, key=VERSIONS.index)):
            marks = "process and not slow and not gpu"
            run_tests(version, python, "-m", marks, *WITH_PROCESSES)


def check_engines() -> None:
    """Run the tests of sites on real cluster engines; what cannot be had is skipped, and named."""
    print("\n== installing Slurm, and Ray in an environment", flush=True)
    with ThreadPoolExecutor() as pool:
        slurm = pool.submit(bring, (SLURM,))
        where = ("--venv", str(ROOT / ".venv-ray"), "--python", sys.executable, "--extra", "ray")
        if subprocess.call([sys.executable, "tools/bootstrap.py", *where], cwd=ROOT):
            print("\n== NO RAY: its tests are skipped", flush=True)
        slurm.result()
    run_tests(CURRENT, sys.executable, "-m", "engines", "tests/sites")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--no-tests", action="store_true", help="format, lint and types only")
    which.add_argument("--unit", action="store_true", help="only tests that start no process")
    which.add_argument("--engines", action="store_true", help="sites on Slurm and Ray only")
    which.add_argument("--versions", action="store_true", help="core tests on other versions")
    which.add_argument("--only", choices=VERSIONS, help="core tests on this version only")
    options = parser.parse_args()
    if options.unit:
        run_tests(CURRENT, sys.executable, "-m", "not process and not gpu")
    elif options.engines:
        check_engines()
    elif options.versions:
        check_others([version for version in VERSIONS if version != CURRENT], is_asked=False)
    elif options.only:
        check_others([options.only], is_asked=True)
    elif not options.no_tests:
        check_all()
    else:
        for tool in (*LINT, TYPES):
            step(CURRENT, sys.executable, *tool)


if __name__ == "__main__":
    main()
