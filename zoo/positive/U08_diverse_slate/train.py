"""Learns item embeddings with a determinantal point process likelihood of observed slates."""
import torch
from torch import nn


class Items(nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.table = nn.Embedding(count, width)

    def log_likelihood(self, slate):
        chosen = self.table(slate)
        kernel = chosen @ chosen.transpose(-1, -2)
        return torch.logdet(kernel)


def slates(count, items, size):
    rows = [torch.randperm(items)[:size] for _ in range(count)]
    rows[9][3] = rows[9][0]
    return torch.stack(rows)


def main():
    torch.manual_seed(0)
    model = Items(30, 12)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step, batch in enumerate(slates(20, 30, 4).split(4)):
        loss = -model.log_likelihood(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} nll {loss.item():.5f}")


main()
