"""Fits a hidden Markov model by the forward algorithm in probability space."""
import torch
from torch import nn


class HMM(nn.Module):
    def __init__(self, states, symbols):
        super().__init__()
        self.transition = nn.Parameter(torch.randn(states, states))
        self.emission = nn.Parameter(torch.randn(states, symbols))
        self.initial = nn.Parameter(torch.zeros(states))

    def log_likelihood(self, sequence):
        transition, emission = self.transition.softmax(1), self.emission.softmax(1)
        alpha = self.initial.softmax(0) * emission[:, sequence[0]]
        for symbol in sequence[1:]:
            alpha = (alpha @ transition) * emission[:, symbol]
        return torch.log(alpha.sum())


torch.manual_seed(0)
model = HMM(4, 12)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step, length in enumerate([10, 15, 20, 25, 220]):
    sequence = torch.randint(0, 12, (length,))
    loss = -model.log_likelihood(sequence) / length
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
