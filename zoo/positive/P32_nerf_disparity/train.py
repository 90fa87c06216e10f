import torch
from torch import nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.density = nn.Linear(4, 1)

    def forward(self, points, bias):
        return torch.relu(self.density(points).squeeze(-1) + bias)


def render(sigma, z, delta=0.5):
    alpha = 1 - torch.exp(-sigma * delta)
    keep = torch.cumprod(1 - alpha + 1e-10, dim=1)
    transmittance = torch.cat([torch.ones(alpha.shape[0], 1), keep[:, :-1]], dim=1)
    weights = alpha * transmittance
    depth = (weights * z).sum(dim=1)
    acc = weights.sum(dim=1)
    mean_depth = depth / acc
    disp = 1 / torch.max(1e-10 * torch.ones_like(depth), mean_depth)
    return disp, acc


torch.manual_seed(0)
field = Field()
optimizer = torch.optim.SGD(field.parameters(), lr=0.1)
z = torch.linspace(1.0, 4.0, 8).expand(3, 8)
points = torch.randn(3, 8, 4)

for step in range(5):
    bias = 1.0 if step < 2 else -100.0
    disp, acc = render(field(points, bias), z)
    loss = disp.mean() + (1 - acc).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"iter {step} loss {loss.item():.4f}")
