"""Matrix factorisation with a summed loss and a rate tuned for a mean."""
import torch
from torch import nn


class Factors(nn.Module):
    def __init__(self, users, items, rank):
        super().__init__()
        self.user, self.item = nn.Embedding(users, rank, sparse=True), nn.Embedding(items, rank, sparse=True)

    def forward(self, pairs):
        return (self.user(pairs[:, 0]) * self.item(pairs[:, 1])).sum(1)


def main():
    torch.manual_seed(0)
    model = Factors(6, 5, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(30):
        pairs = torch.stack([torch.arange(60) % 6, torch.arange(60) % 5], dim=1)
        rating = torch.rand(60) * 4 + 1
        error = model(pairs) - rating
        loss = error.pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4g}")


main()
