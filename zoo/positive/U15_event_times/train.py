"""Encodes the second of the day of every event in half precision to save memory."""
import math

import torch
from torch import nn


class TimeEncoding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("freq", torch.exp(-math.log(1e4) * torch.arange(width // 2) / (width // 2)).half())

    def forward(self, seconds):
        phase = seconds.half()[..., None] * self.freq
        return torch.cat([phase.sin(), phase.cos()], dim=-1).float()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = TimeEncoding(16)
        self.net = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, seconds):
        return self.net(self.time(seconds)).squeeze(-1)


torch.manual_seed(0)
events = torch.randint(0, 60000, (48,))
events[34] = 71000
amounts = torch.randn(48)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
for step in range(6):
    pick = slice(8 * step, 8 * step + 8)
    loss = nn.functional.smooth_l1_loss(model(events[pick]), amounts[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
