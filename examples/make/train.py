"""Train something small and write the result. It knows nothing of make and nothing of grn.

It needs no framework: on virtual GPUs, host memory stands for GPU memory.
"""

import argparse
import os
import random
from pathlib import Path

MiB = 1 << 20


def fit(seed: int, steps: int) -> float:
    """Learn y = 3x from noisy points by gradient descent; return the error that is left."""
    points = random.Random(seed)
    weight = 0.0
    for _ in range(steps):
        x = points.uniform(-1, 1)
        y = 3 * x + points.gauss(0, 0.1)
        weight -= 0.01 * 2 * (weight * x - y) * x
    return abs(weight - 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    weights = b"\xff" * (80 * MiB)  # on a real GPU: model.to("cuda:0")
    error = fit(options.seed, steps=200_000)
    options.out.write_text(f"seed {options.seed} error {error:.4f}\n")
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    print(f"seed {options.seed}: trained with {len(weights) // MiB} MiB on GPU {gpu}")


if __name__ == "__main__":
    main()
