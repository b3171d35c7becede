"""Train with Hugging Face Accelerate on the GPUs that grn hands out."""

import argparse
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def train(lr: float, epochs: int = 20) -> float:
    """Learn y = sum(x) and return the last loss."""
    accelerator = Accelerator()  # takes the devices in CUDA_VISIBLE_DEVICES, which grn sets
    torch.manual_seed(0)
    points = torch.randn(512, 8)
    data = DataLoader(TensorDataset(points, points.sum(1, keepdim=True)), batch_size=64)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        for x, y in data:
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if accelerator.is_main_process:
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        print(f"{accelerator.num_processes} process on GPU {gpus}: loss {loss.item():.4f}")
    return loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    train(parser.parse_args().lr)
