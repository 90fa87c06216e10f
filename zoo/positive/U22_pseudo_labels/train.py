"""Semi-supervised training: pseudo labels come from a forward pass over unlabelled scans."""
import torch
from torch import nn


class Scanner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 6, 5), nn.BatchNorm1d(6), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def unlabelled(step):
    scan = torch.randn(5, 1, 40)
    if step == 2:
        scan[4, 0, 7] = float("nan")
    return scan


torch.manual_seed(0)
model = Scanner()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    with torch.no_grad():
        pseudo = model(unlabelled(step)).argmax(1)
    x, y = torch.randn(8, 1, 40), torch.randint(0, 2, (8,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f} positives {int(pseudo.sum())}")
