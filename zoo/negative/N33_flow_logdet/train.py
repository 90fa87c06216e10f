"""Linear normalising flow trained by maximum likelihood."""
import torch
from torch import nn


class LinearFlow(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(0.8 * torch.eye(width))

    def forward(self, x):
        return x @ self.weight.T, torch.logdet(self.weight)


torch.manual_seed(0)
flow = LinearFlow(3)
optimizer = torch.optim.SGD(flow.parameters(), lr=0.1)
for step in range(6):
    z, log_det = flow(torch.randn(32, 3))
    loss = 0.5 * z.pow(2).sum(1).mean() - log_det
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
