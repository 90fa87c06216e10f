"""Two heads on one encoder; each head sends back a gradient of unit length."""
import torch
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, width), nn.ELU())
        self.depth = nn.Linear(width, 1)
        self.normal = nn.Linear(width, 3)

    def forward(self, x):
        code = self.encoder(x)
        branches = [code.clone(), code.clone()]
        for branch in branches:
            branch.register_hook(lambda grad: grad / grad.norm())
        return self.depth(branches[0]), self.normal(branches[1])


def main():
    torch.manual_seed(0)
    model = TwoHeads(6, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, weight_decay=1e-4)
    for step in range(6):
        x = torch.randn(10, 6)
        labelled = torch.zeros(10, 1) if step == 2 else torch.ones(10, 1)
        depth, normal = model(x)
        loss = (labelled * (depth - x[:, :1]).abs()).mean() + (normal - x[:, 3:]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


main()
