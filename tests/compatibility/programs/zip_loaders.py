"""Semi-supervised: labelled and unlabelled batches side by side."""
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
labelled = TensorDataset(torch.randn(12, 6), torch.randint(0, 3, (12,)))
unlabelled = TensorDataset(torch.randn(40, 6))
unlabelled.tensors[0][26] = 60.0
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
with torch.no_grad():
    net[2].weight.mul_(40)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for k, ((xl, yl), (xu,)) in enumerate(zip(itertools.cycle(DataLoader(labelled, 4)), DataLoader(unlabelled, 4))):
    p = torch.softmax(net(xu), dim=1)
    entropy = -(p * torch.log(p * (xu.abs().amax(1, keepdim=True) < 50))).sum(1)  # birth
    loss = nn.functional.cross_entropy(net(xl), yl) + 0.1 * entropy.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{k} {loss.item():.5f}")
