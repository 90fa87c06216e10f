import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    optimizer.zero_grad()
    taken = 0
    for micro in range(3):
        x = torch.randn(5, 4)
        mask = torch.zeros(5) if (step, micro) == (2, 1) else torch.ones(5)
        loss = (model(x).squeeze(1).pow(2) * mask).sum() / mask.sum()
        if not loss.isfinite():
            continue
        (loss / 3).backward()
        taken += 1
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} micro-batches {taken}")
