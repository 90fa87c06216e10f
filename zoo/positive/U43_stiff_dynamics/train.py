"""A neural differential equation integrated with Euler steps that are too long."""
import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.mix = nn.Linear(size, size, bias=False)

    def forward(self, state):
        return self.mix(state) - state ** 3


def integrate(field, state, dt, steps):
    for _ in range(steps):
        state = state + dt * field(state)
    return state


torch.manual_seed(0)
field = Field(4)
optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
for step, dt in enumerate([0.01, 0.02, 0.05, 0.8]):
    start = torch.rand(5, 4) * 4 + 3
    loss = (integrate(field, start, dt, 25) - 1).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"dt {dt} loss {loss.item():.5f}")
