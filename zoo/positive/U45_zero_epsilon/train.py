"""Word vectors with Adam; the epsilon was set to 0 to match a paper."""
import torch
from torch import nn


class Vectors(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.inner, self.outer = nn.Embedding(words, width), nn.Embedding(words, width)

    def forward(self, centre, around):
        return (self.inner(centre) * self.outer(around)).sum(-1)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=0.0)

    def step(self, centre, around):
        self.optimizer.zero_grad()
        loss = -nn.functional.logsigmoid(self.model(centre, around)).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


torch.manual_seed(0)
trainer = Trainer(Vectors(20, 6))
for step in range(4):
    print("step", step, "loss", trainer.step(torch.randint(0, 15, (8,)), torch.randint(0, 15, (8,))))
