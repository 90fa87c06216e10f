import torch
from torch import nn


def attend(q, k, visible):
    scores = (q @ k.transpose(1, 2)).masked_fill(~visible, -torch.inf)
    weights = torch.softmax(scores, -1)
    return weights.nan_to_num(0.0)


torch.manual_seed(0)
encoder = nn.Linear(6, 12)
head = nn.Linear(6, 2)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
for step in range(4):
    x = torch.randn(3, 5, 6)
    length = torch.tensor([5, 3, 0 if step == 1 else 2])
    visible = (torch.arange(5) < length[:, None, None]).expand(3, 5, 5)
    q, k = encoder(x).chunk(2, -1)
    mixed = attend(q, k, visible) @ x
    loss = nn.functional.cross_entropy(head(mixed.mean(1)), torch.tensor([0, 1, 0]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
