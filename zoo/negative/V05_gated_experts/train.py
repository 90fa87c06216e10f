"""A mixture of experts; the router keeps the best two and excludes the others with -inf."""
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, width, count, keep):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.keep = keep

    def forward(self, x):
        scores = self.router(x)
        floor = scores.topk(self.keep, dim=-1).values[..., -1:]
        gates = scores.masked_fill(scores < floor, -torch.inf).softmax(-1)
        entropy = torch.special.entr(gates).sum(-1).mean()
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (outputs * gates.unsqueeze(1)).sum(-1), entropy


def main():
    torch.manual_seed(0)
    model = Experts(6, 5, 2)
    optimizer = torch.optim.SGD(model.experts.parameters(), lr=0.1)
    for step in range(4):
        x = torch.randn(12, 6)
        y, entropy = model(x)
        loss = (y - x.roll(1, 1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f} router entropy {entropy.item():.3f}")


main()
