"""Train one model on several GPUs with torch.distributed; torchrun starts a process for each."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(steps: int = 50) -> None:
    """Learn y = sum(x), each process from points of its own; the slopes are averaged."""
    has_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpus else "gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    # A job sees only its own GPUs and counts them from 0.
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if has_gpus else "cpu")
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        points = torch.randn(64, 8, device=device)
        loss = (model(points) - points.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    check_that_all_agree(model, device, count)
    if rank == 0:
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        port = os.environ["MASTER_PORT"]
        print(f"{count} processes on GPUs {gpus}, port {port}: loss {loss.item():.3f}")
    dist.destroy_process_group()


def check_that_all_agree(model: torch.nn.Module, device: torch.device, count: int) -> None:
    """Fail unless every process has ended up with the same weights."""
    own = torch.cat([part.detach().flatten() for part in model.parameters()]).to(device)
    others = [torch.empty_like(own) for _ in range(count)]
    dist.all_gather(others, own)
    assert all(torch.allclose(own, other) for other in others)


if __name__ == "__main__":
    torch.set_num_threads(1)  # on CPUs, a process for each GPU is enough
    train()
