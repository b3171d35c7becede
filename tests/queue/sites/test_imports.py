"""Without a site, the queue and the commands of a user load nothing of nodes."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What passes everything on to this machine while there is no site.
LEASES = ("choice", "lease_router", "places", "remote_lease", "run_sharing", "wait_reasons")
NEEDED = {"router", "teaching", "leases", *(f"leases.{name}" for name in LEASES)}


def modules_of_sites(statement: str) -> set[str]:
    """Run a statement in a fresh interpreter; return the modules of sites that it has loaded."""
    code = f"import sys\n{statement}\nprint(*(name for name in sys.modules if 'sites' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()[-1].split()
    return {name.removeprefix("grn.queue.sites").lstrip(".") for name in names} - {""}


@pytest.mark.parametrize(
    "statement",
    [
        "import grn\nfor name in grn.__all__: getattr(grn, name)",
        "from grn.cli.main import main\ntry: sys.argv[1:] = ['ls', '--help']; main()\n"
        "except SystemExit: pass",
        "from grn.cli.commands.queue import jobs, submit",
    ],
)
def test_programs_and_commands_load_nothing_of_sites(statement: str) -> None:
    assert modules_of_sites(statement) == set()


def test_a_queue_without_sites_loads_only_what_passes_orders_on() -> None:
    assert modules_of_sites("import grn.queue.__main__") == NEEDED
