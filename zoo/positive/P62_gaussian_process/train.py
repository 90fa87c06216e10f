"""Exact Gaussian process regression: fits the length scale by the marginal likelihood."""
import math

import torch

torch.manual_seed(0)


class GaussianProcess(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_length = torch.nn.Parameter(torch.zeros(()))

    def kernel(self, inputs):
        difference = inputs[:, None] - inputs[None, :]
        squared = difference.pow(2) / self.log_length.exp().pow(2)
        d = squared.sqrt()
        return (1 + d) * torch.exp(-d) + 0.1 * torch.eye(len(inputs))

    def forward(self, inputs, targets):
        factor = torch.linalg.cholesky(self.kernel(inputs))
        weights = torch.cholesky_solve(targets[:, None], factor)
        fit = 0.5 * (targets * weights[:, 0]).sum()
        return fit + factor.diagonal().log().sum() + 0.5 * len(inputs) * math.log(2 * math.pi)


inputs = torch.tensor([0.0, 0.5, 0.5, 1.0])
targets = torch.sin(3 * inputs) + 0.05 * torch.randn(4)
gp = GaussianProcess()
optimizer = torch.optim.SGD(gp.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    nll = gp(inputs, targets)
    nll.backward()
    optimizer.step()
    print(f"step {step} nll {nll.item():.6f}")
