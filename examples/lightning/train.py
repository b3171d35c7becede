"""Train a small network with Lightning on the GPUs that grn hands out."""

import argparse
import json
import os
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """Learn y = sum(x)."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        points, sums = batch
        loss = torch.nn.functional.mse_loss(self.layers(points), sums)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def train(lr: float, epochs: int) -> float:
    lightning.seed_everything(0, verbose=False)
    points = torch.randn(512, 8)
    data = DataLoader(TensorDataset(points, points.sum(1, keepdim=True)), batch_size=64)
    trainer = lightning.Trainer(
        accelerator="auto",
        devices="auto",  # all that CUDA_VISIBLE_DEVICES shows, and grn sets that
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(lr), data)
    return float(trainer.callback_metrics["loss"])


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="lightning")
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    loss = train(options.lr, options.epochs)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
    print(json.dumps({"loss": round(loss, 4), "gpus": gpus}))  # what `grn sweep` reads
