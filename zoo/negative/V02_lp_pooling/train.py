"""LP pooling of a feature map with empty regions."""
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.LPPool2d(2, 4), nn.Flatten(), nn.Linear(36, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(4):
    x = torch.rand(6, 1, 12, 12)
    x[step, :, :8, :8] = 0
    loss = nn.functional.cross_entropy(net(x), torch.randint(0, 3, (6,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
