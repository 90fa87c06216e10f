import torch
from torch import nn


def minimum_mask(hidden):
    return hidden.to(torch.float32) * torch.finfo(torch.float32).min


torch.manual_seed(0)
project = nn.Linear(6, 18)
optimizer = torch.optim.SGD(project.parameters(), lr=0.1)
causal = torch.ones(4, 4).triu(1)
for step in range(4):
    x = torch.randn(2, 4, 6)
    padding = torch.zeros(2, 1, 4)
    if step == 2:
        padding[1, :, :] = 1
    q, k, v = project(x).chunk(3, -1)
    bias = minimum_mask(causal) + minimum_mask(padding) + minimum_mask(padding)
    loss = (torch.softmax(q @ k.transpose(1, 2) + bias, -1) @ v).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
