"""A compiled classifier that pools tokens by their share of attention."""
import torch
from torch import nn


class Pooled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.value = nn.Linear(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, tokens, valid):
        gate = torch.sigmoid(self.score(tokens)).squeeze(-1) * valid
        share = gate / gate.sum(dim=1, keepdim=True)
        pooled = (share.unsqueeze(-1) * self.value(tokens)).sum(dim=1)
        return self.head(torch.tanh(pooled))


def batches(count):
    for number in range(count):
        tokens = torch.randn(6, 5, 8)
        lengths = torch.randint(1, 6, (6,))
        if number == 4:
            lengths[2] = 0
        valid = (torch.arange(5) < lengths.unsqueeze(1)).float()
        yield tokens, valid, torch.randint(0, 3, (6,))


torch.manual_seed(0)
model = Pooled(8)
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
for tokens, valid, label in batches(7):
    optimizer.zero_grad()
    loss = criterion(compiled(tokens, valid), label)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
