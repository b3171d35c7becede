"""One GPU job. It needs no framework: on virtual GPUs, host memory stands for GPU memory."""

import os
import sys
import time

import grn

MiB = 1 << 20


@grn.job()
def train(size_mib: int, seconds: float = 3) -> str:
    """Hold memory for a while, as a training would."""
    weights = b"\xff" * (size_mib * MiB)
    time.sleep(seconds)
    return f"trained {len(weights) // MiB} MiB on GPU {os.environ['CUDA_VISIBLE_DEVICES']}"


if __name__ == "__main__":
    print(train(int(sys.argv[1]) if len(sys.argv) > 1 else 300))
