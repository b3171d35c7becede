"""Log a training to Weights & Biases from inside a job of grn."""

import argparse
import json
import os

import wandb


def train(lr: float, steps: int = 20) -> float:
    """Walk down a parabola and log each step."""
    # The job's id and GPUs go into the run's configuration, so that a curve leads back to its log.
    job = {"grn_job": os.environ.get("GRN_JOB_ID"), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    with wandb.init(project="grn-example", config={"lr": lr, **job}) as run:
        x = 1.0
        for step in range(steps):
            x -= lr * 2 * x
            run.log({"loss": x * x}, step=step)
    return x * x


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()
    print(json.dumps({"loss": train(options.lr)}))  # what `grn sweep` reads
