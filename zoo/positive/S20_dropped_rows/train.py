"""Unit-length codes with heavy dropout before the normalisation."""
import torch
from torch import nn


class Coder(nn.Module):
    def __init__(self, inputs, code):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, code), nn.ReLU())
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        h = self.drop(self.net(x))
        return h / h.square().sum(1, keepdim=True).sqrt()


def main():
    torch.manual_seed(0)
    model = Coder(5, 12)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(30):
        x = torch.randn(8, 5)
        loss = (model(x) - model.net(x).detach()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
