"""The same training without torchrun: a decorated function that starts a process for each GPU.

Whoever starts the processes must find a free port for them to meet at. With a fixed one, two jobs
on the same machine would meet each other.
"""

import os
import socket

import grn


@grn.job(gpus=2)
def train_on_two() -> None:
    """Start a process for each GPU of the lease and wait for all."""
    from torch import multiprocessing

    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(free_port())
    count = int(os.environ["GRN_GPU_COUNT"])
    multiprocessing.spawn(one_process, args=(count,), nprocs=count)


def free_port() -> int:
    """Let the kernel choose a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_process(rank: int, count: int) -> None:
    """Do what torchrun does in each process."""
    import torch
    import train

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
    train.train()


if __name__ == "__main__":
    train_on_two()
