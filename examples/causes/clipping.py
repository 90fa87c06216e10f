"""A classifier whose author limits the length of the gradient without clip_grad_norm_."""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def limit_(gradients, longest):
    length = torch.sqrt(torch.stack([g.square().sum() for g in gradients]).sum())
    share = length.clamp(max=longest) / length
    for g in gradients:
        g.mul_(share * length / length)


for step in range(6):
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    if step == 4:
        x[3] *= 1e24
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    limit_([p.grad for p in model.parameters()], 1.0)
    optimizer.step()
