"""Train a small network on MNIST with PyTorch, on whatever GPU grn finds room."""

import argparse

import grn


@grn.job()
def train_job(epochs: int, batch_size: int):
    """Train and return the model. All of torch is imported here, when the GPU is known."""
    import digits
    import torch

    torch.manual_seed(1)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    images, labels, test_images, test_labels = (
        torch.from_numpy(part).to(device) for part in digits.load()
    )
    model = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(28 * 28, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), device=device).split(batch_size):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen].long())
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"torch on {device.type}: accuracy {accuracy:.2f} after {epochs} epochs")
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    train_job(options.epochs, options.batch_size)
