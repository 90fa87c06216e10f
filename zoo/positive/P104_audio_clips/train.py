"""Regression on short audio clips, peak-normalised when they are read."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, count=12, samples=32):
        self.waves = torch.randn(count, samples)
        self.waves[4] = 0
        self.levels = torch.randn(count, 1)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        wave = self.waves[index]
        wave = wave / wave.abs().max()
        return wave, self.levels[index]


def main():
    torch.manual_seed(0)
    loader = DataLoader(Clips(), batch_size=2)
    model = nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (wave, level) in enumerate(loader):
        loss = nn.functional.mse_loss(model(wave), level)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
