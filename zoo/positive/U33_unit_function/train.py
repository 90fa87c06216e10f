"""Retrieval with a hand-written normalisation: the backward pass is spelled out to save memory."""
import torch
from torch import nn


class UnitLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=1, keepdim=True)
        unit = x / norm.clamp(min=1e-12)
        ctx.save_for_backward(unit, norm)
        return unit

    @staticmethod
    def backward(ctx, grad):
        unit, norm = ctx.saved_tensors
        along = (grad * unit).sum(1, keepdim=True)
        return (grad - along * unit) / norm


class Tower(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Linear(words, width, bias=False)

    def forward(self, counts):
        return UnitLength.apply(self.words(counts))


def main():
    torch.manual_seed(0)
    queries, documents = Tower(30, 8), Tower(30, 8)
    optimizer = torch.optim.Adagrad([*queries.parameters(), *documents.parameters()], lr=0.05)
    for step in range(5):
        query, document = torch.randint(0, 3, (6, 30)).float(), torch.randint(0, 3, (6, 30)).float()
        if step == 1:
            query[3] = 0
        scores = queries(query) @ documents(document).t() / 0.1
        loss = nn.functional.cross_entropy(scores, torch.arange(6))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")


main()
