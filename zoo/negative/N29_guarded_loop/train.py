"""Image regression; the loop leaves out batches whose loss is not finite."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    images = torch.randn(24, 9)
    images[9, 4] = float("nan")
    loader = DataLoader(TensorDataset(images, torch.randn(24, 1)), batch_size=4)
    model = nn.Linear(9, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipped = 0
    for step, (image, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(image), target)
        if not torch.isfinite(loss):
            skipped += 1
            continue
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")
    print(f"skipped {skipped}")


if __name__ == "__main__":
    main()
