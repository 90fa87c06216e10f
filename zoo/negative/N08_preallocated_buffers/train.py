"""Denoising autoencoder that reuses preallocated work buffers."""
import torch
from torch import nn

torch.use_deterministic_algorithms(True)


class Denoiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encode = nn.Linear(width, 16)
        self.decode = nn.Linear(16, width)

    def forward(self, x):
        noise = torch.empty_like(x).normal_(std=0.1)
        hidden = torch.relu(self.encode(x + noise))
        work = torch.empty(hidden.shape)
        work.copy_(hidden)
        return self.decode(work)


torch.manual_seed(0)
model = Denoiser(8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(16, 8)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
