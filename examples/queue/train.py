"""A stand-in for a training. On virtual GPUs, host memory stands for GPU memory."""

import argparse
import os
import time
from pathlib import Path

MiB = 1 << 20


def main() -> None:
    """Hold memory for a few epochs and write a result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the result here")
    options = parser.parse_args()
    weights = b"\xff" * (80 * MiB)  # on a real GPU: model.to("cuda:0")
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "?")
    for epoch in range(options.epochs):
        time.sleep(1)
        # Flushed, so that `grn logs -f` shows it at once.
        print(f"seed {options.seed} epoch {epoch} on GPU {gpu}", flush=True)
    if options.out:
        options.out.write_text(f"seed {options.seed}: {len(weights) // MiB} MiB trained\n")


if __name__ == "__main__":
    main()
