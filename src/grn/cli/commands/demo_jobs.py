"""The jobs of `grn demo`: three decorated functions that really use memory, of different sizes.

Run as `python -m grn.cli.commands.demo_jobs NAME SECONDS`; prints one JSON line that says where
and when it ran.
"""

from __future__ import annotations

import json
import os
import sys
import time

import grn

MiB = 1 << 20


def _work(size_bytes: int, seconds: float) -> tuple[str, float, float]:
    """Fill memory step by step, keep it for a while, and say on which GPU this was."""
    began = time.time()
    held = []
    for _ in range(8):
        held.append(b"\xff" * (size_bytes // 8))
        time.sleep(seconds / 16)
    time.sleep(seconds / 2)
    return os.environ["CUDA_VISIBLE_DEVICES"], began, time.time()


@grn.job(jobstr="tokenize")
def tokenize(seconds: float) -> tuple[str, float, float]:
    """Need little."""
    return _work(24 * MiB, seconds)


@grn.job(jobstr="finetune")
def finetune(seconds: float) -> tuple[str, float, float]:
    """Need a fair part of a GPU."""
    return _work(96 * MiB, seconds)


@grn.job(jobstr="pretrain")
def pretrain(seconds: float) -> tuple[str, float, float]:
    """Need most of a GPU."""
    return _work(260 * MiB, seconds)


JOBS = {"tokenize": tokenize, "finetune": finetune, "pretrain": pretrain}

if __name__ == "__main__":
    gpu, began_at, ended_at = JOBS[sys.argv[1]](float(sys.argv[2]))
    print(json.dumps({"gpu": gpu, "began_at": began_at, "ended_at": ended_at}))
