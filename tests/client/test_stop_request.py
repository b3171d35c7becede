"""`grn.should_stop()` in a process of its own: signals end processes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

LOOP = """
import os, signal, sys
import grn
assert not grn.should_stop()
os.kill(os.getpid(), int(sys.argv[1]))
print(grn.should_stop())
"""


@pytest.mark.process
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_loop_is_told_instead_of_ended(signum: signal.Signals) -> None:
    code = [sys.executable, "-c", LOOP, str(int(signum))]
    env = {"GRN_STOP_SIGNAL": str(int(signum))}
    done = subprocess.run(code, env=env, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True"
