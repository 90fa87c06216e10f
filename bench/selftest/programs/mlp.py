"""A multi-layer perceptron on a table of numbers: DataLoader, momentum, clipping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor(nn.Module):
    def __init__(self, inputs=12, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        features = self.body(x)
        return self.head(features).squeeze(-1)


def main():
    torch.manual_seed(0)
    x = torch.randn(96, 12)
    y = x[:, 0] * x[:, 1] + 0.1 * torch.randn(96)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        for inputs, targets in loader:
            optimizer.zero_grad()
            error = model(inputs) - targets
            loss = (error * error).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
