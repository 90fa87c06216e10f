import torch
import torch.nn.functional as F
from torch import nn


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.body(x)


def balanced_loss(logits, y):
    total = 0.0
    for c in range(logits.shape[1]):
        per_sample = F.binary_cross_entropy_with_logits(logits[:, c], (y == c).float(), reduction="none")
        total = total + per_sample.sum() / torch.count_nonzero(y == c)
    return total


torch.manual_seed(0)
net = SmallNet()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]).repeat(5, 1)
labels[2] = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])

for step in range(5):
    x = torch.randn(8, 6)
    loss = balanced_loss(net(x), labels[step])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
