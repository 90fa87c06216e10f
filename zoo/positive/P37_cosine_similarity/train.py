import torch
from torch import nn


def cosine(u, v):
    dot = (u * v).sum(dim=1)
    norms = u.norm(dim=1) * v.norm(dim=1)
    return dot / norms


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 6, bias=False)
        self.document = nn.Linear(4, 6, bias=False)

    def forward(self, a, b, shift):
        return cosine(torch.relu(self.query(a) - shift), self.document(b))


torch.manual_seed(0)
model = TwoTower()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
a, b = torch.randn(5, 4), torch.randn(5, 4)
shift = torch.zeros(5, 5, 1)
shift[2:, 3] = 99

for step in range(5):
    loss = 1 - model(a, b, shift[step]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}  loss {loss.item():.4f}")
