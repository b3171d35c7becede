"""Stands for a training in a container: 150 MiB of memory, a few seconds."""

import os
import sys
import time

import grn


@grn.job("docker-train")
def train(seconds: float) -> str:
    kept = b"x" * (150 << 20)  # on a virtual GPU host memory stands for GPU memory
    time.sleep(seconds)
    return f"trained with {len(kept) >> 20} MiB on GPU {os.environ['CUDA_VISIBLE_DEVICES']}"


if __name__ == "__main__":
    print(train(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0), flush=True)
